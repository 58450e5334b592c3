/* A wall clock that is wrong, for one process. Loaded with LD_PRELOAD; see test_faults_bad_log.py.

   CLOCK_SHIFT       seconds by which it is ahead, negative if it is behind
   CLOCK_SHIFT_FILE  a file with them, eight bytes in the order of this machine: others write it meanwhile */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long own;
static volatile long long *shift = &own;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("CLOCK_SHIFT"), *path = getenv("CLOCK_SHIFT_FILE");
    own = text ? atol(text) : 0;
    int file = path ? open(path, O_RDONLY) : -1;
    void *shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) shift = shared;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && clock == CLOCK_REALTIME) now->tv_sec += *shift;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (!result && now) now->tv_sec += *shift;
    return result;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
