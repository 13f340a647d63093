// windowspin_K keeps its thread at the instruction K bytes behind its start: a repeated load is
// one instruction that takes milliseconds and is resumed where it is, so that the thread stands
// there without any branch to that place. rsi: buffer, rcx: its size; returns rsi + rcx.
#define FUNCTION(name) .globl name; .type name, @function; .p2align 4; name
#define END(name) .size name, . - name

        .text
FUNCTION(windowspin_0):
        rep lodsb
        nopl (%rax)
        mov %rsi, %rax
        ret
        END(windowspin_0)
FUNCTION(windowspin_1):
        nop
        rep lodsb
        nopl (%rax)
        mov %rsi, %rax
        ret
        END(windowspin_1)
FUNCTION(windowspin_2):
        .byte 0x66, 0x90
        rep lodsb
        nopl (%rax)
        mov %rsi, %rax
        ret
        END(windowspin_2)
FUNCTION(windowspin_3):
        .byte 0x0f, 0x1f, 0x00
        rep lodsb
        nopl (%rax)
        mov %rsi, %rax
        ret
        END(windowspin_3)
FUNCTION(windowspin_4):
        .byte 0x0f, 0x1f, 0x40, 0x00
        rep lodsb
        nopl (%rax)
        mov %rsi, %rax
        ret
        END(windowspin_4)
        .section .note.GNU-stack, "", @progbits
