// cc: -O2 -g -pthread
// syscalls: at `go N` makes N rounds of system calls through syscalls.S: getpid, fork, vfork and
// clone whose children end with a status of their own, one execve in a forked child, and a read
// that a handled signal without SA_RESTART interrupts, then one with SA_RESTART; the same reads, and the
// return from a handler, by a system call that a probe moves into its copy. Everything is
// checked. Answer: `counts NAME=CALLS ...`, so far, of parent and children together.
#include "target.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

long b021_getpid(void), b021_fork(void), b021_vfork(void);
long b021_read(int, void *, size_t);
long b021_clone(unsigned long, void *, void *, void *, void *);
long b021_execve(const char *, char *const *, char *const *);
long b021_five(void);
void b021_restorer(void);

static long *count;
enum { GETPID, READ, FORK, VFORK, CLONE, EXECVE, FIVE, COUNT };
static const char *const names[COUNT] = {"getpid", "read", "fork", "vfork", "clone", "execve", "five"};
static int pipes[2];
static atomic_int handled;
static int restart;

static void ended(long child, int status) {
    int got = 0;
    CHECK(child > 0, "no child: %ld", child);
    CHECK(waitpid((pid_t)child, &got, 0) == child, "waitpid: %s", strerror(errno));
    CHECK(WIFEXITED(got) && WEXITSTATUS(got) == status, "status %x, not of exit %d", got, status);
}

static void on_signal(int number) {
    (void)number;
    handled++;
    if (restart && write(pipes[1], "x", 1) != 1)
        _exit(9);
}

static void *interrupt(void *argument) {
    pthread_t reader = *(pthread_t *)argument;
    int before = handled;
    while (handled == before) {
        usleep(200);
        pthread_kill(reader, SIGUSR1);
        usleep(200);
    }
    return NULL;
}

// A system call by b021_five, which a jump takes as a whole: it is made from the copy.
static long by_five(long number, long first, void *second, long third) {
    __asm__ volatile("call b021_five" : "+a"(number), "+D"(first), "+S"(second), "+d"(third) : : "rcx", "r8", "r9", "r10", "r11", "memory");
    count[FIVE]++;
    return number;
}

// As sigaction has it, with the function that handlers return to.
struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

static atomic_int returned;

static void on_own_return(int number) {
    (void)number;
    returned++;
}

// A handler that returns by rt_sigreturn out of the copy: everything is as before.
static void return_by_five(void) {
    const unsigned long with_restorer = 0x04000000;
    struct kernel_action action = {on_own_return, with_restorer, b021_restorer, 0};
    CHECK(!syscall(SYS_rt_sigaction, SIGUSR2, &action, NULL, 8), "rt_sigaction: %s", strerror(errno));
    int before = returned;
    long values[4] = {11, 12, 13, 14}, result = SYS_tgkill;
    // In registers across the signal, which comes as the call returns.
    __asm__ volatile("mov 0(%1), %%r12; mov 8(%1), %%r13; mov 16(%1), %%r14; mov 24(%1), %%r15\n\t"
                     "syscall\n\t"
                     "mov %%r12, 0(%1); mov %%r13, 8(%1); mov %%r14, 16(%1); mov %%r15, 24(%1)"
                     : "+a"(result)
                     : "b"(values), "D"((long)getpid()), "S"((long)gettid()), "d"((long)SIGUSR2)
                     : "rcx", "r11", "r12", "r13", "r14", "r15", "memory");
    count[FIVE]++;
    CHECK(!result && returned == before + 1, "tgkill: %ld, %d handlers", result, returned - before);
    CHECK(values[0] == 11 && values[1] == 12 && values[2] == 13 && values[3] == 14, "registers behind a handler");
}

// A read that blocks until a handler has run.
static long interrupted_read(int with_restart, int from_copy) {
    char byte = 0;
    pthread_t thread, self = pthread_self();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = with_restart ? SA_RESTART : 0};
    restart = with_restart;
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&thread, NULL, interrupt, &self);
    long result;
    if (from_copy) {
        result = by_five(SYS_read, pipes[0], &byte, 1);
    } else {
        result = b021_read(pipes[0], &byte, 1);
        count[READ]++;
    }
    pthread_join(thread, NULL);
    return result;
}

static void once(long i) {
    CHECK(b021_getpid() == getpid(), "getpid");
    count[GETPID]++;
    register long number __asm__("rax") = SYS_gettid;
    __asm__ volatile("call b021_five" : "+r"(number) : : "rcx", "r10", "r11", "memory");
    CHECK(number == gettid(), "five: %ld", number);
    count[FIVE]++;
    int status = 1 + (int)(i % 100);
    long child = b021_fork();
    if (!child)
        _exit(status);
    count[FORK]++;
    ended(child, status);
    child = b021_vfork();
    if (!child)
        _exit(status);
    count[VFORK]++;
    ended(child, status);
    child = b021_clone(SIGCHLD, NULL, NULL, NULL, NULL);
    if (!child) {
        long parent = b021_getpid();
        __atomic_fetch_add(&count[GETPID], 1, __ATOMIC_SEQ_CST);
        _exit(parent == getpid() ? status : 0);
    }
    count[CLONE]++;
    ended(child, status);
}

// What later signals wrote.
static void drain(void) {
    char byte;
    struct timespec none = {0, 0};
    fd_set set;
    for (;;) {
        FD_ZERO(&set);
        FD_SET(pipes[0], &set);
        if (pselect(pipes[0] + 1, &set, NULL, NULL, &none, NULL) != 1 || read(pipes[0], &byte, 1) != 1)
            break;
    }
}

static void rarely(void) {
    char *words[] = {"sh", "-c", "exit 42", NULL}, *environment[] = {NULL};
    long child = fork();
    if (!child) {
        __atomic_fetch_add(&count[EXECVE], 1, __ATOMIC_SEQ_CST);
        b021_execve("/bin/sh", words, environment);
        _exit(1);
    }
    ended(child, 42);
    for (int from_copy = 0; from_copy < 2; from_copy++) {
        long result = interrupted_read(0, from_copy);
        CHECK(result == -EINTR, "a read without restart, %d: %ld", from_copy, result);
        result = interrupted_read(1, from_copy);
        CHECK(result == 1, "a read with restart, %d: %ld", from_copy, result);
        drain();
    }
    return_by_five();
}

int main(void) {
    long rounds, total = 0;
    count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pipe(pipes))
        return 9;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++)
            once(i);
        rarely();
        printf("counts");
        for (int i = 0; i < COUNT; i++)
            printf(" b021_%s=%ld", names[i], count[i]);
        say("");
    }
    for (int i = 0; i < COUNT; i++)
        total += count[i];
    return verdict(total);
}
