// cc: -O2 -g
// reloc: at `go N` calls every function of reloc.S N times over its inputs and checks registers
// and results. Answer: `counts NAME=EXECUTIONS ...`, how often the first instruction of each has
// been executed since the start, which is what a probe on the entry has to count.
#include "target.h"
#include "regcall.h"
#include <cpuid.h>

#define FUNCTIONS(X)                                                                            \
    X(b001_call) X(b001_jmp) X(b001_push) X(b004) X(b005) X(b006) X(b006_je) X(b006_je_far)     \
    X(b007) X(b008) X(b009_a) X(b009_b) X(b013_a) X(b013_b) X(b013_c) X(b020_xbegin)            \
    X(b020_jrcxz) X(b020_loop) X(b020_loop_once) X(b021) X(b023) X(b024)

#define DECLARE(name) void name(void);
FUNCTIONS(DECLARE)
extern char b001_call_return[], b023_return[], b024_return[];

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
static long executed[COUNT];

static struct regs before, after, due;

static void begin(void) {
    for (size_t i = 0; i < sizeof before / 8; i++)
        ((uint64_t *)&before)[i] = 0x0101010101010101ull * (i + 1);
    before.flags = FIXED;
}

// Calls with `before`; the first instruction is executed `times` times.
static void call(int number, long times) {
    after = due = before;
    regcall(functions[number], &after);
    executed[number] += times;
}

// Compares all registers with `due`.
static void same(int number) {
    for (int i = 0; i < 15; i++) {
        uint64_t is = ((uint64_t *)&after)[i], should = ((uint64_t *)&due)[i];
        CHECK(is == should, "%s: register %d is %lx, not %lx", names[number], i, is, should);
    }
}

// What a 32-bit operation leaves in the register.
static uint64_t low(uint64_t value) { return (uint32_t)value; }

static int has_transactions(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 11 & 1);
}

static void calls_and_thunks(long i) {
    begin();
    before.rdi = i;
    call(N_b001_call, 1);
    due.rax = (uint64_t)b001_call_return;
    same(N_b001_call);
    call(N_b001_jmp, 1);
    due.rax = 3 * i;
    same(N_b001_jmp);
    call(N_b001_push, 1);
    due.rax = 0x1122334455667788;
    same(N_b001_push);
    call(N_b023, 1);
    due.rax = (uint64_t)b023_return;
    same(N_b023);
    call(N_b024, 1);
    due.rax = (uint64_t)b024_return;
    same(N_b024);
    CHECK(after.below == (uint64_t)b024_return, "b024: %lx lies below the stack", after.below);

    for (int thunk = N_b013_a; thunk <= N_b013_c; thunk++) {
        call(thunk, 1);
        due.rax = 2 * i;
        same(thunk);
        if (thunk != N_b013_c)
            executed[N_b013_c]++;
    }
    call(N_b009_a, 1);
    due.rax = i + 1;
    same(N_b009_a);
    call(N_b009_b, 1);
    due.rax = i + 1;
    same(N_b009_b);
    call(N_b021, 1);
    // The system call keeps its return address in rcx and the flags in r11.
    CHECK(after.rax == (uint64_t)getpid(), "b021: %ld is not our pid", (long)after.rax);
    due.rax = after.rax;
    due.rcx = after.rcx;
    due.r11 = after.r11;
    same(N_b021);
}

static void branches(long i) {
    begin();
    for (unsigned j = 0; j < 3; j++) {
        before.rdi = 4 + j;
        before.rsi = 5;
        call(N_b004, 1);
        due.rax = j == 2 ? 1 : 2;
        same(N_b004);
    }
    call(N_b005, 1);
    due.rsi = low(before.rsi + 2);
    due.rax = low(before.rax - 1);
    same(N_b005);
    for (unsigned j = 0; j < 2; j++) {
        before.rdi = j;
        before.rdx = j;
        before.rcx = 2 * j;
        call(N_b006, 1);
        same(N_b006);
        CHECK((after.flags & ZF) == (j ? 0 : ZF), "b006: flags are %lx", after.flags);
        call(N_b006_je, 1);
        due.rsi = j ? low(before.rsi + 1) : before.rsi;
        same(N_b006_je);
        call(N_b006_je_far, 1);
        due.rsi = j ? low(before.rsi + 1) : before.rsi;
        same(N_b006_je_far);
        call(N_b007, 1);
        same(N_b007);
        call(N_b020_jrcxz, 1);
        due.rax = j ? low(before.rax + 1) : before.rax;
        same(N_b020_jrcxz);
        before.rcx = 1 + j;
        call(N_b020_loop_once, 1);
        due.rcx = j;
        due.rax = j ? before.rax : low(before.rax + 1);
        same(N_b020_loop_once);
    }
    long turns = 1 + i % 7;
    before.rdi = before.rcx = turns;
    call(N_b008, turns);
    due.rdi = 0;
    same(N_b008);
    call(N_b020_loop, turns);
    due.rcx = 0;
    same(N_b020_loop);
    if (has_transactions()) {
        call(N_b020_xbegin, 1);
        // An aborted transaction leaves its reason in eax.
        due.rax = after.rax;
        same(N_b020_xbegin);
    }
}

int main(void) {
    long rounds, total = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++) {
            calls_and_thunks(i);
            branches(i);
        }
        printf("counts");
        for (int i = 0; i < COUNT; i++)
            printf(" %s=%ld", names[i], executed[i]);
        say("");
    }
    for (int i = 0; i < COUNT; i++)
        total += executed[i];
    return verdict(total);
}
