// cc: -O2 -g -pthread
// stacks: at `go N` calls stacks_function N times each where the stack has little left: with 384
// bytes above a page that may not be touched (128 of a red zone and 256), on a stack of 2 KiB; and in
// a handler on the smallest alternate stack that the kernel takes, and 640 bytes. Answer:
// `counts stacks_function=N`, so far.
#include "target.h"
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif
#define LEFT 384

static volatile long calls;

// rdi * 3, and keeps rdi in the red zone while it works.
long stacks_function(long);
long stacks_call(long value, void *stack);
__asm__(".pushsection .text\n"
        ".globl stacks_function\n"
        ".type stacks_function, @function\n"
        ".p2align 4\n"
        "stacks_function:\n"
        "  mov %rdi, -128(%rsp)\n"
        "  mov -128(%rsp), %rax\n"
        "  lea (%rax,%rax,2), %rax\n"
        "  ret\n"
        ".size stacks_function, . - stacks_function\n"
        ".p2align 4\n"
        "stacks_call:\n"
        "  push %rbx\n"
        "  mov %rsp, %rbx\n"
        "  mov %rsi, %rsp\n"
        "  call stacks_function\n"
        "  mov %rbx, %rsp\n"
        "  pop %rbx\n"
        "  ret\n"
        ".popsection\n");

static void on_signal(int number) {
    CHECK(stacks_function(number) == 3 * number, "in a handler");
    calls++;
}

// Memory of `size` bytes behind a page that may not be touched.
static char *guarded(size_t size) {
    size_t pages = (size + 4095) / 4096 * 4096;
    char *memory = mmap(NULL, pages + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory, 4096, PROT_NONE);
    return memory + 4096;
}

int main(void) {
    long rounds;
    size_t least = getauxval(AT_MINSIGSTKSZ);
    if (least < 2048)
        least = 2048;
    stack_t alternate = {.ss_size = least + 640};
    alternate.ss_sp = guarded(alternate.ss_size);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    char *small = guarded(2048);
    CHECK(!sigaltstack(&alternate, NULL), "sigaltstack");
    sigaction(SIGUSR1, &action, NULL);
    say("ready %d", getpid());
    while (next_order(&rounds)) {
        for (long i = 0; i < rounds; i++) {
            // The call leaves LEFT bytes below the stack pointer of the function.
            CHECK(stacks_call(i, small + LEFT + 8) == 3 * i, "near the end");
            CHECK(stacks_call(i, small + 2048) == 3 * i, "on a small stack");
            calls += 2;
            raise(SIGUSR1);
        }
        say("counts stacks_function=%ld", calls);
    }
    return verdict(calls);
}
