// cc: -O2 -g -pthread
// restartable THREADS: at `go N` each thread adds N times one to the counter of the CPU that it is on, by a restartable
// sequence (rseq) without a lock, while it moves from CPU to CPU. `sum TOTAL`; all additions must be there. Where a thread
// has no rseq area the fact is 0.
#include "target.h"
#include <pthread.h>
#include <sched.h>
#include <stddef.h>

#define MOST_CPUS 1024

// Of the kernel's ABI.
struct area {
    unsigned cpu_id_start, cpu_id;
    unsigned long cs;
};

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

static struct counter {
    long value;
    char apart[56];
} counters[MOST_CPUS];
static atomic_long aborts;

// One more in the counter of this CPU; 0 where the sequence was aborted: nothing was added.
__asm__(".pushsection .text.restartable_add, \"ax\", @progbits\n"
        ".globl restartable_add\n"
        ".type restartable_add, @function\n"
        ".p2align 4\n"
        "restartable_add:\n" // rdi: the counters, rsi: the rseq area
        "   leaq    3f(%rip), %rax\n"
        "   movq    %rax, 8(%rsi)\n"
        "1: movl    4(%rsi), %ecx\n"
        "   shlq    $6, %rcx\n"
        "   addq    %rdi, %rcx\n"
        "   movq    (%rcx), %rdx\n"
        "   addq    $1, %rdx\n"
        "   nopw    0(%rax,%rax,1)\n"
        "   nopw    0(%rax,%rax,1)\n"
        "   movq    %rdx, (%rcx)\n"
        "2: movl    $1, %eax\n"
        "   ret\n"
        "   .byte   0x0f, 0xb9, 0x3d\n" // ud1 with the signature, so that it decodes
        "   .long   0x53053053\n"
        "4: xorl    %eax, %eax\n"
        "   nopw    0(%rax,%rax,1)\n"
        "   xorl    %eax, %eax\n"
        "   ret\n"
        ".size restartable_add, . - restartable_add\n"
        ".popsection\n"
        ".pushsection __rseq_cs, \"aw\"\n"
        ".p2align 5\n"
        "3: .long   0, 0\n"
        "   .quad   1b, 2b - 1b, 4b\n"
        ".popsection\n"
        ".pushsection __rseq_cs_ptr_array, \"aw\"\n"
        "   .quad   3b\n"
        ".popsection\n");
int restartable_add(struct counter *counters, struct area *area);

static long each;
static int cpus;

static struct area *area(void) {
    char *thread;
    __asm__("movq %%fs:0, %0" : "=r"(thread));
    return (struct area *)(thread + __rseq_offset);
}

static void *work(void *argument) {
    for (long i = 0; i < each; i++) {
        while (!restartable_add(counters, area()))
            aborts++;
        if (i % 512 == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET((int)((i / 512 + (long)argument) % cpus), &one);
            sched_setaffinity(0, sizeof one, &one);
        }
    }
    return NULL;
}

int main(int count, char **words) {
    long threads = argument(count, words, 1, 3), number, due = 0;
    cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int able = &__rseq_size && __rseq_size > 0;
    say("ready %d %d", getpid(), able);
    while (next_order(&number)) {
        each = able ? number : 0;
        pthread_t all[64];
        for (long i = 0; i < threads && i < 64; i++)
            CHECK(!pthread_create(&all[i], NULL, work, (void *)i), "thread %ld", i);
        for (long i = 0; i < threads && i < 64; i++)
            pthread_join(all[i], NULL);
        due += each * threads;
        long sum = 0;
        for (int i = 0; i < MOST_CPUS; i++)
            sum += counters[i].value;
        CHECK(sum == due, "%ld of %ld", sum, due);
        say("sum %ld aborts %ld", sum, (long)aborts);
    }
    return verdict(due);
}
