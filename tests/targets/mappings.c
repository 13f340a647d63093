// cc: -O2 -g
// mappings N: a process with N mappings that are no code: shared memory without a file, each apart from the next. Any ->
// `mappings N`.
#include "target.h"
#include <sys/mman.h>

int main(int argc, char **argv) {
    long wanted = argument(argc, argv, 1, 1000), made = 0;
    for (; made < wanted; made++) {
        // Turns of protection keep the kernel from joining them.
        int protection = made % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
        if (mmap(NULL, 4096, protection, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            break;
    }
    say("ready %d %ld", getpid(), made);
    while (next_order(NULL))
        say("mappings %ld", made);
    return verdict(made);
}
