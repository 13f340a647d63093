// cc: -O2 -g -pthread
// later [LIBRARY]: what comes to have probes while they are put everywhere. Orders:
//   call N    calls later_function N times: `called TOTAL`
//   exec 0    becomes itself anew: `ready PID`
//   become 0  becomes cat: `became`
//   load 0    loads the library: `loaded`; then
//   use N     calls its later_library N times: `used N`
//   fork N    forks a child that calls N times and ends, and waits for it: `forked`
//   burst N   forks N such children one after the other, each calling once: `forked`
//   orphan 0  goes on in a child, and ends itself: `orphan PID`
// later call N: calls at once, and ends.
#include "target.h"
#include <dlfcn.h>
#include <sys/wait.h>

static long calls;

NOINLINE int later_function(int value) {
    return value * 3 + 1;
}

static void call(long count) {
    for (long i = 0; i < count; i++, calls++)
        CHECK(later_function((int)i) == (int)i * 3 + 1, "later_function(%ld)", i);
}

static void child(long count) {
    pid_t pid = fork();
    if (pid == 0) {
        call(count);
        _exit(wrongs != 0);
    }
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "child: %x", status);
}

int main(int count, char **words) {
    if (count > 2 && !strcmp(words[1], "call")) {
        call(atol(words[2]));
        return wrongs != 0;
    }
    int (*library)(int) = NULL;
    say("ready %d", getpid());
    const char *order;
    long number;
    while ((order = next_order(&number))) {
        if (!strcmp(order, "call")) {
            call(number);
            say("called %ld", calls);
        } else if (!strcmp(order, "exec")) {
            execv("/proc/self/exe", words);
            say("exec failed");
        } else if (!strcmp(order, "become")) {
            say("became");
            execlp("cat", "cat", NULL);
            say("exec failed");
        } else if (!strcmp(order, "load")) {
            void *handle = dlopen(count > 1 ? words[1] : "", RTLD_NOW);
            library = handle ? (int (*)(int))dlsym(handle, "later_library") : NULL;
            say(library ? "loaded" : "load failed");
        } else if (!strcmp(order, "use")) {
            for (long i = 0; library && i < number; i++)
                CHECK(library((int)i) == (int)i * 5 + 2, "later_library(%ld)", i);
            say("used %ld", number);
        } else if (!strcmp(order, "fork")) {
            child(number);
            say("forked");
        } else if (!strcmp(order, "orphan")) {
            if (fork())
                _exit(0);
            say("orphan %d", getpid());
        } else if (!strcmp(order, "burst")) {
            for (long i = 0; i < number; i++)
                child(1);
            say("forked");
        }
    }
    return verdict(calls);
}
