// cc: -O2 -g
// watched MODE: hardware breakpoints of its own, by perf events, while SIGTRAP is `default`,
// `blocked`, `ignored` or has a `handler`. `go N` calls watched_function N times while the word
// that it writes and its first byte are watched; `sweep ADDRESS` calls it once for each of 512
// addresses from there on, with a breakpoint that runs a signal handler when that address is
// executed, in which the function is called three times. Answer: `counts watched_function=CALLS
// fired=HANDLERS`, so far. Fact: 1 where the kernel has such breakpoints.
#include "target.h"
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

static volatile long watched_word;
static volatile long calls, fired;
static volatile int armed = -1;

NOINLINE long watched_function(long x) {
    watched_word = x;
    return x + 23;
}

static void call(long x) {
    calls++;
    long result = watched_function(x);
    CHECK(result == x + 23, "watched_function(%ld) is %ld", x, result);
}

static void on_trap(int signal) {
    // Once an arming: what the signal interrupted may begin anew.
    ioctl(armed, PERF_EVENT_IOC_DISABLE, 0);
    fired++;
    for (long i = 0; i < 3; i++)
        call(signal + i);
}

static int watch(unsigned type, const volatile void *at, int traps) {
    struct perf_event_attr event = {
        .type = PERF_TYPE_BREAKPOINT,
        .size = sizeof event,
        .bp_type = type,
        .bp_addr = (unsigned long)at,
        .bp_len = type == HW_BREAKPOINT_X ? sizeof(long) : HW_BREAKPOINT_LEN_8,
        .sample_period = traps,
        .sigtrap = traps,
        .remove_on_exec = traps,
        .exclude_kernel = 1,
        .exclude_hv = 1,
    };
    return syscall(SYS_perf_event_open, &event, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static long events(int watch) {
    long count = -1;
    CHECK(read(watch, &count, sizeof count) == sizeof count, "no count");
    close(watch);
    return count;
}

static void go(long rounds) {
    int writes = watch(HW_BREAKPOINT_W, &watched_word, 0);
    int entries = watch(HW_BREAKPOINT_X, (void *)watched_function, 0);
    for (long i = 0; i < rounds; i++)
        call(i);
    long written = events(writes), entered = events(entries);
    CHECK(written == rounds, "%ld writes seen of %ld", written, rounds);
    CHECK(entered == rounds, "%ld entries seen of %ld", entered, rounds);
}

static void sweep(long from) {
    for (long at = from; at < from + 512; at++) {
        armed = watch(HW_BREAKPOINT_X, (void *)at, 1);
        CHECK(armed >= 0, "no breakpoint at %lx", at);
        call(at);
        close(armed);
    }
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "default", *order;
    long number;
    sigset_t trap;
    sigemptyset(&trap);
    sigaddset(&trap, SIGTRAP);
    if (!strcmp(mode, "blocked"))
        sigprocmask(SIG_BLOCK, &trap, NULL);
    else if (!strcmp(mode, "ignored"))
        signal(SIGTRAP, SIG_IGN);
    else if (!strcmp(mode, "handler"))
        signal(SIGTRAP, on_trap);
    int probe = watch(HW_BREAKPOINT_X, (void *)watched_function, 1);
    if (probe >= 0)
        close(probe);
    say("ready %d %d", getpid(), probe >= 0);
    while ((order = next_order(&number))) {
        if (!strcmp(order, "sweep"))
            sweep(number);
        else
            go(number);
        say("counts watched_function=%ld fired=%ld", calls, fired);
    }
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, SIGTRAP) == !strcmp(mode, "blocked"), "another mask");
    return verdict(calls);
}
