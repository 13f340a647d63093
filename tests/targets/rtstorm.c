// cc: -O2 -g -pthread
// rtstorm: a thread calls rtstorm_function all the time. At `storm N` it is sent N queued real-time
// signals, each with its number: every one has to arrive once and in order, and the function's
// results stay right. The handler calls the function too. Answer: `received N`.
#include "target.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

static atomic_long received, calls, handler_calls;
static atomic_int stop;

NOINLINE long rtstorm_function(long x) { return x * 9 + 4; }

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    int kept = errno;
    long due = received++;
    CHECK(info->si_value.sival_int == due, "signal %d, due %ld", info->si_value.sival_int, due);
    CHECK(rtstorm_function(due) == due * 9 + 4, "in the handler");
    handler_calls++;
    errno = kept;
}

static void *work(void *argument) {
    long done = 0;
    for (long i = 0; !stop; i = (i + 1) & 0xffff, done++)
        CHECK(rtstorm_function(i) == i * 9 + 4, "rtstorm_function(%ld)", i);
    calls = done;
    return argument;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    long number, sent = 0;
    say("ready %d", getpid());
    while (next_order(&number)) {
        for (long i = 0; i < number; i++, sent++) {
            union sigval value = {.sival_int = (int)sent};
            int error;
            // The queue is limited; it empties by itself.
            while ((error = pthread_sigqueue(thread, SIGRTMIN, value)) == EAGAIN)
                usleep(50);
            CHECK(!error, "sigqueue: %s", strerror(error));
        }
        for (int i = 0; i < 40000 && received < sent; i++)
            usleep(50);
        CHECK(received == sent, "%ld signals of %ld", (long)received, sent);
        say("received %ld", (long)received);
    }
    stop = 1;
    pthread_join(thread, NULL);
    CHECK(handler_calls == sent, "%ld handlers ran to the end", (long)handler_calls);
    return verdict(calls + handler_calls);
}
