// cc: -m32 -nostdlib -static -ffreestanding -fno-pie -no-pie
// small32: a 32-bit program that needs no 32-bit libraries. Writes `ready` and waits.
void _start(void) {
    static const char line[] = "ready\n";
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(4), "b"(1), "c"(line), "d"(6) : "memory");
    for (;;)
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(29) : "memory");
}
