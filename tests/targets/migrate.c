// cc: -O2 -g -pthread
// migrate THREADS: at `go N` each thread calls migrate_function N times and moves itself to the
// next CPU that it may use every few calls.
#include "target.h"
#include <pthread.h>
#include <sched.h>

static cpu_set_t allowed;
static int cpus[CPU_SETSIZE], count;
static long calls;
static atomic_long moves;

NOINLINE long migrate_function(long x) { return 7 * x + 2; }

static void *work(void *argument) {
    long moved = 0, start = (long)argument;
    for (long i = 0; i < calls; i++) {
        CHECK(migrate_function(i) == 7 * i + 2, "migrate_function(%ld)", i);
        if (i % 16 == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpus[(start + moved) % count], &one);
            moved += !sched_setaffinity(0, sizeof one, &one);
        }
    }
    moves += moved;
    return NULL;
}

int main(int words, char **word) {
    long threads = argument(words, word, 1, 4), total = 0;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            cpus[count++] = cpu;
    say("ready %d %d", getpid(), count);
    while (next_order(&calls)) {
        pthread_t ids[threads];
        for (long i = 0; i < threads; i++)
            pthread_create(&ids[i], NULL, work, (void *)i);
        for (long i = 0; i < threads; i++)
            pthread_join(ids[i], NULL);
        total += threads * calls;
        say("calls %ld %ld", total, (long)moves);
    }
    CHECK(!total || moves, "no thread ever moved");
    return verdict(total);
}
