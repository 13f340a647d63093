// cc: -O2 -g -pthread
// lockedmm: a process whose memory map stays locked for writing, for as long as the test wants. A file system of its own,
// in a mount namespace of its own, leaves a read unanswered, so one thread waits for a page; another maps the file again,
// which waits for that page with the lock held. Needs root. Fact: the locked process, a child of this one. `release`
// answers the read -> `released`, once the child has ended by itself. With an argument the lock is taken by `lock` only,
// -> `locked`. Says `ready PID 0` where it can't be made.
#include "target.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FILE_ID 2
#define MOUNT "/mnt"

static int device;
// 0: thread id of the one that holds the lock, 1: the read has arrived, 2: the lock may be taken
static atomic_int *shared;
static uint64_t held_read;
static int released;
static char zeros[4096];

static void answer(uint64_t unique, int error, const void *data, size_t size) {
    static char buffer[8192];
    struct fuse_out_header head = {.len = sizeof head + size, .error = error, .unique = unique};
    memcpy(buffer, &head, sizeof head);
    if (size)
        memcpy(buffer + sizeof head, data, size);
    if (write(device, buffer, head.len) < 0 && errno != ENOENT)
        CHECK(0, "answer: %s", strerror(errno));
}

static struct fuse_attr attributes(uint64_t node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .size = 4096, .blksize = 4096};
    attr.mode = node == FILE_ID ? S_IFREG | 0600 : S_IFDIR | 0700;
    return attr;
}

static void serve(void) {
    static char request[1 << 17];
    ssize_t size = read(device, request, sizeof request);
    if (size < (ssize_t)sizeof(struct fuse_in_header))
        return;
    struct fuse_in_header *in = (void *)request;
    switch (in->opcode) {
    case FUSE_INIT: {
        struct fuse_init_in *init = (void *)(in + 1);
        struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = init->minor, .max_write = 4096};
        if (out.minor > FUSE_KERNEL_MINOR_VERSION)
            out.minor = FUSE_KERNEL_MINOR_VERSION;
        answer(in->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.nodeid = FILE_ID, .attr_valid = 100, .entry_valid = 100};
        out.attr = attributes(FILE_ID);
        answer(in->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 100};
        out.attr = attributes(in->nodeid);
        answer(in->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN: {
        struct fuse_open_out out = {.open_flags = FOPEN_DIRECT_IO};
        answer(in->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ:
        // The page is read again when the mapping has thrown it away.
        if (released)
            answer(in->unique, 0, zeros, sizeof zeros);
        else
            held_read = in->unique;
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break;
    case FUSE_RELEASE:
    case FUSE_FLUSH:
        answer(in->unique, 0, NULL, 0);
        break;
    default:
        answer(in->unique, -ENOSYS, NULL, 0);
    }
}

static void *touch(void *page) {
    return (void *)(long)*(volatile char *)page;
}

static void *hold(void *file) {
    atomic_store(shared, (int)syscall(SYS_gettid));
    return mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, (int)(long)file, 0);
}

// The child: everything that needs memory is done before the lock is held.
static void locked(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    close(device);
    int file = open(MOUNT "/file", O_RDONLY);
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    pthread_t first, second;
    while (!atomic_load(shared + 2))
        usleep(1000);
    if (file < 0 || page == MAP_FAILED || pthread_create(&first, NULL, touch, page))
        _exit(1);
    // The parent says when the read has arrived.
    while (!atomic_load(shared + 1))
        usleep(1000);
    if (pthread_create(&second, NULL, hold, (void *)(long)file))
        _exit(1);
    pthread_join(second, NULL);
    pthread_join(first, NULL);
    _exit(0);
}

static int is_waiting(pid_t process, pid_t thread) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process, thread);
    int file = open(path, O_RDONLY);
    ssize_t size = file < 0 ? -1 : read(file, line, sizeof line - 1);
    close(file);
    char *end = size > 0 ? strrchr(line, ')') : NULL;
    return end && end[2] == 'D';
}

int main(int argc, char **argv) {
    (void)argv;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    atomic_store(shared + 2, argc < 2);
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    char options[64];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (device < 0 || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("lancet", MOUNT, "fuse", MS_NOSUID | MS_NODEV, options)) {
        say("ready %d 0", getpid());
        return 0;
    }
    pid_t own = getpid(), child = fork();
    if (!child)
        locked(own);
    int said = 0, held = 0;
    if (argc > 1) {
        said = 1;
        say("ready %d %d", own, child);
    }
    struct pollfd wait[] = {{.fd = device, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    for (;;) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) {
            CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the child ended with %x", status);
            CHECK(released, "it ended before it was released");
            say("released");
            return verdict(1);
        }
        poll(wait, said && !released ? 2 : 1, 5);
        if (wait[0].revents & POLLIN)
            serve();
        if (held_read)
            atomic_store(shared + 1, 1);
        if (!held && atomic_load(shared) && is_waiting(child, atomic_load(shared))) {
            held = 1;
            if (said)
                say("locked");
            else
                say("ready %d %d", getpid(), child);
            said = 1;
        }
        if (said && !released && wait[1].revents) {
            const char *order = next_order(NULL);
            if (order && !strcmp(order, "lock")) {
                atomic_store(shared + 2, 1);
                continue;
            }
            if (!held)
                return 1;
            released = 1;
            answer(held_read, 0, zeros, sizeof zeros);
        }
    }
}
