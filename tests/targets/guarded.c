// cc: -O2 -g
// guarded STATE: gets into a state that makes it hard to probe, then calls guarded_function all
// the time until the end of input. States: plain, mdwe (no memory may become executable), space
// (its limit of addresses is reached), mappings (its limit of mappings is reached), undumpable
// (gives up being dumpable at the first order).
#include "target.h"
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

NOINLINE long guarded_function(long x) { return 7 * x + 1; }

static int limit_space(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1)
        return -1;
    fclose(file);
    struct rlimit limit = {.rlim_cur = pages * 4096, .rlim_max = pages * 4096};
    return setrlimit(RLIMIT_AS, &limit);
}

// Neighbours of different protection can't become one mapping.
static int use_all_mappings(void) {
    for (int i = 0; i < 2000000; i++)
        if (mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            return errno == ENOMEM ? 0 : -1;
    return -1;
}

int main(int count, char **words) {
    const char *state = count > 1 ? words[1] : "plain";
    setvbuf(stdin, NULL, _IONBF, 0);
    static char out[256];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    int bad = 0;
    if (!strcmp(state, "mdwe"))
        bad = prctl(PR_SET_MDWE, 1, 0, 0, 0);
    else if (!strcmp(state, "space"))
        bad = limit_space();
    else if (!strcmp(state, "mappings"))
        bad = use_all_mappings();
    if (bad) {
        say("can't: %s", strerror(errno));
        return 2;
    }
    say("ready %d %s", getpid(), state);
    long calls = 0;
    for (;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        for (int i = 0; i < 1000; i++, calls++)
            CHECK(guarded_function(i) == 7 * i + 1, "guarded_function(%d)", i);
        if (poll(&input, 1, 0) <= 0)
            continue;
        if (!next_order(NULL))
            break;
        if (!strcmp(state, "undumpable"))
            CHECK(!prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl: %s", strerror(errno));
        say("calls %ld", calls);
    }
    return verdict(calls);
}
