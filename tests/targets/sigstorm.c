// cc: -O2 -g -pthread
// sigstorm: at `storm N` a thread touches a page that may not be read N times, which a handler of
// SIGSEGV opens; another makes N / 20 children and waits for each; a timer sends SIGALRM all the
// time. Every handler and every round calls sigstorm_function. Answer: `counts segv=N chld=N
// calls=N`, so far; SIGCHLD comes at least once, and each SIGSEGV exactly once.
#include "target.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

static atomic_long segv, chld, alrm, calls;
static char *page;
static long number;

NOINLINE long sigstorm_function(long x) { return x * 5 - 3; }

static void call(long x) {
    CHECK(sigstorm_function(x) == x * 5 - 3, "sigstorm_function(%ld)", x);
    calls++;
}

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    int kept = errno;
    if (signal == SIGSEGV) {
        CHECK(info->si_addr == page, "a fault at %p", info->si_addr);
        if (info->si_addr != page)
            _exit(8);
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
        segv++;
    } else if (signal == SIGCHLD) {
        chld++;
    } else {
        alrm++;
    }
    call(signal);
    errno = kept;
}

static void *fault(void *argument) {
    for (long i = 0; i < number; i++) {
        mprotect(page, 4096, PROT_NONE);
        *(volatile char *)page = (char)i;
        CHECK(*page == (char)i, "a byte is lost");
        call(i);
    }
    return argument;
}

static void *breed(void *argument) {
    for (long i = 0; i < number / 20; i++) {
        int status = 0;
        pid_t child = fork();
        if (!child)
            _exit(7);
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "a child is lost");
        call(i);
    }
    return argument;
}

int main(void) {
    long due = 0;
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (int *signal = (int[]){SIGSEGV, SIGCHLD, SIGALRM, 0}; *signal; signal++)
        sigaction(*signal, &action, NULL);
    say("ready %d", getpid());
    while (next_order(&number)) {
        pthread_t faults, children;
        struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
        setitimer(ITIMER_REAL, &often, NULL);
        pthread_create(&faults, NULL, fault, NULL);
        pthread_create(&children, NULL, breed, NULL);
        pthread_join(faults, NULL);
        pthread_join(children, NULL);
        setitimer(ITIMER_REAL, &never, NULL);
        due += number;
        CHECK(segv == due, "%ld faults of %ld", (long)segv, due);
        CHECK(chld > 0 && alrm > 0, "%ld SIGCHLD, %ld SIGALRM", (long)chld, (long)alrm);
        say("counts segv=%ld chld=%ld calls=%ld", (long)segv, (long)chld, (long)calls);
    }
    return verdict(calls);
}
