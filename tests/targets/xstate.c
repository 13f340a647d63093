// cc: -O2 -g
// xstate: at `go N` calls xstate_function N times with random contents of all x87, SSE, AVX and
// AVX-512 registers that the processor has (mxcsr and the x87 control words too), and compares all
// of it afterwards. Answer: `counts xstate_function=N`, so far.
#include "target.h"
#include <cpuid.h>
#include <stdint.h>

void xstate_function(long);
// Loads the state, calls xstate_function(value), and stores the state.
void xstate_call(void *from, void *to, uint64_t mask, long value);
__asm__(".pushsection .text\n"
        ".p2align 4\n"
        ".globl xstate_function\n"
        ".type xstate_function, @function\n"
        "xstate_function:\n"
        "  push %rbp\n"
        "  mov %rsp, %rbp\n"
        "  pop %rbp\n"
        "  ret\n"
        ".size xstate_function, . - xstate_function\n"
        ".p2align 4\n"
        ".type xstate_call, @function\n"
        "xstate_call:\n"
        "  push %rbx\n  push %r12\n  push %r13\n"
        "  mov %rsi, %r12\n"
        "  mov %rdx, %rax\n  mov %rdx, %r13\n  shr $32, %rdx\n"
        "  xrstor64 (%rdi)\n"
        "  mov %rcx, %rdi\n"
        "  call xstate_function\n"
        "  mov %r13, %rax\n  mov %r13, %rdx\n  shr $32, %rdx\n"
        "  xsave64 (%r12)\n"
        // As the compiler expects it.
        "  fninit\n"
        "  push $0x1f80\n  ldmxcsr (%rsp)\n  pop %rax\n"
        "  pop %r13\n  pop %r12\n  pop %rbx\n"
        "  ret\n"
        ".size xstate_call, . - xstate_call\n"
        ".popsection\n");

static uint64_t state = 88172645463325252ull;
static _Alignas(64) uint8_t before[16384], after[16384];

static uint64_t random_word(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void fill(size_t at, size_t size) {
    for (size_t i = 0; i < size; i++)
        before[at + i] = (uint8_t)random_word();
}

static void same(const char *what, size_t at, size_t size) {
    for (size_t i = at; i < at + size; i++)
        CHECK(before[i] == after[i], "%s, byte %zu is %x, not %x", what, i - at, after[i], before[i]);
}

// x87, SSE, AVX, and the three parts of AVX-512.
static const int parts[] = {2, 5, 6, 7};

static void once(uint64_t mask, long value) {
    unsigned a, b, c, d;
    memset(before, 0, 576);
    fill(32, 128);
    for (int i = 0; i < 8; i++)
        memset(before + 32 + 16 * i + 10, 0, 6);
    *(uint16_t *)before = 0x037f ^ (random_word() & 0x0c00);
    *(uint16_t *)(before + 2) = random_word() & 0x3800;
    before[4] = 0xff;
    *(uint32_t *)(before + 24) = 0x1f80 | (random_word() & 0x603f);
    fill(160, 256);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (mask >> parts[i] & 1) {
            __cpuid_count(13, parts[i], a, b, c, d);
            fill(b, a);
        }
    *(uint64_t *)(before + 512) = mask;
    memset(after, 0, sizeof after);
    xstate_call(before, after, mask, value);
    same("x87 control", 0, 5);
    same("mxcsr", 24, 4);
    same("x87", 32, 128);
    same("xmm", 160, 256);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (mask >> parts[i] & 1) {
            __cpuid_count(13, parts[i], a, b, c, d);
            same("a wide part", b, a);
        }
}

int main(void) {
    unsigned low, high, a, b, c, d;
    long rounds, done = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1))
        return 9;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++, done++)
            once(low & 0xe7, i);
        say("counts xstate_function=%ld", done);
    }
    return verdict(done);
}
