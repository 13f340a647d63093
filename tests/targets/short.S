// Functions that are shorter than a jump, with a neighbour directly behind and with padding, and
// functions that begin with bytes which no decoder of this time knows.
#define FUNCTION(name) .globl name; .type name, @function; name
#define END(name) .size name, . - name

        .text
        .p2align 4
// No padding between these.
FUNCTION(b003_rep_ret):
        .byte 0xf3, 0xc3
        END(b003_rep_ret)
FUNCTION(b003_ret):
        .byte 0xc3
        END(b003_ret)
// eax = 0.
FUNCTION(b003_zero):
        .byte 0x31, 0xc0, 0xc3
        END(b003_zero)
// rax = rdi + 1.
FUNCTION(b003_neighbour):
        lea 1(%rdi), %rax
        ret
        END(b003_neighbour)

        .p2align 4
FUNCTION(b003_rep_ret_padded):
        .byte 0xf3, 0xc3
        END(b003_rep_ret_padded)
        .p2align 4
FUNCTION(b003_ret_padded):
        .byte 0xc3
        END(b003_ret_padded)
        .p2align 4
FUNCTION(b003_zero_padded):
        .byte 0x31, 0xc0, 0xc3
        END(b003_zero_padded)
        .p2align 4

// Never called: a prefix of APX, and an opcode that 64-bit mode does not have.
FUNCTION(b027_rex2):
        .byte 0xd5, 0x18, 0x89, 0xc0
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        ret
        END(b027_rex2)
        .p2align 4
FUNCTION(b027_none):
        .byte 0x06
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        ret
        END(b027_none)
        .p2align 4
// A trap byte of the file's own.
FUNCTION(b019_trap):
        .byte 0xcc
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        ret
        END(b019_trap)
        .p2align 4
// These are known: mulx, gf2p8mulb and a 512-bit register; called where the processor has them.
FUNCTION(b027_mulx):
        .byte 0xc4, 0xe2, 0xfb, 0xf6, 0xc7
        ret
        END(b027_mulx)
        .p2align 4
        .section .note.GNU-stack, "", @progbits
