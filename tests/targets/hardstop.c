// cc: -O2 -g -pthread
// hardstop: threads that can't be stopped at once. At `vfork` a child of vfork stays until the next
// line, and its parent in the call; at `populate N` a thread maps 64 MB of filled pages N times, a
// single call of many milliseconds each, and calls hardstop_function between. `forever MEGABYTES`: a
// thread does nothing but map and unmap so much, so that it is hardly ever out of a system call.
// Answers: `staying`, then `calls N`; `populating`, then at the end `calls N`.
#include "target.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

static atomic_long calls;

NOINLINE long hardstop_function(long x) { return x - 8; }

static void call(long x) {
    CHECK(hardstop_function(x) == x - 8, "hardstop_function(%ld)", x);
    calls++;
}

static void *populate(void *argument) {
    const size_t size = 64 << 20;
    for (long i = 0; i < (long)argument; i++) {
        char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        CHECK(pages != MAP_FAILED, "no memory");
        munmap(pages, size);
        call(i);
    }
    return NULL;
}

static void *populate_forever(void *megabytes) {
    const size_t size = (size_t)megabytes << 20;
    for (;;) {
        char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        CHECK(pages != MAP_FAILED, "no memory");
        munmap(pages, size);
    }
}

int main(void) {
    long number;
    say("ready %d", getpid());
    for (const char *order; (order = next_order(&number));) {
        if (!strcmp(order, "vfork")) {
            pid_t child = vfork();
            if (!child) {
                say("staying");
                next_order(NULL);
                _exit(5);
            }
            int status = 0;
            CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5, "the child is lost");
            call(1);
        } else if (!strcmp(order, "populate")) {
            pthread_t thread;
            pthread_create(&thread, NULL, populate, (void *)number);
            say("populating");
            pthread_join(thread, NULL);
        } else if (!strcmp(order, "forever")) {
            pthread_t thread;
            pthread_create(&thread, NULL, populate_forever, (void *)number);
            say("populating");
            continue;
        } else {
            for (long i = 0; i < number; i++)
                call(i);
        }
        say("calls %ld", (long)calls);
    }
    return verdict(calls);
}
