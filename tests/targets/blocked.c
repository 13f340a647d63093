// cc: -O2 -g -pthread
// blocked MODE: one thread is blocked in a system call. At `wake` it is woken by what ends this
// call, and has to acknowledge exactly one wake-up: `woken N`, or `LOST N` when it does not come.
// A call that ends by itself, or with EINTR where no signal was sent, is wrong. The sleeping modes
// end by themselves; `wake` waits for the next end, and the time slept is checked. In the modes
// epoll_wait, epoll_pwait, semop and sigtimedwait the kernel does not restart a call that a
// stop has interrupted: who stops the thread has to see to it.
#include "target.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

static const long SLEEP_NS = 20 * 1000 * 1000;

static const char *mode;
static pthread_t sleeper;
static pid_t sleeper_tid;
static int ends[2], listener, epoll, semaphore;
static struct sockaddr_un address;
static socklen_t address_size;
static atomic_int word;
static atomic_long sent, kicks, handled, woken;
static sigset_t waiting_mask;

static int is(const char *name) { return !strcmp(mode, name); }
static int by_signal(void) { return is("sigsuspend") || is("pause"); }
static int by_time(void) { return is("nanosleep") || is("clock_nanosleep"); }

static void on_signal(int number) {
    (void)number;
    handled++;
}

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000l + now.tv_nsec;
}

// Blocks once; says with CHECK whether the call ended as it should.
static void block(void) {
    char byte;
    if (by_signal()) {
        int result = is("pause") ? pause() : sigsuspend(&waiting_mask);
        CHECK(result == -1 && errno == EINTR, "%s: %d, %s", mode, result, strerror(errno));
    } else if (is("read")) {
        ssize_t got = read(ends[0], &byte, 1);
        CHECK(got == 1, "read: %zd, %s", got, strerror(errno));
    } else if (is("ppoll")) {
        struct pollfd one = {.fd = ends[0], .events = POLLIN};
        int got = ppoll(&one, 1, NULL, NULL);
        CHECK(got == 1, "ppoll: %d, %s", got, strerror(errno));
        CHECK(read(ends[0], &byte, 1) == 1, "nothing to read after ppoll");
    } else if (is("epoll_pwait")) {
        struct epoll_event event;
        sigset_t none;
        sigemptyset(&none);
        int got = epoll_pwait(epoll, &event, 1, -1, &none);
        CHECK(got == 1, "epoll_pwait: %d, %s", got, strerror(errno));
        CHECK(read(ends[0], &byte, 1) == 1, "nothing to read after epoll_pwait");
    } else if (is("poll")) {
        struct pollfd one = {.fd = ends[0], .events = POLLIN};
        int got = poll(&one, 1, -1);
        CHECK(got == 1, "poll: %d, %s", got, strerror(errno));
        CHECK(read(ends[0], &byte, 1) == 1, "nothing to read after poll");
    } else if (is("select")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(ends[0], &set);
        int got = select(ends[0] + 1, &set, NULL, NULL, NULL);
        CHECK(got == 1, "select: %d, %s", got, strerror(errno));
        CHECK(read(ends[0], &byte, 1) == 1, "nothing to read after select");
    } else if (is("epoll_wait")) {
        struct epoll_event event;
        int got = epoll_wait(epoll, &event, 1, -1);
        CHECK(got == 1, "epoll_wait: %d, %s", got, strerror(errno));
        CHECK(read(ends[0], &byte, 1) == 1, "nothing to read after epoll_wait");
    } else if (is("sigtimedwait")) {
        struct timespec long_time = {.tv_sec = 1000};
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        int got = sigtimedwait(&set, NULL, &long_time);
        CHECK(got == SIGUSR1, "sigtimedwait: %d, %s", got, strerror(errno));
    } else if (is("semop")) {
        struct sembuf down = {.sem_op = -1};
        int got = semop(semaphore, &down, 1);
        // The end: the semaphore has been removed.
        while (got < 0 && errno == EIDRM)
            pause();
        CHECK(got == 0, "semop: %d, %s", got, strerror(errno));
    } else if (is("futex")) {
        // A value that has changed already is a wake-up too; the FUTEX_WAKE that belongs to it is
        // still to come then, and may end a later wait.
        static long owed;
        for (;;) {
            long result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
            CHECK(result == 0 || errno == EAGAIN, "futex: %ld, %s", result, strerror(errno));
            if (word == 1) {
                owed += result != 0;
                break;
            }
            CHECK(owed-- > 0, "futex: woken by nobody");
        }
        word = 0;
    } else if (is("accept")) {
        int peer = accept(listener, NULL, NULL);
        CHECK(peer >= 0, "accept: %s", strerror(errno));
        close(peer);
    } else {
        struct timespec span = {.tv_nsec = SLEEP_NS}, left = {0};
        long start = now_ns();
        int result = is("nanosleep") ? nanosleep(&span, &left)
                                     : -clock_nanosleep(CLOCK_MONOTONIC, 0, &span, &left);
        long slept = now_ns() - start;
        CHECK(result == 0, "%s: %d, %s", mode, result, strerror(errno));
        CHECK(slept >= SLEEP_NS, "%s: only %ld ns", mode, slept);
        CHECK(slept < SLEEP_NS + 1000000000l, "%s: %ld ns, far too long", mode, slept);
    }
}

