// cc: -O2 -g
// filtered: runs under a seccomp filter that allows everything. `call N` calls filtered_function N
// times. Answer: `calls N`, so far.
#include "target.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

NOINLINE long filtered_function(long x) { return x + 23; }

int main(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = 1, .filter = &allow};
    long number, calls = 0;
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
    say("ready %d", getpid());
    while (next_order(&number)) {
        for (long i = 0; i < number; i++, calls++)
            CHECK(filtered_function(i) == i + 23, "filtered_function(%ld)", i);
        say("calls %ld", calls);
    }
    return verdict(calls);
}
