/* A shim for LD_PRELOAD: makes the Nth call that touches the files of one folder fail.
 *
 *   IO_FAULTS_FOLDER  the folder; calls on files elsewhere are not counted
 *   IO_FAULTS_AT      number of the call that fails, from 1; 0: none
 *   IO_FAULTS_ERRNO   the error it fails with
 *   IO_FAULTS_MOVES   half, none: instead it moves so many of its bytes; other calls than reads and
 *                     writes at an offset, and none of a write, are as ever
 *   IO_FAULTS_COUNT   a file that receives the number of calls when the process ends, how many of
 *                     them io_uring or libaio carried, and how many bytes reads at offsets asked
 * for IO_FAULTS_URING   reads and writes of io_uring are calls, too; else io_uring is refused, so
 * that all reads and writes are calls of the C library
 *
 * It stands for libaio as well (DS_LIBAIO_LIBRARY): its functions are those of the kernel here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls, carried, bytes_read;
static int with_uring;
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
  with_uring = getenv("IO_FAULTS_URING") != NULL;
}

__attribute__((destructor)) static void tell_count(void) {
  const char* path = getenv("IO_FAULTS_COUNT");
  FILE* file = path ? fopen(path, "w") : NULL;
  if (file == NULL) return;
  fprintf(file, "%ld %ld %ld\n", atomic_load(&calls), atomic_load(&carried),
          atomic_load(&bytes_read));
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
  if (reads) atomic_fetch_add(&bytes_read, (long)n);
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

/* ---- libaio ---- */

/* Requests that fail: the kernel carries them out, and their events say something else. */
static struct iocb* _Atomic failed_request;

int io_setup(int depth, aio_context_t* out) {
  *out = 0;
  return syscall(SYS_io_setup, depth, out) < 0 ? -errno : 0;
}
int io_destroy(aio_context_t context) { return syscall(SYS_io_destroy, context) < 0 ? -errno : 0; }
int io_submit(aio_context_t context, long count, struct iocb** requests) {
  for (long i = 0; i < count; ++i) {
    struct iocb* one = requests[i];
    if (!counted_fd((int)one->aio_fildes)) continue;
    atomic_fetch_add(&carried, 1);
    const ssize_t some = moved(one->aio_nbytes, one->aio_lio_opcode == IOCB_CMD_PREAD);
    if (some <= 0) {
      atomic_store(&failed_request, one);
    } else {
      one->aio_nbytes = (size_t)some;
    }
  }
  const long taken = syscall(SYS_io_submit, context, count, requests);
  return taken < 0 ? -errno : (int)taken;
}
int io_getevents(aio_context_t context, long least, long most, struct io_event* events,
                 struct timespec* timeout) {
  const long n = syscall(SYS_io_getevents, context, least, most, events, timeout);
  for (long i = 0; i < n; ++i) {
    struct iocb* failed = (struct iocb*)(uintptr_t)events[i].obj;
    if (!atomic_compare_exchange_strong(&failed_request, &failed, NULL)) continue;
    events[i].res = moves != NULL ? 0 : -fail_with;
  }
  return n < 0 ? -errno : (int)n;
}

/* ---- io_uring ---- */

struct ring {
  int fd;
  struct io_uring_params params;
  char *rings, *entries;
};
static struct ring rings[256];
static int ring_count;
static pthread_mutex_t rings_lock = PTHREAD_MUTEX_INITIALIZER;

static struct ring* find_ring(int fd) {
  for (int i = ring_count - 1; i >= 0; --i) {
    if (rings[i].fd == fd) return &rings[i];
  }
  return NULL;
}

static void note_map(int fd, off64_t offset, void* at) {
  if (!with_uring || fd < 0 || at == MAP_FAILED) return;
  pthread_mutex_lock(&rings_lock);
  struct ring* ring = find_ring(fd);
  if (ring != NULL && offset == (off64_t)IORING_OFF_SQ_RING) ring->rings = at;
  if (ring != NULL && offset == (off64_t)IORING_OFF_SQES) ring->entries = at;
  pthread_mutex_unlock(&rings_lock);
}
#define MAP(name, offset)                                                                     \
  void* name(void* where, size_t n, int protection, int flags, int fd, offset at) {           \
    void* const out =                                                                         \
        (void*)real_syscall(SYS_mmap, (long)where, (long)n, protection, flags, fd, (long)at); \
    note_map(fd, at, out);                                                                    \
    return out;                                                                               \
  }