static void *work(void *argument) {
    sleeper_tid = gettid();
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(is("pause") ? SIG_UNBLOCK : SIG_BLOCK, &blocked, NULL);
    for (;;) {
        block();
        long number = ++woken;
        if (!by_time())
            CHECK(number <= sent, "%s: %ld wake-ups, %ld sent", mode, number, (long)sent);
        if (by_signal())
            CHECK(handled == number + kicks, "%s: %ld signals, %ld ends", mode, (long)handled, number);
    }
    return argument;
}

// A signal that comes just before pause() is lost by the program's own fault: wait until the
// thread is inside, as the kernel sees it. sigsuspend has no such gap, nor have the others.
static void wait_until_in_pause(void) {
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", sleeper_tid);
    for (int i = 0; i < 100000; i++) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = file < 0 ? 0 : read(file, text, sizeof text - 1);
        if (file >= 0)
            close(file);
        text[size < 0 ? 0 : size] = 0;
        if (atoi(text) == SYS_pause && text[0] != 'r')
            return;
        usleep(50);
    }
    CHECK(0, "the thread never got into pause");
}

// Whoever stops a thread inside pause() by whatever means makes the kernel issue the call again, and a signal whose
// handler runs just before that instruction ends no pause(): the gap is the call's own. Then it is kicked once more. The
// handler must have run: no signal is lost.
static int fell_into_the_gap(void) {
    if (!is("pause") || handled != sent + kicks)
        return 0;
    kicks++;
    pthread_kill(sleeper, SIGUSR1);
    return 1;
}

static void wake(void) {
    sent++;
    if (by_signal()) {
        if (is("pause"))
            wait_until_in_pause();
        pthread_kill(sleeper, SIGUSR1);
    } else if (is("sigtimedwait")) {
        pthread_kill(sleeper, SIGUSR1);
    } else if (is("semop")) {
        struct sembuf up = {.sem_op = 1};
        CHECK(!semop(semaphore, &up, 1), "semop: %s", strerror(errno));
    } else if (is("futex")) {
        word = 1;
        syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    } else if (is("accept")) {
        int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(!connect(peer, (void *)&address, address_size), "connect: %s", strerror(errno));
        close(peer);
    } else if (!by_time()) {
        CHECK(write(ends[1], "x", 1) == 1, "write: %s", strerror(errno));
    }
}

static void prepare(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &waiting_mask);
    sigdelset(&waiting_mask, SIGUSR1);
    CHECK(!pipe2(ends, O_CLOEXEC), "pipe: %s", strerror(errno));
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event);
    // An abstract address that the kernel chooses: no file, no clash.
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sun_family = AF_UNIX;
    bind(listener, (void *)&address, sizeof(sa_family_t));
    address_size = sizeof address;
    getsockname(listener, (void *)&address, &address_size);
    CHECK(!listen(listener, 8), "listen: %s", strerror(errno));
}

int main(int count, char **words) {
    static const char *modes[] = {
        "sigsuspend", "pause",  "ppoll",        "poll",      "epoll_pwait",     "epoll_wait", "select",
        "futex",      "semop",  "sigtimedwait", "nanosleep", "clock_nanosleep", "read",       "accept",
    };
    mode = count > 1 ? words[1] : "sigsuspend";
    int known = 0;
    for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++)
        known |= is(modes[i]);
    if (!known) {
        fprintf(stderr, "blocked: no mode %s\n", mode);
        return 2;
    }
    prepare();
    if (is("semop")) {
        // A semaphore outlives a process that is killed, unless its namespace ends with it; only
        // root can have one of its own.
        (void)!unshare(CLONE_NEWIPC);
        semaphore = semget(IPC_PRIVATE, 1, 0600);
    }
    CHECK(semaphore >= 0, "semget: %s", strerror(errno));
    pthread_create(&sleeper, NULL, work, NULL);
    while (!*(volatile pid_t *)&sleeper_tid)
        usleep(50);
    say("ready %d %d", getpid(), sleeper_tid);
    while (next_order(NULL)) {
        long due = by_time() ? woken + 1 : sent + 1;
        wake();
        for (int i = 0; i < 40000 && woken < due; i++) {
            if (i == 10000 && fell_into_the_gap())
                continue;
            usleep(50);
        }
        if (woken >= due) {
            say("woken %ld", due);
        } else {
            CHECK(0, "%s: wake-up %ld is lost: %ld handled, %ld kicks", mode, due, (long)handled, (long)kicks);
            say("LOST %ld", due);
        }
    }
    long total = woken;
    if (is("semop"))
        semctl(semaphore, 0, IPC_RMID);
    return verdict(total);
}
