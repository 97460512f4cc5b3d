/* A shim for LD_PRELOAD: makes the Nth call that touches the files of one folder fail.
 *
 *   IO_FAULTS_FOLDER  the folder; calls on files elsewhere are not counted
 *   IO_FAULTS_AT      number of the call that fails, from 1; 0: none
 *   IO_FAULTS_ERRNO   the error it fails with
 *   IO_FAULTS_MOVES   half, none: instead it moves so many of its bytes; other calls than reads and
 *                     writes at an offset, and none of a write, are as ever
 *   IO_FAULTS_COUNT   a file that receives the number of calls when the process ends
 *
 * io_uring is refused, so that all reads and writes are calls of the C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;
static const char* folder;
static size_t folder_length;
static long fail_at;
static int fail_with;
static const char* moves;

__attribute__((constructor)) static void read_environment(void) {
  folder = getenv("IO_FAULTS_FOLDER");
  folder_length = folder ? strlen(folder) : 0;
  const char* at = getenv("IO_FAULTS_AT");
  fail_at = at ? atol(at) : 0;
  const char* number = getenv("IO_FAULTS_ERRNO");
  fail_with = number ? atoi(number) : EIO;
  moves = getenv("IO_FAULTS_MOVES");
}

__attribute__((destructor)) static void tell_count(void) {
  const char* path = getenv("IO_FAULTS_COUNT");
  FILE* file = path ? fopen(path, "w") : NULL;
  if (file == NULL) return;
  fprintf(file, "%ld\n", atomic_load(&calls));
  fclose(file);
}

static int chosen(void) { return atomic_fetch_add(&calls, 1) + 1 == fail_at; }
static int fails(void) {
  if (!chosen() || moves != NULL) return 0;
  errno = fail_with;
  return 1;
}
/* How many of n bytes a call moves; -1: it fails. */
static ssize_t moved(size_t n, int reads) {
  if (!chosen()) return (ssize_t)n;
  if (moves == NULL) {
    errno = fail_with;
    return -1;
  }
  if (strcmp(moves, "half") == 0) return (ssize_t)(n > 1 ? n / 2 : n);
  return reads ? 0 : (ssize_t)n;
}

static int inside(const char* path) {
  char whole[PATH_MAX], here[PATH_MAX];
  if (folder == NULL || path == NULL) return 0;
  if (path[0] != '/') {
    if (syscall(SYS_getcwd, here, sizeof here) < 0) return 0;
    if ((size_t)snprintf(whole, sizeof whole, "%s/%s", here, path) >= sizeof whole) return 0;
    path = whole;
  }
  return strncmp(path, folder, folder_length) == 0 &&
         (path[folder_length] == '/' || path[folder_length] == 0);
}

static int counted_fd(int fd) {
  char link[64], path[PATH_MAX];
  if (folder == NULL || fd <= 2) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return inside(path);
}

#define REAL(name) ((__typeof__(&name))real(#name))
static void* real(const char* name) { return dlsym(RTLD_NEXT, name); }

#define OPEN(name)                                 \
  int name(const char* path, int flags, ...) {     \
    va_list more;                                  \
    va_start(more, flags);                         \
    const mode_t mode = (mode_t)va_arg(more, int); \
    va_end(more);                                  \
    if (inside(path) && fails()) return -1;        \
    return REAL(name)(path, flags, mode);          \
  }
OPEN(open)
OPEN(open64)

#define ON_FD(result, name, parameters, arguments) \
  result name parameters {                         \
    if (counted_fd(fd) && fails()) return -1;      \
    return REAL(name) arguments;                   \
  }
ON_FD(ssize_t, read, (int fd, void* to, size_t n), (fd, to, n))
ON_FD(ssize_t, write, (int fd, const void* from, size_t n), (fd, from, n))
ON_FD(ssize_t, writev, (int fd, const struct iovec* from, int n), (fd, from, n))
#define AT_OFFSET(name, reads, pointer, offset)                         \
  ssize_t name(int fd, pointer data, size_t n, offset at) {             \
    const ssize_t some = counted_fd(fd) ? moved(n, reads) : (ssize_t)n; \
    if (some <= 0 && n > 0) return some;                                \
    return REAL(name)(fd, data, (size_t)some, at);                      \
  }
AT_OFFSET(pread, 1, void*, off_t)
AT_OFFSET(pread64, 1, void*, off64_t)
AT_OFFSET(pwrite, 0, const void*, off_t)
AT_OFFSET(pwrite64, 0, const void*, off64_t)
ON_FD(int, fsync, (int fd), (fd))
ON_FD(int, fdatasync, (int fd), (fd))
ON_FD(int, ftruncate, (int fd, off_t n), (fd, n))
ON_FD(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))

#define ON_PATH(result, name, parameters, arguments) \
  result name parameters {                           \
    if (inside(path) && fails()) return -1;          \
    return REAL(name) arguments;                     \
  }
ON_PATH(int, mkdir, (const char* path, mode_t mode), (path, mode))
ON_PATH(int, rmdir, (const char* path), (path))
ON_PATH(int, unlink, (const char* path), (path))
ON_PATH(int, rename, (const char* path, const char* to), (path, to))
ON_PATH(int, renameat2, (int at, const char* path, int to_at, const char* to, unsigned flags),
        (at, path, to_at, to, flags))

int unlinkat(int fd, const char* path, int flags) {
  if ((fd == AT_FDCWD ? inside(path) : counted_fd(fd)) && fails()) return -1;
  return REAL(unlinkat)(fd, path, flags);
}

long syscall(long number, ...) {
  va_list more;
  va_start(more, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(more, long);
  va_end(more);
  if (number == SYS_io_uring_setup) {
    errno = ENOSYS;
    return -1;
  }
  static long (*next)(long, ...);
  if (next == NULL) *(void**)&next = real("syscall");
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
