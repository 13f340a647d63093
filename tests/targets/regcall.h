// Calls a function with every register and flag given, and tells them all afterwards. Included by
// one file of a program only.
#ifndef REGCALL_H
#define REGCALL_H

#include <stdint.h>

struct regs {
    uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
    uint64_t flags;
    // The eight bytes that the called function last had below its return address.
    uint64_t below;
};

enum {
    CF = 1, PF = 4, AF = 0x10, ZF = 0x40, SF = 0x80, DF = 0x400, OF = 0x800, AC = 0x40000,
    ARITHMETIC = CF | PF | AF | ZF | SF | OF,
    // Always set, and the interrupt flag, which a program can't clear.
    FIXED = 0x202,
};

// DF and AC are cleared afterwards, as the caller expects them. Everything is kept aligned, since
// AC makes other accesses fault.
void regcall(void (*function)(void), struct regs *regs);

__asm__(
    ".pushsection .text\n"
    ".p2align 4\n"
    ".type regcall, @function\n"
    "regcall:\n"
    "  push %rbx\n  push %rbp\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  push %rsi\n"
    "  push %rdi\n"
    "  push 120(%rsi)\n"
    "  mov 0(%rsi), %rax\n  mov 8(%rsi), %rbx\n  mov 16(%rsi), %rcx\n  mov 24(%rsi), %rdx\n"
    "  mov 40(%rsi), %rdi\n  mov 48(%rsi), %rbp\n  mov 56(%rsi), %r8\n  mov 64(%rsi), %r9\n"
    "  mov 72(%rsi), %r10\n  mov 80(%rsi), %r11\n  mov 88(%rsi), %r12\n  mov 96(%rsi), %r13\n"
    "  mov 104(%rsi), %r14\n  mov 112(%rsi), %r15\n  mov 32(%rsi), %rsi\n"
    "  popfq\n"
    "  call *(%rsp)\n"
    "  push -16(%rsp)\n"
    "  pushfq\n"
    "  push %rsi\n"
    "  mov 32(%rsp), %rsi\n"
    "  mov %rax, 0(%rsi)\n  mov %rbx, 8(%rsi)\n  mov %rcx, 16(%rsi)\n  mov %rdx, 24(%rsi)\n"
    "  mov %rdi, 40(%rsi)\n  mov %rbp, 48(%rsi)\n  mov %r8, 56(%rsi)\n  mov %r9, 64(%rsi)\n"
    "  mov %r10, 72(%rsi)\n  mov %r11, 80(%rsi)\n  mov %r12, 88(%rsi)\n  mov %r13, 96(%rsi)\n"
    "  mov %r14, 104(%rsi)\n  mov %r15, 112(%rsi)\n"
    "  pop %rax\n  mov %rax, 32(%rsi)\n"
    "  pop %rax\n  mov %rax, 120(%rsi)\n"
    "  pop %rcx\n  mov %rcx, 128(%rsi)\n"
    "  and $~0x40400, %rax\n"
    "  push %rax\n  popfq\n"
    "  add $16, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbp\n  pop %rbx\n"
    "  ret\n"
    ".size regcall, . - regcall\n"
    ".popsection\n");

#endif