/* dlsym may map memory itself. */
static long real_syscall(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result >= 0 || result < -4095) return result;
  errno = (int)-result;
  return -1;
#else
  static long (*next)(long, ...);
  if (next == NULL) *(void**)&next = real("syscall");
  return next(number, a, b, c, d, e, f);
#endif
}
MAP(mmap, off_t)
MAP(mmap64, off64_t)

/* Of what is about to be submitted, the request that fails becomes one that does nothing. */
static int fail_submissions(const struct ring* ring, long count, uint64_t* failed) {
  const struct io_sqring_offsets* at = &ring->params.sq_off;
  const uint32_t head = *(uint32_t*)(ring->rings + at->head);
  const uint32_t mask = *(uint32_t*)(ring->rings + at->ring_mask);
  int any = 0;
  for (long i = 0; i < count; ++i) {
    const uint32_t index = ((uint32_t*)(ring->rings + at->array))[(head + (uint32_t)i) & mask];
    struct io_uring_sqe* one = (struct io_uring_sqe*)ring->entries + index;
    const int reads = one->opcode == IORING_OP_READ;
    if ((!reads && one->opcode != IORING_OP_WRITE) || !counted_fd(one->fd)) continue;
    atomic_fetch_add(&carried, 1);
    const ssize_t some = moved(one->len, reads);
    if (some > 0) {
      one->len = (uint32_t)some;
      continue;
    }
    *failed = one->user_data;
    memset(one, 0, sizeof *one);
    one->opcode = IORING_OP_NOP;
    one->user_data = *failed;
    any = 1;
  }
  return any;
}

/* Its result, which is there at once, says how it ended. */
static void set_result(const struct ring* ring, uint64_t failed) {
  const struct io_cqring_offsets* at = &ring->params.cq_off;
  const uint32_t mask = *(uint32_t*)(ring->rings + at->ring_mask);
  const uint32_t tail = __atomic_load_n((uint32_t*)(ring->rings + at->tail), __ATOMIC_ACQUIRE);
  struct io_uring_cqe* all = (struct io_uring_cqe*)(ring->rings + at->cqes);
  for (uint32_t i = *(uint32_t*)(ring->rings + at->head); i != tail; ++i) {
    if (all[i & mask].user_data == failed && all[i & mask].res == 0 && moves == NULL) {
      all[i & mask].res = -fail_with;
    }
  }
}

static long enter(long fd, long submit, long wait, long flags) {
  uint64_t failed = 0;
  pthread_mutex_lock(&rings_lock);
  struct ring* found = find_ring((int)fd);
  const struct ring ring = found != NULL ? *found : (struct ring){.fd = -1};
  pthread_mutex_unlock(&rings_lock);
  const int spoiled = submit > 0 && ring.rings != NULL && ring.entries != NULL &&
                      fail_submissions(&ring, submit, &failed);
  const long result = real_syscall(SYS_io_uring_enter, fd, submit, wait, flags, 0, 0);
  if (spoiled && result > 0) set_result(&ring, failed);
  return result;
}

static long set_up(long depth, struct io_uring_params* params) {
  const long fd = real_syscall(SYS_io_uring_setup, depth, (long)params, 0, 0, 0, 0);
  if (fd < 0) return fd;
  pthread_mutex_lock(&rings_lock);
  struct ring* ring = find_ring((int)fd);
  if (ring == NULL && ring_count < 256) ring = &rings[ring_count++];
  if (ring != NULL) *ring = (struct ring){(int)fd, *params, NULL, NULL};
  pthread_mutex_unlock(&rings_lock);
  return fd;
}

long syscall(long number, ...) {
  va_list more;
  va_start(more, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(more, long);
  va_end(more);
  if (number == SYS_io_uring_setup && with_uring) {
    return set_up(a[0], (struct io_uring_params*)a[1]);
  }
  if (number == SYS_io_uring_setup) {
    errno = ENOSYS;
    return -1;
  }
  if (number == SYS_io_uring_enter && with_uring) return enter(a[0], a[1], a[2], a[3]);
  static long (*next)(long, ...);
  if (next == NULL) *(void**)&next = real("syscall");
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
