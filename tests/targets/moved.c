// cc: -O2 -g -pthread
// moved: threads and children that begin on another CPU than their thread block names: at `KIND N`
// makes N of that kind (vfork, own, clone, spawn, thread), pinned so that the CPU always differs;
// each calls moved_function, but those of posix_spawn, which are in libc until they run `true`.
#include "target.h"
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define CALLS 10
#define STACK (64 << 10)

static atomic_long *truth;
static int here, there;
static char fifo[64];
static char *const no_environment[] = {NULL};

NOINLINE long moved_function(long x) {
    atomic_fetch_add(truth, 1);
    return x ^ 0x77;
}

static int calls(void) {
    int wrong = 0;
    for (long i = 0; i < CALLS; i++)
        wrong += moved_function(i) != (i ^ 0x77);
    return wrong;
}

static int pin(pid_t who, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(who, sizeof set, &set);
}

// What a child does on its parent's thread block, which says `here`.
static int child_moves(void *unused) {
    (void)unused;
    return pin(0, there) || calls() ? 4 : 3;
}

static void expect_exit(pid_t child, int code) {
    int status = -1;
    CHECK(child > 0, "no child: %s", strerror(errno));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code, "child ended with %x", status);
}

static NOINLINE void by_vfork(void) {
    pid_t child = vfork();
    if (child == 0)
        _exit(child_moves(NULL));
    expect_exit(child, 3);
}

static NOINLINE void by_own(void) {
    long child;
    __asm__ volatile("mov $58, %%eax\n\tsyscall" : "=a"(child) : : "rcx", "r11", "memory");
    if (child == 0)
        _exit(child_moves(NULL));
    expect_exit(child, 3);
}

static void by_clone(char *stack) {
    int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    expect_exit(clone(child_moves, stack + STACK, flags, NULL), 3);
}

static pid_t find_child(void) {
    char path[300], text[512];
    struct dirent *entry;
    pid_t found = 0;
    DIR *all = opendir("/proc");
    while (!found && all && (entry = readdir(all))) {
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        int file = atoi(entry->d_name) > 0 ? open(path, O_RDONLY) : -1;
        if (file < 0)
            continue;
        ssize_t length = read(file, text, sizeof text - 1);
        close(file);
        text[length > 0 ? length : 0] = 0;
        char *after = strrchr(text, ')');
        char state;
        int parent;
        if (after && sscanf(after + 1, " %c %d", &state, &parent) == 2 && parent == getpid() &&
            state != 'Z')
            found = atoi(entry->d_name);
    }
    if (all)
        closedir(all);
    return found;
}

// The child of posix_spawn waits in its open() for this.
static void *move_spawned(void *unused) {
    pid_t child;
    while (!(child = find_child()))
        sched_yield();
    CHECK(!pin(child, there), "pin %d: %s", child, strerror(errno));
    close(open(fifo, O_WRONLY));
    return unused;
}

static void by_spawn(void) {
    char folder[] = "/tmp/moved-XXXXXX";
    pthread_t mover;
    pid_t child = 0;
    posix_spawn_file_actions_t actions;
    char *const words[] = {"true", NULL};
    CHECK(mkdtemp(folder), "mkdtemp: %s", strerror(errno));
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    CHECK(!mkfifo(fifo, 0600), "mkfifo: %s", strerror(errno));
    pthread_create(&mover, NULL, move_spawned, NULL);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 9, fifo, O_RDONLY, 0);
    CHECK(!posix_spawn(&child, "/bin/true", &actions, NULL, words, no_environment), "posix_spawn");
    expect_exit(child, 0);
    pthread_join(mover, NULL);
    posix_spawn_file_actions_destroy(&actions);
    unlink(fifo);
    rmdir(folder);
}

static void *brief(void *wrong) {
    *(int *)wrong = calls();
    return NULL;
}

// The second one gets the first one's stack and thread block, and the CPU that stands there.
static void by_thread(void) {
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        int wrong = 1;
        CHECK(!pin(0, i ? there : here), "pin: %s", strerror(errno));
        pthread_create(&thread, NULL, brief, &wrong);
        pthread_join(thread, NULL);
        CHECK(!wrong, "the thread's calls");
    }
}

int main(void) {
    int flags = MAP_ANONYMOUS | MAP_PRIVATE;
    truth = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    here = there = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE && there < 0; cpu++)
        if (CPU_ISSET(cpu, &set))
            *(here < 0 ? &here : &there) = cpu;
    say("ready %d %d", getpid(), CPU_COUNT(&set));
    const char *kind;
    long rounds;
    while ((kind = next_order(&rounds))) {
        for (long i = 0; i < rounds; i++) {
            CHECK(!pin(0, here), "pin: %s", strerror(errno));
            if (!strcmp(kind, "vfork"))
                by_vfork();
            else if (!strcmp(kind, "own"))
                by_own();
            else if (!strcmp(kind, "clone"))
                by_clone(stack);
            else if (!strcmp(kind, "spawn"))
                by_spawn();
            else
                by_thread();
        }
        say("truth %ld", *truth);
    }
    return verdict(*truth);
}
