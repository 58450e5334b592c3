/* Counts, and delays, what a process asks of its disk. Loaded with LD_PRELOAD; see counted_syncs.py.

   SYNC_COUNT  a file of 8 bytes: the count, as the machine writes a uint64_t
   SYNC_DELAY  microseconds that each call takes longer */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t *counter;
static struct timespec delay;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("SYNC_COUNT"), *wait = getenv("SYNC_DELAY");
    long us = wait ? atol(wait) : 0;
    delay.tv_sec = us / 1000000;
    delay.tv_nsec = us % 1000000 * 1000;
    int descriptor = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor >= 0) {
        void *memory = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (memory != MAP_FAILED) counter = memory;
        close(descriptor);
    }
}

static int counted(const char *name, int descriptor) {
    int (*call)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (counter) __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
    if (delay.tv_sec || delay.tv_nsec) nanosleep(&delay, NULL);
    return call(descriptor);
}

int fsync(int descriptor) { return counted("fsync", descriptor); }
int fdatasync(int descriptor) { return counted("fdatasync", descriptor); }
