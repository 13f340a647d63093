// cc: -O2 -g -pthread -mno-red-zone
// vectors: keeps known values in xmm0-15, st0-st3 and mxcsr across calls of `vectors_function`.
// `go N` calls it N times and compares -> `calls N`, in all.
#include <stdint.h>

#include "target.h"

NOINLINE uint64_t vectors_function(uint64_t a, uint64_t b) {
    return a * 3 + b;
}

static void round_of(long n) {
    uint64_t in[16][2], out[16][2];
    for (int i = 0; i < 16; i++) {
        in[i][0] = (uint64_t)n * 0x9e3779b97f4a7c15ull + (uint64_t)i;
        in[i][1] = ~in[i][0];
    }
    uint32_t mxcsr_in = 0x1f80 | (uint32_t)(n & 3) << 13, mxcsr_out, usual = 0x1f80;
    double sums[4] = {0};
    uint64_t result;
    __asm__ volatile(
        "ldmxcsr %[min]\n"
        "fldpi\n fldl2e\n fldln2\n fld1\n"
        "movdqu 0(%[i]),%%xmm0\n movdqu 16(%[i]),%%xmm1\n movdqu 32(%[i]),%%xmm2\n movdqu 48(%[i]),%%xmm3\n"
        "movdqu 64(%[i]),%%xmm4\n movdqu 80(%[i]),%%xmm5\n movdqu 96(%[i]),%%xmm6\n movdqu 112(%[i]),%%xmm7\n"
        "movdqu 128(%[i]),%%xmm8\n movdqu 144(%[i]),%%xmm9\n movdqu 160(%[i]),%%xmm10\n movdqu 176(%[i]),%%xmm11\n"
        "movdqu 192(%[i]),%%xmm12\n movdqu 208(%[i]),%%xmm13\n movdqu 224(%[i]),%%xmm14\n movdqu 240(%[i]),%%xmm15\n"
        "mov %[n],%%rdi\n mov $5,%%esi\n call vectors_function\n mov %%rax,%[r]\n"
        "movdqu %%xmm0,0(%[o])\n movdqu %%xmm1,16(%[o])\n movdqu %%xmm2,32(%[o])\n movdqu %%xmm3,48(%[o])\n"
        "movdqu %%xmm4,64(%[o])\n movdqu %%xmm5,80(%[o])\n movdqu %%xmm6,96(%[o])\n movdqu %%xmm7,112(%[o])\n"
        "movdqu %%xmm8,128(%[o])\n movdqu %%xmm9,144(%[o])\n movdqu %%xmm10,160(%[o])\n movdqu %%xmm11,176(%[o])\n"
        "movdqu %%xmm12,192(%[o])\n movdqu %%xmm13,208(%[o])\n movdqu %%xmm14,224(%[o])\n movdqu %%xmm15,240(%[o])\n"
        "fstpl 0(%[s])\n fstpl 8(%[s])\n fstpl 16(%[s])\n fstpl 24(%[s])\n"
        "stmxcsr %[mout]\n ldmxcsr %[usual]\n"
        : [r] "=&r"(result), [mout] "=m"(mxcsr_out)
        : [i] "b"(in), [o] "r"((char *)out), [s] "r"((char *)sums), [n] "r"(n), [min] "m"(mxcsr_in),
          [usual] "m"(usual)
        : "rax", "rcx", "rdx", "rdi", "rsi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
          "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "st",
          "st(1)", "st(2)", "st(3)", "memory", "cc");
    for (int i = 0; i < 16; i++)
        CHECK(in[i][0] == out[i][0] && in[i][1] == out[i][1], "xmm%d differs", i);
    CHECK(mxcsr_in == mxcsr_out, "mxcsr is %x, not %x", mxcsr_out, mxcsr_in);
    CHECK(sums[0] == 1.0 && sums[3] > 3.14159 && sums[3] < 3.1416, "the x87 stack differs");
    CHECK(result == (uint64_t)n * 3 + 5, "the result is %lx", result);
}

int main(void) {
    long rounds, done = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++)
            round_of(done + i);
        done += rounds;
        say("calls %ld", done);
    }
    return verdict(done);
}
