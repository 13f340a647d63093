// The byte sequences whose relocation is known to go wrong, one function each. Spelled in bytes
// where the encoding is the point.
#define FUNCTION(name) .globl name; .type name, @function; .p2align 4; name
#define END(name) .size name, . - name

        .text
// Returns its own return address.
FUNCTION(reloc_where):
        mov (%rsp), %rax
        ret
        END(reloc_where)
// Returns 3 * rdi.
FUNCTION(reloc_triple):
        lea (%rdi,%rdi,2), %rax
        ret
        END(reloc_triple)

// An indirect call through a slot; returns the callee's return address.
FUNCTION(b001_call):
        .byte 0xff, 0x15
        .long slot_where - . - 4
        .globl b001_call_return
b001_call_return:
        ret
        END(b001_call)
FUNCTION(b001_jmp):
        .byte 0xff, 0x25
        .long slot_triple - . - 4
        END(b001_jmp)
FUNCTION(b001_push):
        .byte 0xff, 0x35
        .long slot_value - . - 4
        pop %rax
        ret
        END(b001_push)

// 1 if edi is above esi, else 2. Probes also at +6 (jbe), at +13 and +20 (leave) and at the rets.
FUNCTION(b004):
        .byte 0x55
        .byte 0x48, 0x89, 0xe5
        .byte 0x39, 0xf7
        .byte 0x76, 0x07
        .byte 0xb8, 0x01, 0x00, 0x00, 0x00
        .byte 0xc9
        .byte 0xc3
        .byte 0xb8, 0x02, 0x00, 0x00, 0x00
        .byte 0xc9
        .byte 0xc3
        END(b004)

// esi + 2, eax - 1, with a jump to the next instruction between.
FUNCTION(b005):
        .byte 0xff, 0xc6, 0xff, 0xc8, 0xeb, 0x00, 0xff, 0xc6, 0xc3
        END(b005)

// Branches into their own window.
FUNCTION(b006):
        .byte 0x85, 0xff, 0x74, 0x00, 0x90, 0xc3
        END(b006)
// esi + 1 unless edi is 0.
FUNCTION(b006_je):
        .byte 0x85, 0xff, 0x74, 0x02, 0xff, 0xc6, 0xc3
        END(b006_je)
FUNCTION(b006_je_far):
        .byte 0x85, 0xff, 0x0f, 0x84, 0x02, 0x00, 0x00, 0x00, 0xff, 0xc6, 0xc3
        END(b006_je_far)

// The window behind endbr64 ends on a ret that the branch jumps over.
FUNCTION(b007):
        .byte 0xf3, 0x0f, 0x1e, 0xfa, 0x85, 0xd2, 0x75, 0x04, 0xc3, 0x0f, 0x1f, 0x00, 0xc3
        END(b007)

// Jumps back to its own start edi times.
FUNCTION(b008):
        .byte 0xff, 0xcf, 0x75, 0xfc, 0xc3
        END(b008)

// b009_a jumps two bytes behind the start of b009_b; rdi + 1.
FUNCTION(b009_a):
        .byte 0x55
        .byte 0xe9
        .long b009_b + 2 - . - 4
        END(b009_a)
FUNCTION(b009_b):
        .byte 0x55
        .byte 0x48, 0x89, 0xe5
        .byte 0x48, 0x8d, 0x47, 0x01
        .byte 0x5d
        .byte 0xc3
        END(b009_b)

// Two thunks to one function, which is called directly as well.
FUNCTION(b013_a):
        .byte 0xe9
        .long b013_c - . - 4
        END(b013_a)
FUNCTION(b013_b):
        .byte 0xe9
        .long b013_c - . - 4
        END(b013_b)
FUNCTION(b013_c):
        .byte 0x48, 0x8d, 0x04, 0x3f, 0xc3
        END(b013_c)

// A transaction that begins and ends, or goes to its fallback.
FUNCTION(b020_xbegin):
        .byte 0xc7, 0xf8, 0x04, 0x00, 0x00, 0x00
        .byte 0x0f, 0x01, 0xd5
        .byte 0xc3
        .byte 0xc3
        END(b020_xbegin)
// eax + 1 unless rcx is 0.
FUNCTION(b020_jrcxz):
        .byte 0xe3, 0x02, 0xff, 0xc0, 0xc3
        END(b020_jrcxz)
// Its first instruction is executed rcx times.
FUNCTION(b020_loop):
        .byte 0xe2, 0xfe, 0xc3
        END(b020_loop)
// eax + 1 only if rcx is 1.
FUNCTION(b020_loop_once):
        .byte 0xe2, 0x02, 0xff, 0xc0, 0xc3
        END(b020_loop_once)

// getpid, as a libc wrapper has it. Probe also at +5.
FUNCTION(b021):
        .byte 0xb8, 0x27, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xc3
        END(b021)

// A call first; returns the callee's return address.
FUNCTION(b023):
        .byte 0xe8
        .long reloc_where - . - 4
        .globl b023_return
b023_return:
        ret
        END(b023)

// Reads its own address by a call to the next instruction.
FUNCTION(b024):
        .byte 0xe8, 0x00, 0x00, 0x00, 0x00
        .globl b024_return
b024_return:
        .byte 0x58
        .byte 0xc3
        END(b024)
        .p2align 4

        .section .data.rel.ro, "aw", @progbits
        .p2align 3
slot_where:     .quad reloc_where
slot_triple:    .quad reloc_triple
slot_value:     .quad 0x1122334455667788
        .section .note.GNU-stack, "", @progbits
