// cc: -O2 -g
// values: at `go N` calls values_args N times with ten known arguments, and values_regs with known
// registers. Answer: `counts values_args=N arg0=SUM ... values_regs=N ax=SUM ... sp=VALUE
// ip=VALUE`, so far; stack pointer and address are the same at each call.
#include "target.h"
#include "regcall.h"

// Returns the stack pointer that it was entered with.
void values_regs(void);
__asm__(".pushsection .text\n"
        ".globl values_regs\n"
        ".type values_regs, @function\n"
        ".p2align 4\n"
        "values_regs:\n"
        "  nopl 0(%rax,%rax,1)\n"
        "  nop\n"
        "  mov %rsp, %rax\n"
        "  ret\n"
        ".size values_regs, . - values_regs\n"
        ".popsection\n");

NOINLINE long values_args(long a, long b, long c, long d, long e, long f, long g, long h, long i,
                          long j) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}

static const char *const names[] = {"ax", "bx", "cx", "dx", "si", "di", "bp", "r8",
                                    "r9", "r10", "r11", "r12", "r13", "r14", "r15"};

int main(void) {
    long rounds, done = 0, sums[10] = {0}, registers[15] = {0};
    unsigned long sp = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long n = 0; n < rounds; n++, done++) {
            long v[10], due = 0;
            for (long i = 0; i < 10; i++) {
                v[i] = (i + 1) * 1000 + n;
                sums[i] += v[i];
                due += (i + 1) * v[i];
            }
            CHECK(values_args(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9]) == due,
                  "values_args");
            struct regs regs = {.flags = FIXED};
            for (long i = 0; i < 15; i++) {
                ((uint64_t *)&regs)[i] = (uint64_t)((i + 1) * 100000 + n);
                registers[i] += (i + 1) * 100000 + n;
            }
            regcall(values_regs, &regs);
            CHECK(!sp || sp == regs.rax, "another stack pointer");
            sp = regs.rax;
        }
        printf("counts values_args=%ld", done);
        for (int i = 0; i < 10; i++)
            printf(" arg%d=%ld", i, sums[i]);
        printf(" values_regs=%ld", done);
        for (int i = 0; i < 15; i++)
            printf(" %s=%ld", names[i], registers[i]);
        say(" sp=%lu ip=%lu", sp, (unsigned long)values_regs);
    }
    return verdict(done);
}
