// cc: -O2 -g -pthread
// hiddenvfork: at `go N` makes N vfork children by system calls in a form that no search for them
// knows for sure, with a thread at work beside; each calls hidden_function in a loop.
#include "target.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define CALLS 2000

static atomic_long *truth;

NOINLINE long hidden_function(long x) {
    atomic_fetch_add_explicit(truth, 1, memory_order_relaxed);
    return x ^ 0x66;
}

static void *loop(void *unused) {
    (void)unused;
    long wrong = 0;
    for (long i = 0; i < CALLS; i++)
        wrong += hidden_function(i) != (i ^ 0x66);
    return (void *)wrong;
}

static NOINLINE void hidden_vfork(void) {
    long child;
    __asm__ volatile("mov $58, %%eax\n\tnop\n\tsyscall" : "=a"(child) : : "rcx", "r11", "memory");
    if (child == 0)
        _exit(loop(NULL) ? 4 : 3);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3,
          "vfork child ended with %x", status);
}

int main(void) {
    truth = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long rounds, done = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++) {
            pthread_t thread;
            void *wrong = NULL;
            pthread_create(&thread, NULL, loop, NULL);
            hidden_vfork();
            pthread_join(thread, &wrong);
            CHECK(!wrong, "the thread's calls");
        }
        done += rounds;
        say("truth %ld", *truth);
    }
    CHECK(*truth == 2 * CALLS * done, "%ld calls in %ld rounds", *truth, done);
    return verdict(*truth);
}
