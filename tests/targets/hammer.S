// Functions back to back, without padding, so that a window on one reaches towards the next.
#define FUNCTION(name) .globl name; .type name, @function; name
#define END(name) .size name, . - name

        .text
        .p2align 6
FUNCTION(hammer_before):                // edi + 1
        .byte 0x8d, 0x47, 0x01, 0xc3
        END(hammer_before)
FUNCTION(hammer_target):                // edi * 2
        push %rbp
        mov %rsp, %rbp
        lea (%rdi,%rdi), %eax
        pop %rbp
        ret
        END(hammer_target)
FUNCTION(hammer_zero):                  // 0, three bytes
        .byte 0x31, 0xc0, 0xc3
        END(hammer_zero)
FUNCTION(hammer_rep_ret):               // eax as it was, two bytes
        .byte 0xf3, 0xc3
        END(hammer_rep_ret)
FUNCTION(hammer_ret):                   // eax as it was, one byte
        .byte 0xc3
        END(hammer_ret)
FUNCTION(hammer_after):                 // edi - 1
        .byte 0x8d, 0x47, 0xff, 0xc3
        END(hammer_after)
        .section .note.GNU-stack, "", @progbits
