// cc: -O2 -g -pthread -mno-red-zone
// hammer THREADS: every thread calls a function and its direct neighbours all the time and checks
// each result, from the start to the end of input. `calls` tells how often each was called.
#include "target.h"
#include <pthread.h>

int hammer_before(int), hammer_target(int), hammer_zero(int), hammer_after(int);
void hammer_rep_ret(void), hammer_ret(void);

static atomic_long rounds;
static atomic_int stop;

// The two lone rets must leave everything as it is.
static int keep(void (*function)(void), int value) {
    __asm__ volatile("call *%1" : "+a"(value) : "r"(function) : "memory", "cc");
    return value;
}

static void *work(void *argument) {
    long done = 0;
    for (int i = (int)(long)argument; !stop; i = (i + 7) & 0xffffff, done++) {
        CHECK(hammer_before(i) == i + 1, "before(%d)", i);
        CHECK(hammer_target(i) == 2 * i, "target(%d)", i);
        CHECK(hammer_zero(i) == 0, "zero(%d)", i);
        CHECK(keep(hammer_rep_ret, i) == i, "rep_ret(%d)", i);
        CHECK(keep(hammer_ret, i) == i, "ret(%d)", i);
        CHECK(hammer_after(i) == i - 1, "after(%d)", i);
        if (done % 64 == 0)
            atomic_fetch_add_explicit(&rounds, 64, memory_order_relaxed);
    }
    return NULL;
}

int main(int count, char **words) {
    long threads = argument(count, words, 1, 3);
    pthread_t ids[threads];
    for (long i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, work, (void *)i);
    say("ready %d", getpid());
    while (next_order(NULL))
        say("calls %ld", rounds);
    stop = 1;
    for (long i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return verdict(rounds);
}
