// cc: -O2 -g -pthread -mno-red-zone
// windowspin: five threads, each of which stands nearly always at another byte (0 to 4) of the
// first five of its function. Every result is checked. `calls` tells the calls of each function.
#include "target.h"
#include <pthread.h>
#include <sys/mman.h>

#define FUNCTIONS 5
static const size_t SIZE = 4 << 20;

#define DECLARE(n) void windowspin_##n(void);
DECLARE(0) DECLARE(1) DECLARE(2) DECLARE(3) DECLARE(4)

static void (*const functions[FUNCTIONS])(void) = {windowspin_0, windowspin_1, windowspin_2,
                                                   windowspin_3, windowspin_4};
static atomic_long calls[FUNCTIONS];
static atomic_int stop;
static char *buffer;

static void *work(void *argument) {
    long index = (long)argument;
    while (!stop) {
        char *from = buffer, *end;
        size_t left = SIZE;
        __asm__ volatile("call *%3"
                         : "=a"(end), "+S"(from), "+c"(left)
                         : "r"(functions[index])
                         : "memory", "cc");
        calls[index]++;
        CHECK(end == buffer + SIZE && from == end && left == 0, "windowspin_%ld", index);
    }
    return NULL;
}

int main(void) {
    buffer = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t ids[FUNCTIONS];
    for (long i = 0; i < FUNCTIONS; i++)
        pthread_create(&ids[i], NULL, work, (void *)i);
    say("ready %d", getpid());
    while (next_order(NULL))
        say("calls %ld %ld %ld %ld %ld", calls[0], calls[1], calls[2], calls[3], calls[4]);
    stop = 1;
    long total = 0;
    for (long i = 0; i < FUNCTIONS; i++) {
        pthread_join(ids[i], NULL);
        total += calls[i];
    }
    return verdict(total);
}
