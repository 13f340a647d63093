// cc: -O2 -g -pthread
// sleeper THREADS: so many threads that sleep until the end; the main thread obeys `call N` by
// calling sleeper_function.
#include "target.h"
#include <pthread.h>

static atomic_long awake, calls;

NOINLINE long sleeper_function(long x) { return x + 17; }

static void *work(void *argument) {
    awake++;
    for (;;)
        pause();
    return argument;
}

int main(int count, char **words) {
    long threads = argument(count, words, 1, 10), number;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, &small, work, NULL), "thread %ld", i);
    }
    while (!wrongs && awake < threads)
        usleep(100);
    say("ready %d %ld", getpid(), (long)awake);
    while (next_order(&number)) {
        for (long i = 0; i < number; i++, calls++)
            CHECK(sleeper_function(i) == i + 17, "sleeper_function(%ld)", i);
        say("calls %ld", calls);
    }
    return verdict(calls);
}
