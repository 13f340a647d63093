// cc: -O2 -g -pthread
// execloop: at `go N` becomes itself again N times, by exec from the first thread and from another one in turn, while a
// third calls execloop_function. `done N` at the end; the calls of the last image are checked as well.
#include "target.h"
#include <errno.h>
#include <pthread.h>

static char *program;
static long left, done;
static atomic_int leave;

NOINLINE long execloop_function(long x) { return x + 31; }

// Some images live as long as an attach takes, some not.
static useconds_t life(void) { return 500 + 1000 * (done * 7 % 40); }

static void become(void) {
    char one[32], two[32];
    snprintf(one, sizeof one, "%ld", left - 1);
    snprintf(two, sizeof two, "%ld", done + 1);
    execl(program, program, one, two, (char *)NULL);
    fprintf(stderr, "exec: %s\n", strerror(errno));
    _exit(9);
}

static void *call(void *argument) {
    for (long i = 0; !leave; i++)
        CHECK(execloop_function(i) == i + 31, "execloop_function(%ld)", i);
    return argument;
}

static void *become_elsewhere(void *argument) {
    usleep(life());
    become();
    return argument;
}

int main(int count, char **words) {
    pthread_t caller, other;
    program = words[0];
    left = argument(count, words, 1, 0);
    done = argument(count, words, 2, 0);
    CHECK(!pthread_create(&caller, NULL, call, NULL), "no thread");
    if (left > 0 && left % 2) {
        CHECK(!pthread_create(&other, NULL, become_elsewhere, NULL), "no thread");
        pthread_join(other, NULL);
    }
    if (left > 0) {
        usleep(life());
        become();
    }
    if (count > 1)
        say("done %ld", done);
    else
        say("ready %d", getpid());
    for (const char *order; (order = next_order(&left));)
        if (left > 0)
            become();
    leave = 1;
    pthread_join(caller, NULL);
    return verdict(done + !done);
}
