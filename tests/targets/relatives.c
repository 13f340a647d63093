// cc: -O2 -g -pthread
// relatives: processes in every state that a list can show. Facts: their ids: one with odd arguments, one whose first
// thread has ended while another sleeps, a zombie, one with a name like fields of `stat`, nice and with three threads, one
// without arguments at all; and a child of each of the first two. They stay until the end of input.
#include "target.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static atomic_int *ready;
static pid_t found[16];
static int count;

static void *sleeps(void *unused) {
    (void)unused;
    for (;;)
        pause();
}

// The kernel ends a child when the thread that made it ends.
static void with_child(int place);

static void *has_child(void *unused) {
    with_child(2);
    return sleeps(unused);
}

static void start(pthread_t *thread) {
    if (pthread_create(thread, NULL, sleeps, NULL))
        _exit(1);
}

static void stay(void) {
    atomic_fetch_add(ready, 1);
    for (;;)
        pause();
}

static pid_t child(void) {
    pid_t parent = getpid(), pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return pid;
}

// Keeps the pid of a grandchild where the parent finds it.
static void with_child(int place) {
    pid_t pid = child();
    if (!pid)
        stay();
    atomic_store(ready + place, pid);
}

int main(int argc, char **argv) {
    if (argc > 1) { // started again with odd arguments
        int file = atoi(argv[1]);
        ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        with_child(1);
        stay();
    }
    int file = memfd_create("ready", 0);
    if (file < 0 || ftruncate(file, 4096))
        return 1;
    ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

    if (!(found[count++] = child())) {
        char number[16];
        snprintf(number, sizeof number, "%d", file);
        execl("/proc/self/exe", "odd", number, "two words", "", "tab\tand\nline", "\xc3\xa9\xff\x1b[31m", "\xe4\xb8\xad", "", NULL);
        _exit(1);
    }
    if (!(found[count++] = child())) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, has_child, NULL))
            _exit(1);
        atomic_fetch_add(ready, 1);
        pthread_exit(NULL);
    }
    if (!(found[count++] = child())) {
        atomic_fetch_add(ready, 1);
        _exit(0);
    }
    if (!(found[count++] = child())) {
        pthread_t threads[2];
        start(threads);
        start(threads + 1);
        prctl(PR_SET_NAME, "x) R 1 (y");
        setpriority(PRIO_PROCESS, 0, 7);
        stay();
    }
    if (!(found[count++] = child())) {
        // As some programs do with the memory of their arguments: all of it zero.
        memset(argv[0], 0, strlen(argv[0]));
        stay();
    }
    while (atomic_load(ready) < 7)
        usleep(1000);
    found[count++] = atomic_load(ready + 1);
    found[count++] = atomic_load(ready + 2);
    printf("ready %d", getpid());
    for (int i = 0; i < count; i++)
        printf(" %d", found[i]);
    say("");
    long stays = 0;
    while (next_order(NULL))
        say("staying %ld", ++stays);
    for (int i = 0; i < count; i++)
        kill(found[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    return verdict(count);
}
