// cc: -O2 -g -pthread
// edges THREADS: every thread calls all functions of edges.S all the time and checks each result.
// At `go N` the threads call each N times more, and nothing else until the next order. Answers:
// `running`, at `go`: `counts NAME=N ...`, the calls made for it.
#include "target.h"
#include <pthread.h>

#define FUNCTIONS(X)                                                                            \
    X(edges_60, 60) X(edges_61, 61) X(edges_62, 62) X(edges_63, 63) X(edges_page_1, 1)          \
    X(edges_page_2, 2) X(edges_page_3, 3)
#define DECLARE(name, add) long name(long);
FUNCTIONS(DECLARE)

static atomic_long rounds;
static atomic_long exact = -1;
static atomic_int stop, turn, done;

static void once(long i) {
#define CALL(name, add) CHECK(name(i) == i + add, #name "(%ld)", i);
    FUNCTIONS(CALL)
}

static void *work(void *argument) {
    int seen = 0;
    for (long i = (long)argument; !stop; i++) {
        if (exact < 0) {
            once(i);
            rounds++;
        } else if (turn != seen) {
            seen = turn;
            for (long j = 0; j < exact; j++)
                once(j);
            done++;
        } else {
            usleep(50);
        }
    }
    return NULL;
}

int main(int count, char **words) {
    long threads = argument(count, words, 1, 8), number;
    pthread_t ids[threads];
    for (long i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, work, (void *)i);
    say("ready %d", getpid());
    for (const char *order; (order = next_order(&number));) {
        if (!strcmp(order, "go")) {
            done = 0;
            exact = number;
            turn++;
            while (done < threads)
                usleep(50);
            printf("counts");
#define TELL(name, add) printf(" %s=%ld", #name, threads * number);
            FUNCTIONS(TELL)
            say("");
        } else if (!strcmp(order, "rest")) {
            // Nothing is called until `go` or `run`.
            exact = 0;
            done = 0;
            turn++;
            while (done < threads)
                usleep(50);
            say("resting");
        } else {
            exact = -1;
            say("running");
        }
    }
    stop = 1;
    for (long i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return verdict(rounds);
}
