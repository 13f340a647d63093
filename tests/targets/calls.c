// cc: -O2 -g -pthread
// calls THREADS CALLS: at `go` each of the threads calls f, g and h so many times; all results
// and the exact number of calls are checked.
#include "target.h"
#include <pthread.h>

static atomic_long called[3];
static long calls;

NOINLINE long f(long x) { return 3 * x + 1; }
NOINLINE long g(long x, long y) { return x * y - 7; }
NOINLINE long h(void) {
    static atomic_long next;
    return atomic_fetch_add(&next, 1);
}

static void *work(void *argument) {
    long sum = 0, due = 0, last = -1;
    for (long i = 0; i < calls; i++) {
        sum += f(i);
        due += 3 * i + 1;
        sum += g(i, i + 1);
        due += i * (i + 1) - 7;
        long now = h();
        CHECK(now > last, "h: %ld after %ld", now, last);
        last = now;
    }
    CHECK(sum == due, "sum %ld, due %ld", sum, due);
    for (int i = 0; i < 3; i++)
        atomic_fetch_add(&called[i], calls);
    return argument;
}

int main(int count, char **words) {
    long threads = argument(count, words, 1, 2);
    calls = argument(count, words, 2, 1000);
    long total = 0;
    say("ready %d", getpid());
    for (const char *order; (order = next_order(NULL));) {
        pthread_t ids[threads];
        for (long i = 0; i < threads; i++)
            pthread_create(&ids[i], NULL, work, NULL);
        for (long i = 0; i < threads; i++)
            pthread_join(ids[i], NULL);
        total += threads * calls;
        say("calls %ld %ld %ld", called[0], called[1], called[2]);
    }
    CHECK(h() == total, "h was entered another number of times than %ld", total);
    return verdict(total);
}
