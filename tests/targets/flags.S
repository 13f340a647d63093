// Functions whose first instructions have something live that a probe must not touch.
#define FUNCTION(name) .globl name; .type name, @function; .p2align 4; name
#define END(name) .size name, . - name

        .text
// The red zone: returns rdi by way of the eight bytes below the stack pointer. Probe also at +5.
FUNCTION(b031):
        .byte 0x48, 0x89, 0x7c, 0x24, 0xf8
        .byte 0x48, 0x8b, 0x44, 0x24, 0xf8
        .byte 0xc3
        END(b031)
// All registers and arithmetic flags: changes nothing.
FUNCTION(b033):
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        .byte 0xc3
        END(b033)
// The same in instructions of one byte and several, with rax copied: r8 = rax.
FUNCTION(b033_short):
        .byte 0x90
        .byte 0x49, 0x89, 0xc0
        .byte 0x66, 0x90
        .byte 0xc3
        END(b033_short)
// Sets DF; AC is set by the caller. Probe also at +1.
FUNCTION(b034):
        .byte 0xfd
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        .byte 0xc3
        END(b034)
// eax if edi is 1, else 0: flags live from a comparison among the displaced bytes. Probe also at
// +3.
FUNCTION(b039):
        .byte 0x83, 0xff, 0x01
        .byte 0x74, 0x02
        .byte 0x31, 0xc0
        .byte 0xc3
        END(b039)
        .section .note.GNU-stack, "", @progbits
