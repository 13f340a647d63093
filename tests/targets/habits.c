// cc: -O2 -g -pthread
// habits: what programs do with signals and stacks. At `go N`, N times: a trap of its own (int3) with
// a handler for SIGTRAP; a handler on an alternate stack; a thread that blocks all signals; a
// longjmp out of nested calls of habits_function, and a siglongjmp out of a handler. Answer: `counts
// habits_function=CALLS`, so far.
#include "target.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

static atomic_long calls, traps, alternates;
static jmp_buf out;
static sigjmp_buf out_of_handler;
static char stack[64 << 10];

NOINLINE long habits_function(long x) { return x + 11; }

static long call(long x) {
    calls++;
    long result = habits_function(x);
    CHECK(result == x + 11, "habits_function(%ld)", x);
    return result;
}

NOINLINE void dive(long depth) {
    call(depth);
    if (!depth)
        longjmp(out, 1);
    dive(depth - 1);
    CHECK(0, "a longjmp that returns");
}

static void on_trap(int signal) {
    call(signal);
    traps++;
}

static void on_alternate(int signal) {
    char here;
    CHECK(&here >= stack && &here < stack + sizeof stack, "not on the alternate stack");
    call(signal);
    alternates++;
}

static void on_jump(int signal) {
    call(signal);
    siglongjmp(out_of_handler, 1);
}

static void *blocked(void *argument) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    call(1);
    pthread_sigmask(SIG_BLOCK, NULL, &all);
    for (int signal = 1; signal < 32; signal++)
        if (signal != SIGKILL && signal != SIGSTOP)
            CHECK(sigismember(&all, signal) == 1, "signal %d is not blocked any more", signal);
    return argument;
}

int main(void) {
    long rounds, due = 0;
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    signal(SIGTRAP, on_trap);
    struct sigaction on_stack = {.sa_handler = on_alternate, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &on_stack, NULL);
    signal(SIGUSR2, on_jump);
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (volatile long i = 0; i < rounds; i++, due++) {
            __asm__ volatile("int3");
            raise(SIGUSR1);
            if (!setjmp(out))
                dive(9);
            if (!sigsetjmp(out_of_handler, 1))
                raise(SIGUSR2);
            pthread_t thread;
            pthread_create(&thread, NULL, blocked, NULL);
            pthread_join(thread, NULL);
        }
        CHECK(traps == due && alternates == due, "%ld traps", (long)traps);
        say("counts habits_function=%ld", (long)calls);
    }
    return verdict(calls);
}
