// cc: -O2 -g -fno-omit-frame-pointer -Wl,--export-dynamic
// unwinder: unwinder_first begins with a call to unwinder_inner, which looks at its backtrace. At
// `go N` does so N times; at `stay` stays in unwinder_inner until the next line, so that a debugger
// can look. Answers: `calls N`, `staying N`.
#include "target.h"
#include <execinfo.h>

void unwinder_first(void);
extern char unwinder_return[];
static int stay;
static long calls;

__asm__(".pushsection .text\n"
        ".globl unwinder_first, unwinder_return\n"
        ".type unwinder_first, @function\n"
        ".p2align 4\n"
        "unwinder_first:\n"
        "  .cfi_startproc\n"
        "  call unwinder_inner\n"
        "unwinder_return:\n"
        "  ret\n"
        "  .cfi_endproc\n"
        ".size unwinder_first, . - unwinder_first\n"
        ".popsection\n");

__attribute__((force_align_arg_pointer)) NOINLINE void unwinder_inner(void) {
    void *frames[16];
    int depth = backtrace(frames, 16), found = 0;
    calls++;
    for (int i = 0; i < depth; i++)
        found += frames[i] == (void *)unwinder_return;
    CHECK(found == 1 && depth >= 4, "%d frames, the caller %d times", depth, found);
    CHECK(__builtin_return_address(0) == (void *)unwinder_return, "another return address");
    if (stay) {
        say("staying %ld", calls);
        next_order(NULL);
    }
}

int main(void) {
    long number;
    say("ready %d", getpid());
    for (const char *order; (order = next_order(&number));) {
        stay = !strcmp(order, "stay");
        for (long i = 0; i < (stay ? 1 : number); i++)
            unwinder_first();
        say("calls %ld", calls);
    }
    return verdict(calls);
}
