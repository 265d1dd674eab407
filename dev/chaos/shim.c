/* Falsifies the clocks of a process that preloads this library. A shared file has two offsets in nanoseconds:
 * the first is added to the wall clock, the second to the clocks that only run forward, except for
 * CLOCK_MONOTONIC_RAW, which the harness itself uses. A function that waits until a time of such a clock passes
 * the true time to the kernel, or else the wait would be too long or too short by the offset. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t BILLION = 1000000000;
static volatile int64_t none[2] = {0, 0};
static volatile int64_t *offsets = none;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("PROOF_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) offsets = mapped;
}

static int64_t offset_of(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE: return offsets[0];
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME: return offsets[1];
    default: return 0;
    }
}

static struct timespec moved(struct timespec at, int64_t by) {
    int64_t total = (int64_t)at.tv_sec * BILLION + at.tv_nsec + by;
    if (total < 0) total = 0;
    return (struct timespec){total / BILLION, total % BILLION};
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0) *at = moved(*at, offset_of(clock));
    return result;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_nanosleep");
    if (!(flags & TIMER_ABSTIME)) return real(clock, flags, until, left);
    struct timespec truly = moved(*until, -offset_of(clock));
    return real(clock, flags, &truly, left);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until) {
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "sem_clockwait");
    struct timespec truly = moved(*until, -offset_of(clock));
    return real(semaphore, clock, &truly);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec truly = moved(*until, -offset_of(CLOCK_REALTIME));
    return real(semaphore, &truly);
}

/* glibc does not reveal by which clock a condition waits. The number tells: only the wall clock shows times as high
 * as this. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    clockid_t clock = until->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
    struct timespec truly = moved(*until, -offset_of(clock));
    return real(condition, mutex, &truly);
}
