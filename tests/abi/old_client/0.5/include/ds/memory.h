/**
 * @file
 * ds/memory.h - what the process holds, and where memory comes from.
 */
#ifndef DS_MEMORY_H
#define DS_MEMORY_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * What this process holds, as JSON: "host" and "gpus", the library's own memory in bytes, now and
 * at most, by what it serves ("tags") and in all ("total"); "process", resident bytes now and at
 * most; "system", the machine's memory, what of it is available and the limit of the container.
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_memory_report(char** out_json);

/**
 * Where the library gets the memory of a device from, for programs with a pool of their own. Zero
 * is default.
 */
typedef struct ds_allocator {
  int64_t struct_size; /**< sizeof(ds_allocator) of the caller's header */
  void* user_data;     /**< passed to the functions below */
  /** memory of so many bytes, aligned to `alignment` (a power of two); NULL when there is none.
   * `device_index` counts the devices of the kind. */
  void* (*allocate)(void* user_data, int64_t bytes, int64_t alignment, int32_t device_index);
  /** takes it back, with the same size */
  void (*deallocate)(void* user_data, void* memory, int64_t bytes, int32_t device_index);
} ds_allocator;
/** A ds_allocator with nothing set. */
#define DS_ALLOCATOR_INIT \
  { (int64_t)sizeof(ds_allocator), 0, 0, 0 }

/**
 * Takes the memory of tensors, models, engines and generators that are made from now on from the
 * caller, on one kind of device; what was made before keeps what it has. Memory that a GPU's host
 * side needs, threads' stacks and small objects still come from the system. The functions are
 * called on any thread, possibly several at once, and must not call the library.
 * @param device_kind  a ds_device_kind
 * @param allocator    both functions set; NULL: the system again
 * @param release      called once with the allocator's user_data when no memory of it is held any
 *                     more and another one is set; may be NULL
 * Threads: any. Since: 0.5.
 */
DS_API DS_EXPERIMENTAL ds_status ds_allocator_set(ds_device_kind device_kind,
                                                  const ds_allocator* DS_NULLABLE allocator,
                                                  ds_release_fn DS_NULLABLE release);

#ifdef __cplusplus
}
#endif
#endif /* DS_MEMORY_H */
