// Functions whose first bytes lie across the end of a cache line (60 to 63 bytes into one) and
// across the end of a page. edges_K returns rdi + K.
        .macro edge name, align, skip, add
        .p2align \align
        .skip \skip, 0xcc
        .globl \name
        .type \name, @function
\name:
        push %rbp
        mov %rsp, %rbp
        lea \add(%rdi), %rax
        pop %rbp
        ret
        .size \name, . - \name
        .endm

        .text
        edge edges_60, 6, 60, 60
        edge edges_61, 6, 61, 61
        edge edges_62, 6, 62, 62
        edge edges_63, 6, 63, 63
        edge edges_page_1, 12, 4092, 1
        edge edges_page_2, 12, 4094, 2
        edge edges_page_3, 12, 4095, 3
        .section .note.GNU-stack, "", @progbits
