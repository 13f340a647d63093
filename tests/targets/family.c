// cc: -O2 -g
// family: `fork` makes one more child that stays and answers its pid, `child PID`; `go N` lets the
// parent and all children call family_function N times each, all at once, and answers
// `calls TOTAL`. Children are gone once their parent is.
#include "target.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MOST 64

static int orders[MOST], answers[MOST];
static long children;

NOINLINE long family_function(long x) { return x * 9 + 4; }

static long call(long count) {
    long wrong = 0;
    for (long i = 0; i < count; i++)
        wrong += family_function(i) != i * 9 + 4;
    return wrong;
}

static void serve(int in, int out) {
    long count, wrong;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(in, &count, sizeof count) == sizeof count) {
        wrong = call(count);
        if (write(out, &wrong, sizeof wrong) != sizeof wrong)
            break;
    }
    _exit(0);
}

static pid_t add_child(void) {
    int down[2], up[2];
    if (children == MOST || pipe(down) || pipe(up))
        return -1;
    pid_t child = fork();
    if (child == 0) {
        close(down[1]);
        for (long i = 0; i < children; i++)
            close(orders[i]);
        serve(down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    orders[children] = down[1];
    answers[children++] = up[0];
    return child;
}

int main(void) {
    long number, total = 0;
    say("ready %d", getpid());
    for (const char *order; (order = next_order(&number));) {
        if (!strcmp(order, "fork")) {
            say("child %d", add_child());
            continue;
        }
        for (long i = 0; i < children; i++)
            CHECK(write(orders[i], &number, sizeof number) == sizeof number, "order %ld", i);
        CHECK(!call(number), "the parent's calls");
        for (long i = 0; i < children; i++) {
            long wrong = -1;
            CHECK(read(answers[i], &wrong, sizeof wrong) == sizeof wrong && !wrong, "child %ld", i);
        }
        total += number * (children + 1);
        say("calls %ld", total);
    }
    for (long i = 0; i < children; i++)
        close(orders[i]);
    while (wait(NULL) > 0)
        ;
    return verdict(total);
}
