// cc: -O2 -g
// short: at `go N` calls each function of short.S that can be called N times and checks all
// registers. Answer: `counts NAME=CALLS ...`, so far. The functions named b027_rex2, b027_none and
// b019_trap are there to be looked at.
#include "target.h"
#include "regcall.h"
#include <cpuid.h>

#define FUNCTIONS(X)                                                                \
    X(b003_rep_ret) X(b003_ret) X(b003_zero) X(b003_neighbour)                      \
    X(b003_rep_ret_padded) X(b003_ret_padded) X(b003_zero_padded) X(b027_mulx)

#define DECLARE(name) void name(void);
FUNCTIONS(DECLARE)

enum {
#define NUMBER(name) N_##name,
    FUNCTIONS(NUMBER) COUNT
};
static const char *const names[COUNT] = {
#define NAME(name) #name,
    FUNCTIONS(NAME)};
static void (*const functions[COUNT])(void) = {
#define ADDRESS(name) name,
    FUNCTIONS(ADDRESS)};
static long called[COUNT];

static int has_mulx(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 8 & 1);
}

static void call(int number, long i) {
    struct regs before, after;
    for (size_t word = 0; word < sizeof before / 8; word++)
        ((uint64_t *)&before)[word] = 0x0101010101010101ull * (word + 1) + i;
    before.flags = FIXED;
    after = before;
    regcall(functions[number], &after);
    called[number]++;
    if (number == N_b003_zero || number == N_b003_zero_padded)
        before.rax = 0;
    if (number == N_b003_neighbour)
        before.rax = before.rdi + 1;
    if (number == N_b027_mulx) {
        unsigned __int128 product = (unsigned __int128)before.rdx * before.rdi;
        before.rax = (uint64_t)(product >> 64) == after.rax ? after.rax : (uint64_t)product;
    }
    for (int r = 0; r < 15; r++) {
        uint64_t is = ((uint64_t *)&after)[r], should = ((uint64_t *)&before)[r];
        CHECK(is == should, "%s: register %d is %lx, not %lx", names[number], r, is, should);
    }
}

int main(void) {
    long rounds, total = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++)
            for (int number = 0; number < COUNT; number++)
                if (number != N_b027_mulx || has_mulx())
                    call(number, i);
        printf("counts");
        for (int number = 0; number < COUNT; number++)
            printf(" %s=%ld", names[number], called[number]);
        say("");
    }
    for (int number = 0; number < COUNT; number++)
        total += called[number];
    return verdict(total);
}
