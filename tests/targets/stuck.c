// cc: -O2 -g -pthread
// stuck HOW: with 1, a thread waits in vfork for a child that waits for `release`, and no stop reaches it until then; with
// 0 none does. `call N` calls stuck_function N times.
#include "target.h"
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static int gate[2];
static atomic_long calls, released, waiter;

NOINLINE long stuck_function(long x) { return x + 19; }

static void *wait_in_vfork(void *unused) {
    char byte;
    waiter = gettid();
    pid_t child = vfork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (read(gate[0], &byte, 1) < 0)
            ;
        _exit(3);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3, "the child: %x", status);
    released = 1;
    return unused;
}

// The kernel shows a thread that waits for its vfork child as in an uninterruptible sleep.
static int waits(void) {
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", (long)waiter);
    FILE *stat = waiter ? fopen(path, "re") : NULL;
    if (!stat)
        return 0;
    char *state = fgets(line, sizeof line, stat) ? strrchr(line, ')') : NULL;
    fclose(stat);
    return state && state[2] == 'D';
}

int main(int count, char **words) {
    long stuck = argument(count, words, 1, 0), number;
    pthread_t thread;
    CHECK(!pipe(gate), "pipe");
    if (stuck) {
        CHECK(!pthread_create(&thread, NULL, wait_in_vfork, NULL), "thread");
        while (!wrongs && !waits())
            usleep(100);
    }
    say("ready %d", getpid());
    const char *order;
    while ((order = next_order(&number))) {
        if (!strcmp(order, "release")) {
            CHECK(write(gate[1], "x", 1) == 1, "write");
            pthread_join(thread, NULL);
            say("released %ld", (long)released);
            continue;
        }
        for (long i = 0; i < number; i++, calls++)
            CHECK(stuck_function(i) == i + 19, "stuck_function(%ld)", i);
        say("calls %ld", (long)calls);
    }
    return verdict(calls);
}
