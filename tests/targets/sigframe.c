// cc: -O2 -g -pthread -mno-red-zone
// sigframe: at `stay` a thread goes into a signal handler that interrupted it two bytes behind the
// start of sigframe_function, and stays there until `leave`; then the function's result is
// checked. Meanwhile that address lies nowhere but in the signal frame.
#include "target.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

static const size_t SIZE = 4 << 20;
static char *buffer;
static atomic_int wanted, in_handler, leave, stop;
static atomic_long calls, stays;

// As windowspin_2: a thread stands at the repeated load.
void sigframe_function(void);
__asm__(".pushsection .text\n"
        ".globl sigframe_function\n"
        ".type sigframe_function, @function\n"
        ".p2align 4\n"
        "sigframe_function:\n"
        "  .byte 0x66, 0x90\n"
        "  rep lodsb\n"
        "  nopl (%rax)\n"
        "  mov %rsi, %rax\n"
        "  ret\n"
        ".size sigframe_function, . - sigframe_function\n"
        ".popsection\n");

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    ucontext_t *frame = context;
    if ((char *)frame->uc_mcontext.gregs[REG_RIP] != (char *)sigframe_function + 2)
        return;
    // Once for each order: one more signal may be on its way.
    if (!atomic_exchange(&wanted, 0))
        return;
    leave = 0;
    in_handler = 1;
    while (!leave)
        usleep(100);
    in_handler = 0;
}

static void *work(void *argument) {
    while (!stop) {
        char *from = buffer, *end;
        size_t left = SIZE;
        __asm__ volatile("call *%3"
                         : "=a"(end), "+S"(from), "+c"(left)
                         : "r"(sigframe_function)
                         : "memory", "cc");
        calls++;
        CHECK(end == buffer + SIZE && from == end && left == 0, "wrong after a signal");
    }
    return argument;
}

int main(void) {
    buffer = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    say("ready %d", getpid());
    for (const char *order; (order = next_order(NULL));) {
        if (!strcmp(order, "stay")) {
            // A patched window is left unseen: after a while there is nothing to stay in.
            wanted = 1;
            for (int i = 0; i < 2000 && !in_handler; i++) {
                pthread_kill(thread, SIGUSR1);
                usleep(500);
            }
            // Either nobody stays, or somebody does for good.
            if (!atomic_exchange(&wanted, 0))
                while (!in_handler)
                    usleep(100);
            stays += in_handler;
            say(in_handler ? "staying %ld" : "elsewhere %ld", calls);
        } else if (!strcmp(order, "leave")) {
            leave = 1;
            long before = calls;
            while (in_handler || calls == before)
                usleep(100);
            say("left %ld", calls);
        } else {
            say("calls %ld", calls);
        }
    }
    leave = 1;
    stop = 1;
    pthread_join(thread, NULL);
    return verdict(stays);
}
