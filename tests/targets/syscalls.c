// cc: -O2 -g -pthread
// syscalls: at `go N` makes N rounds of system calls through syscalls.S: getpid, fork, vfork and
// clone whose children end with a status of their own, one execve in a forked child, and a read
// that a handled signal without SA_RESTART interrupts, then one with SA_RESTART. Everything is
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

// A read that blocks until a handler has run.
static long interrupted_read(int with_restart) {
    char byte = 0;
    pthread_t thread, self = pthread_self();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = with_restart ? SA_RESTART : 0};
    restart = with_restart;
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&thread, NULL, interrupt, &self);
    long result = b021_read(pipes[0], &byte, 1);
    count[READ]++;
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

static void rarely(void) {
    char *words[] = {"sh", "-c", "exit 42", NULL}, *environment[] = {NULL};
    long child = fork();
    if (!child) {
        __atomic_fetch_add(&count[EXECVE], 1, __ATOMIC_SEQ_CST);
        b021_execve("/bin/sh", words, environment);
        _exit(1);
    }
    ended(child, 42);
    long result = interrupted_read(0);
    CHECK(result == -EINTR, "a read without restart: %ld", result);
    result = interrupted_read(1);
    CHECK(result == 1, "a read with restart: %ld", result);
    // What later signals wrote.
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
