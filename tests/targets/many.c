// cc: -O2 -g
// many: at `go N` calls each of the 3500 functions of many.S N times and checks the sum. Answer:
// `calls N`, of each function, so far.
#include "target.h"

#define FUNCTIONS 3500
extern long (*const many_table[FUNCTIONS])(void);

static long call(long (*function)(void), long value) {
    __asm__ volatile("call *%1" : "+a"(value) : "r"(function) : "cc", "memory");
    return value;
}

int main(void) {
    long rounds, calls = 0;
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++, calls++)
            for (long f = 0; f < FUNCTIONS; f++)
                CHECK(call(many_table[f], i) == (f % 7 ? i + f : i), "many_%ld", f);
        say("calls %ld", calls);
    }
    return verdict(calls);
}
