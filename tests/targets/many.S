// 3500 functions many_0 to many_3499, one in seven of which is too short for a jump, and a table of
// them. Each adds its number to rax.
        .altmacro
        .macro one n
        .globl many_\n
        .type many_\n, @function
many_\n:
        .if \n % 7
        add $\n, %rax
        nop
        .endif
        ret
        .size many_\n, . - many_\n
        .section .data.rel.ro, "aw", @progbits
        .quad many_\n
        .text
        .endm

        .section .data.rel.ro, "aw", @progbits
        .globl many_table
        .p2align 3
many_table:
        .text
        .p2align 4
        .set number, 0
        .rept 3500
        one %number
        .set number, number + 1
        .endr
        .p2align 4
        .section .note.GNU-stack, "", @progbits
