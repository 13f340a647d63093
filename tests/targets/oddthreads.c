// cc: -O2 -g -pthread -fno-stack-protector
// oddthreads: at `go N` makes N rounds of children that no C library makes: threads by clone()
// without a thread block of their own, threads with a blank one, a vfork by its own system call,
// and beside it a thread that ends by pthread_exit. Each calls odd_function in a loop, and so
// does its parent meanwhile.
#include "target.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CALLS 2000
#define WAIT 0 // FUTEX_WAIT; musl has no header for it
#define STACK (256 << 10)
#define THREAD (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)

static atomic_long *truth;
static char *stack, *block;
static atomic_int alive;

NOINLINE long odd_function(long x) {
    atomic_fetch_add_explicit(truth, 1, memory_order_relaxed);
    return x ^ 0x33;
}

static NOINLINE int loop(void *unused) {
    (void)unused;
    long wrong = 0;
    for (long i = 0; i < CALLS; i++)
        wrong += odd_function(i) != (i ^ 0x33);
    return wrong != 0;
}

static void *loop_and_exit(void *unused) {
    pthread_exit((void *)(long)loop(unused));
}

// The kernel clears `alive` when the thread is gone and its stack is free again.
static void clone_thread(int flags) {
    alive = 1;
    int child = clone(loop, stack + STACK, THREAD | CLONE_CHILD_CLEARTID | flags, NULL, NULL,
                      block + STACK / 2, &alive);
    CHECK(child > 0, "clone: %s", strerror(errno));
    CHECK(!loop(NULL), "the parent's calls");
    while (child > 0 && alive)
        syscall(SYS_futex, &alive, WAIT, alive, NULL, NULL, 0);
}

// The child must not return through frames that its parent still uses: it only calls and exits.
static NOINLINE void own_vfork(void) {
    long child;
    __asm__ volatile("mov $58, %%eax\n\tsyscall" : "=a"(child) : : "rcx", "r11", "memory");
    if (child == 0)
        _exit(loop(NULL) ? 4 : 3);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3,
          "vfork child ended with %x", status);
}

int main(void) {
    int flags = MAP_ANONYMOUS | MAP_PRIVATE;
    truth = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    block = mmap(NULL, STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    long rounds, done = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++) {
            clone_thread(0);
            clone_thread(CLONE_SETTLS);
            pthread_t thread;
            void *wrong = NULL;
            pthread_create(&thread, NULL, loop_and_exit, NULL);
            own_vfork();
            CHECK(!loop(NULL), "the parent's calls");
            pthread_join(thread, &wrong);
            CHECK(!wrong, "the thread's calls");
        }
        done += rounds;
        say("truth %ld", *truth);
    }
    CHECK(*truth == 7 * CALLS * done, "%ld calls in %ld rounds", *truth, done);
    return verdict(*truth);
}
