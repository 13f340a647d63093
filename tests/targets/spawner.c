// cc: -O2 -g -pthread
// spawner: at `go N` makes N rounds of posix_spawn, vfork, fork and a thread, and calls
// spawner_function everywhere, in the children too, which share a counter of the truth with it.
#include "target.h"
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

static atomic_long *truth;
static char *const no_environment[] = {NULL};

NOINLINE long spawner_function(long x) {
    atomic_fetch_add(truth, 1);
    return x ^ 0x55;
}

static void call(long x) { CHECK(spawner_function(x) == (x ^ 0x55), "spawner_function(%ld)", x); }

static void *work(void *argument) {
    call((long)argument);
    return argument;
}

static void expect_exit(pid_t child, int code) {
    int status = -1;
    CHECK(child > 0, "no child: %s", strerror(errno));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code, "child ended with %x", status);
}

static void round_of(long i) {
    pid_t child;
    char *const words[] = {"true", NULL};
    call(i);
    CHECK(!posix_spawn(&child, "/bin/true", NULL, NULL, words, no_environment), "posix_spawn");
    expect_exit(child, 0);

    child = vfork();
    if (child == 0)
        _exit(spawner_function(1) == (1 ^ 0x55) ? 3 : 4);
    expect_exit(child, 3);

    child = fork();
    if (child == 0) {
        long first = spawner_function(i);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(spawner_function(i) == first ? 5 : 6);
        int status = 0;
        waitpid(grandchild, &status, 0);
        _exit(first == (i ^ 0x55) && WIFEXITED(status) ? WEXITSTATUS(status) : 7);
    }
    expect_exit(child, 5);

    pthread_t thread;
    pthread_create(&thread, NULL, work, (void *)i);
    pthread_join(thread, NULL);
}

int main(void) {
    truth = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long rounds, done = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++)
            round_of(i);
        done += rounds;
        say("truth %ld", *truth);
    }
    CHECK(*truth == 5 * done, "%ld calls in %ld rounds", *truth, done);
    return verdict(*truth);
}
