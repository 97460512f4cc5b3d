/**
 * @file
 * ds/io.h - reads and writes of files that go on beside the program, past the page cache, and
 * memory that suits them.
 */
#ifndef DS_IO_H
#define DS_IO_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A ds_io_backend_code. Since: 0.5. */
typedef int32_t ds_io_backend;
/** What carries reads and writes out. */
enum ds_io_backend_code {
  DS_IO_BACKEND_UNKNOWN = -1,
  DS_IO_URING = 1,  /**< io_uring */
  DS_IO_LIBAIO = 2, /**< the kernel's older asynchronous I/O, through libaio */
  DS_IO_THREADS = 3 /**< threads that read and write with ordinary calls */
};

/**
 * Makes what reads and writes files. Reads and writes have threads and queues of their own: neither
 * waits for the other. Where file system, offset and length allow it, they go past the page cache;
 * beginnings and ends that are no whole pages go through it, and memory that is not aligned is
 * moved by way of memory that is.
 * @param options_json  NULL for the defaults, or an object with keys of the configuration's `aio`:
 *   block_size (1048576) bytes of a request to the system, counted as the next multiple of 4096;
 *   queue_depth (8) requests under way, of each thread; intra_op_parallelism (1) threads that share
 *   each read, and as many for each write; single_submit (false) a system call for each request;
 *   overlap_events (true) a request that ends makes room for the next, else all that are under way
 *   end before more begin; backend ("auto") "io_uring", "libaio", "threads", or the first of these
 *   that works here; use_gds is refused; and validate (false) compares what was moved with what the
 *   file holds, read through the page cache; checksum (false) remembers checksums of what was
 *   written through the handle, by which what is read through it is checked
 * Errors: DS_ERR_UNSUPPORTED (a backend that cannot be used here, GPUDirect Storage).
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_io_create(const char* DS_NULLABLE options_json, ds_io** out_io);

/** What a ds_io is. Set struct_size before the call. Since: 0.5. */
typedef struct ds_io_info {
  int64_t struct_size;          /**< sizeof(ds_io_info) of the caller's header */
  int64_t block_size;           /**< as it was given */
  int64_t alignment;            /**< what offset, length and address should be multiples of */
  int32_t queue_depth;          /**< requests under way, of each thread */
  int32_t intra_op_parallelism; /**< threads of each direction */
  ds_bool single_submit;        /**< a system call for each request */
  ds_bool overlap_events;       /**< a request that ends makes room for the next */
  ds_bool validate;             /**< what was moved is compared */
  ds_bool checksum;             /**< what is read is checked by what was written */
  ds_io_backend backend;        /**< what was chosen */
  int32_t reserved;             /**< 0 */
} ds_io_info;
/** A ds_io_info to be filled. */
#define DS_IO_INFO_INIT \
  { (int64_t)sizeof(ds_io_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** How it reads and writes. Threads: any. Since: 0.5. */
DS_API ds_status ds_io_describe(const ds_io* io, ds_io_info* out_info);

/** One read or write. Zero is default. Since: 0.5. */
typedef struct ds_io_transfer {
  int64_t struct_size; /**< sizeof(ds_io_transfer) of the caller's header */
  const char* path;    /**< the file; NULL: that of `descriptor` */
  ds_tensor* tensor;   /**< packed, in host memory; NULL: `data` and `size` */
  void* data;          /**< what is read into, or written from */
  int64_t size;        /**< bytes at `data` */
  int64_t offset;      /**< of the first byte in the file */
  int32_t descriptor;  /**< open for what is done, not for appending; it stays the caller's */
  ds_bool write;       /**< nonzero: the file is written; it is made where there is none, and what
                            it holds elsewhere stays. 0: it is read */
  /** nonzero: `offset` is 0 and the memory holds all of the file: a read fails where it has another
   * size, a write empties it first */
  ds_bool whole_file;
  int32_t reserved; /**< 0 */
} ds_io_transfer;
/** A ds_io_transfer with nothing set. */
#define DS_IO_TRANSFER_INIT \
  { (int64_t)sizeof(ds_io_transfer), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Reads or writes, and returns when that is done. A write is not yet safe from a power cut.
 * Blocks: until it is done. Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT (the file ends
 * early, or validation or a checksum failed), DS_ERR_STATE (a read-only tensor), DS_ERR_ABORTED.
 * The text names file, place and reason. Threads: any. Since: 0.5.
 */
DS_API ds_status ds_io_run(ds_io* io, const ds_io_transfer* transfer);
/**
 * Starts to read or write, and returns. The memory must not be touched until ds_io_wait has
 * returned or ds_io_test has reported the end; a tensor's is kept until then, text and handle are
 * free at once, and so is the descriptor. A range that is being written is read only after that has
 * been waited for.
 * @param out_ticket  its number, from 1; never given twice; may be NULL
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND (it cannot be opened), DS_ERR_STATE; what happens later is
 * reported by ds_io_wait. Threads: any. Since: 0.5.
 */
DS_API ds_status ds_io_start(ds_io* io, const ds_io_transfer* transfer,
                             int64_t* DS_NULLABLE out_ticket);
/** Whether what was started has ended, well or not. Threads: any. Since: 0.5. */
DS_API ds_status ds_io_test(const ds_io* io, int64_t ticket, ds_bool* out_done);
/**
 * Waits for what was started.
 * @param ticket     what ds_io_start gave; 0: all that nobody has waited for yet
 * @param out_count  how many have ended that nobody had waited for; may be NULL
 * Where some of them failed it fails as the first of these did, when all have ended. Each failure
 * is reported once. Blocks: until it has ended. Errors: as ds_io_run. Threads: any. Since: 0.5.
 */
DS_API ds_status ds_io_wait(ds_io* io, int64_t ticket, int64_t* DS_NULLABLE out_count);
/**
 * Gives up what was started and has not ended: no more of it is begun, and the memory is the
 * caller's again on return. Waiting for it fails with DS_ERR_ABORTED; what a write leaves in its
 * range is not known.
 * @param out_count  how many were given up; may be NULL
 * Blocks: until the requests to the system that are under way have ended. Threads: any. Since: 0.5.
 */
DS_API ds_status ds_io_cancel(ds_io* io, int64_t* DS_NULLABLE out_count);
/**
 * Ends the handle: no more is begun, and what the system has under way is waited for, unless a call
 * is inside it, which goes on to its end. NULL is fine. Threads: any. Since: 0.5.
 */
DS_API void ds_io_destroy(ds_io* DS_NULLABLE io);

/* ---- Memory that stays in place ------------------------------------------------------------- */

/**
 * Makes a tensor of zeros in memory that is locked and, from 2 MiB up, in huge pages where the
 * system has them: devices move such memory fastest. The memory goes with the last tensor of it.
 * @param dtype, shape, ndim  as in ds_tensor_create
 * Errors: DS_ERR_OUT_OF_MEMORY also where the limit of locked memory (ulimit -l) is too low.
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_pinned_tensor(ds_dtype dtype, const int64_t* DS_NULLABLE shape, int32_t ndim,
                                  ds_tensor** out_tensor);
/**
 * The same as plain memory, zeros, aligned to a page at least.
 * @param size        bytes, 1 or more
 * @param out_memory  ended with ds_pinned_free
 * Errors: as ds_pinned_tensor. Threads: any. Since: 0.5.
 */
DS_API ds_status ds_pinned_allocate(int64_t size, void** out_memory);
/**
 * Ends memory of ds_pinned_allocate.
 * @param out_known  0 where it is no such memory, or has ended before: nothing happens; may be NULL
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_pinned_free(void* DS_NULLABLE memory, ds_bool* DS_NULLABLE out_known);
/**
 * Whether all of some memory lies in one piece of what the two functions above gave.
 * @param size  bytes at `memory`
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_pinned_contains(const void* DS_NULLABLE memory, int64_t size,
                                    ds_bool* out_pinned);
/** The same of a packed tensor, views included. Threads: any. Since: 0.5. */
DS_API ds_status ds_tensor_is_pinned(const ds_tensor* tensor, ds_bool* out_pinned);

#ifdef __cplusplus
}
#endif
#endif /* DS_IO_H */
