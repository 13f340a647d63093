// cc: -O2 -g -pthread
// runner THREADS: so many threads that run all the time and call runner_function; at the end of
// input the exact number of calls is told.
#include "target.h"
#include <pthread.h>

static atomic_long running, calls;
static atomic_int stop;

NOINLINE long runner_function(long x) { return 5 * x - 2; }

static void *work(void *argument) {
    long done = 0;
    running++;
    for (long i = 0; !stop; i = (i + 1) & 0xffff, done++)
        CHECK(runner_function(i) == 5 * i - 2, "runner_function(%ld)", i);
    calls += done;
    return argument;
}

int main(int count, char **words) {
    long threads = argument(count, words, 1, 4);
    pthread_t ids[threads];
    for (long i = 0; i < threads; i++)
        CHECK(!pthread_create(&ids[i], NULL, work, NULL), "thread %ld", i);
    while (!wrongs && running < threads)
        usleep(100);
    say("ready %d %ld", getpid(), (long)running);
    while (next_order(NULL))
        say("running %ld", running);
    stop = 1;
    for (long i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return verdict(calls);
}
