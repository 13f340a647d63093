// cc: -O2 -g -shared -fPIC
// A library that programs load while they run.
__attribute__((noinline, noclone)) int later_library(int value) {
    return value * 5 + 2;
}
