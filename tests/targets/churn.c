// cc: -O2 -g -pthread
// churn: from `go` to `stop` threads are made and ended all the time; each calls churn_function a
// few times. `stop` tells the truth once all of them have ended: `truth CALLS THREADS`.
#include "target.h"
#include <pthread.h>

#define MAKERS 3
static atomic_long truth, threads;
static atomic_int stop;

NOINLINE long churn_function(long x) {
    truth++;
    return ~x;
}

static void *brief(void *argument) {
    for (long i = 0; i < 5; i++)
        CHECK(churn_function(i) == ~i, "churn_function(%ld)", i);
    threads++;
    return argument;
}

static void *make(void *argument) {
    while (!stop) {
        pthread_t ids[4];
        for (int i = 0; i < 4; i++)
            pthread_create(&ids[i], NULL, brief, NULL);
        for (int i = 0; i < 4; i++)
            pthread_join(ids[i], NULL);
    }
    return argument;
}

int main(void) {
    pthread_t makers[MAKERS];
    int going = 0;
    say("ready %d", getpid());
    for (;;) {
        const char *order = next_order(NULL);
        int go = order && !strcmp(order, "go");
        if (go && !going) {
            stop = 0;
            for (int i = 0; i < MAKERS; i++)
                pthread_create(&makers[i], NULL, make, NULL);
        } else if (!go && going) {
            stop = 1;
            for (int i = 0; i < MAKERS; i++)
                pthread_join(makers[i], NULL);
        }
        going = go;
        if (!order)
            break;
        say(go ? "going %ld %ld" : "truth %ld %ld", (long)truth, (long)threads);
    }
    CHECK(truth == 5 * threads, "%ld calls in %ld threads", (long)truth, (long)threads);
    return verdict(truth);
}
