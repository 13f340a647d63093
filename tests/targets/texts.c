// cc: -O2 -g
// texts: at `go` calls functions with texts, one of them of 20,000 bytes, integers of every width and
// ten arguments, always the same; checks what they return.
#include "target.h"
#include <stdint.h>
#include <string.h>

static const char *const names[] = {"alpha", "beta", "gamma", "beta"};

NOINLINE long named(const char *name, long n) { return (long)strlen(name) + n; }
NOINLINE long mixed(int8_t a, uint8_t b, int32_t c, uint32_t d) { return (long)a + b + c + d; }
NOINLINE long lengthy(const char *text) { return (long)strlen(text); }
NOINLINE long many(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}

int main(void) {
    long rounds = 0;
    say("ready %d", getpid());
    for (const char *order; (order = next_order(NULL));) {
        for (long n = 1; n <= 8; n++) {
            const char *name = names[n % 4];
            long length = named(name, n);
            CHECK(length == (long)strlen(name) + n, "named: %ld", length);
        }
        for (long n = -3; n <= 3; n++) {
            long sum = mixed((int8_t)(n * 40), (uint8_t)(n * 90), (int32_t)(n * 33), (uint32_t)(n * 1000000));
            long due = (int8_t)(n * 40) + (long)(uint8_t)(n * 90) + (int32_t)(n * 33) + (long)(uint32_t)(n * 1000000);
            CHECK(sum == due, "mixed: %ld, due %ld", sum, due);
        }
        for (long n = 1; n <= 3; n++) {
            long sum = many(n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9);
            CHECK(sum == 55 * n + 330, "many: %ld of %ld", sum, n);
        }
        static char text[20001];
        memset(text, 'x', 20000);
        long length = lengthy(text);
        CHECK(length == 20000, "lengthy: %ld", length);
        rounds++;
        say("rounds %ld", rounds);
    }
    return verdict(rounds);
}
