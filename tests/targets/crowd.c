// cc: -O2 -g -pthread
// crowd THREADS [gone]: at `go N` each thread calls crowd_function(its tid) N times. With `gone` the
// first thread has ended when the target is ready. Answers: `calls N`, of all so far; at `tids` the
// threads' ids.
#include "target.h"
#include <pthread.h>

static long threads;
static atomic_long calls, each, turn, done, sleeping;
static int tids[2000];

NOINLINE long crowd_function(long x) { return x ^ 5; }

static void *work(void *argument) {
    long seen = 0, tid = gettid();
    tids[(long)argument] = (int)tid;
    sleeping++;
    for (;;) {
        while (turn == seen)
            usleep(500);
        seen = turn;
        for (long i = 0; i < each; i++)
            CHECK(crowd_function(tid) == (tid ^ 5), "crowd_function");
        calls += each;
        done++;
    }
    return NULL;
}

static void *obey(void *argument) {
    long number;
    while (sleeping < threads)
        usleep(100);
    // The first thread is gone when it is a zombie.
    if (argument) {
        char path[64], state = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", getpid());
        while (state != 'Z') {
            FILE *file = fopen(path, "r");
            if (!file || fscanf(file, "%*d (crowd) %c", &state) != 1)
                exit(9);
            fclose(file);
        }
    }
    say("ready %d", getpid());
    for (const char *order; (order = next_order(&number));) {
        if (!strcmp(order, "tids")) {
            printf("tids");
            for (long i = 0; i < threads; i++)
                printf(" %d", tids[i]);
            say("");
            continue;
        }
        each = number;
        done = 0;
        turn++;
        while (done < threads)
            usleep(100);
        say("calls %ld", (long)calls);
    }
    exit(verdict(calls));
}

int main(int count, char **words) {
    threads = argument(count, words, 1, 100);
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (long i = 0; i < threads; i++)
        CHECK(!pthread_create(&thread, &small, work, (void *)i), "thread %ld", i);
    if (count > 2) {
        pthread_create(&thread, NULL, obey, words);
        pthread_exit(NULL);
    }
    obey(NULL);
}
