// A wall clock that a test moves: preloaded (LD_PRELOAD), it adds an offset to what the program
// reads of CLOCK_REALTIME. The machine's own clock stays as it is, and so does CLOCK_MONOTONIC.
//
// DDP_TEST_CLOCK names a file of 8 bytes: the offset in nanoseconds, a signed integer in the
// machine's byte order. It must have them when the program starts. The test writes another offset
// into it (in place, with one pwrite) and all programs that have it jump at once. Without the
// variable nothing is added; without such a file the program ends with status 127.
//
// Not moved: times of files, and waits that end at a time of CLOCK_REALTIME.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const int64_t* offset_ns;

__attribute__((constructor)) static void map_offset(void) {
  const char* path = getenv("DDP_TEST_CLOCK");
  if (path == NULL) return;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0 || status.st_size < (off_t)sizeof *offset_ns) {
    fprintf(stderr, "clock_shim: DDP_TEST_CLOCK: %s is no file with an offset of 8 bytes\n", path);
    _exit(127);
  }
  void* mapped = mmap(NULL, sizeof *offset_ns, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) offset_ns = mapped;
  close(fd);
}

static struct timespec moved_now(clockid_t clock) {
  struct timespec now = {0, 0};
  syscall(SYS_clock_gettime, clock, &now);
  if (offset_ns == NULL) return now;
  const int64_t second = 1000000000;
  int64_t at = now.tv_sec * second + now.tv_nsec + __atomic_load_n(offset_ns, __ATOMIC_RELAXED);
  if (at < 0) at = 0;
  now.tv_sec = at / second;
  now.tv_nsec = at % second;
  return now;
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) {
    return (int)syscall(SYS_clock_gettime, clock, out);
  }
  *out = moved_now(clock);
  return 0;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  (void)zone;
  const struct timespec now = moved_now(CLOCK_REALTIME);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  const time_t now = moved_now(CLOCK_REALTIME).tv_sec;
  if (out != NULL) *out = now;
  return now;
}

int timespec_get(struct timespec* out, int base) {
  if (base != TIME_UTC) return 0;
  *out = moved_now(CLOCK_REALTIME);
  return base;
}
