// The lines that every target speaks: `ready PID ...` first, then one answer an order, and at the
// end of input a verdict, `ok ...` or `WRONG ...`. Whoever starts a target finds it in one state
// until the first order, so that a tracer can attach before anything is counted.
#ifndef TARGET_H
#define TARGET_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

static atomic_long wrongs;

static inline void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

// The first few are told on standard error; all are counted for the verdict.
#define CHECK(condition, ...)                                   \
    do {                                                        \
        if (!(condition) && atomic_fetch_add(&wrongs, 1) < 5) { \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);     \
            fprintf(stderr, __VA_ARGS__);                       \
            fputc('\n', stderr);                                \
        }                                                       \
    } while (0)

// The word of the next order; its number, where it has one, goes to `number`. NULL at the end.
static inline const char *next_order(long *number) {
    static char line[256], word[64];
    if (!fgets(line, sizeof line, stdin))
        return NULL;
    long given = 0;
    word[0] = 0;
    sscanf(line, "%63s %ld", word, &given);
    if (number)
        *number = given;
    return word;
}

// Says `ok TOTAL` or `WRONG COUNT`; the result of main.
static inline int verdict(long total) {
    long count = atomic_load(&wrongs);
    if (count)
        say("WRONG %ld", count);
    else
        say("ok %ld", total);
    return count != 0;
}

static inline long argument(int count, char **words, int index, long otherwise) {
    return index < count ? atol(words[index]) : otherwise;
}

#endif
