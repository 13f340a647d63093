// cc: -O2 -g
// flags: at `go N` calls each function N times with random registers and flags, and compares all
// registers and flags afterwards with what is due. Answer: `counts NAME=CALLS ...`, in all.
#include "target.h"
#include "regcall.h"

#define DECLARE(name) void name(void);
DECLARE(b031) DECLARE(b033) DECLARE(b033_short) DECLARE(b034) DECLARE(b039)

static uint64_t state = 88172645463325252ull;

static uint64_t random_word(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static struct regs random_regs(void) {
    struct regs regs;
    uint64_t *words = (uint64_t *)&regs;
    for (size_t i = 0; i < sizeof regs / sizeof *words; i++)
        words[i] = random_word();
    regs.flags = FIXED | (regs.flags & (ARITHMETIC | DF | AC));
    return regs;
}

// Calls and compares everything; `due` holds what differs from before.
static void call(const char *name, void (*function)(void), struct regs before, struct regs due,
                 uint64_t flags_mask) {
    static const char *const names[] = {"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8",
                                        "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
    struct regs after = before;
    regcall(function, &after);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t is = ((uint64_t *)&after)[i], should = ((uint64_t *)&due)[i];
        CHECK(is == should, "%s: %s is %lx, not %lx", name, names[i], is, should);
    }
    CHECK((after.flags & flags_mask) == (due.flags & flags_mask), "%s: flags are %lx, not %lx", name,
          after.flags, due.flags);
}

int main(void) {
    const uint64_t all = FIXED | ARITHMETIC | DF | AC;
    long rounds, done = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++) {
            struct regs before = random_regs(), due = before;
            due.rax = due.rdi;
            call("b031", b031, before, due, all);

            due = before;
            call("b033", b033, before, due, all);
            due.r8 = due.rax;
            call("b033_short", b033_short, before, due, all);

            due = before;
            due.flags |= DF;
            call("b034", b034, before, due, all);

            before.rdi = i & 1 ? 1 : before.rdi | 2;
            due = before;
            if (!(i & 1))
                due.rax = 0;
            // The comparison or the xor decide the arithmetic flags; ZF is set either way.
            due.flags |= ZF;
            call("b039", b039, before, due, FIXED | DF | AC | ZF);
        }
        done += rounds;
        say("counts b031=%ld b033=%ld b033_short=%ld b034=%ld b039=%ld", done, done, done, done, done);
    }
    return verdict(done);
}
