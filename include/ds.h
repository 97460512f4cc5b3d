/**
 * @file
 * ds.h - the whole public interface of libds: train language models from any language.
 *
 * Rules that hold for every function, so that the comments below need not repeat them:
 *
 * Ownership   A returned pointer is borrowed from its parent; what arrives through an `out_`
 *             parameter is owned by the caller and ended with the matching `_destroy` or
 *             ds_string_free. Inputs are borrowed for the call. Objects that must outlive a call
 *             are counted inside, so handles may be destroyed in any order.
 * Handles     A handle is a number in a pointer's clothes: never dereferenced, never reused. NULL,
 *             a handle of another kind or one already destroyed gives DS_ERR_INVALID_ARGUMENT.
 * Threads     Different handles: free. One handle: one thread at a time; a second thread that
 *             enters gets DS_ERR_STATE and nothing happens. Calls that only read a tensor through a
 *             const pointer may overlap. Functions marked `Threads: any` are
 *             safe on one handle from many threads at once.
 * Errors      Every function that returns ds_status may return DS_ERR_INVALID_ARGUMENT,
 *             DS_ERR_OUT_OF_MEMORY and DS_ERR_INTERNAL; `Errors` lists the others. On failure the
 *             out-parameters are untouched and ds_last_error_message() explains. No function ends
 *             the process, prints, installs a signal handler or changes the environment.
 * Fork        A forked child has none of its parent's threads. It may destroy handles of the parent,
 *             which returns at once and leaves what they stand for to the parent (memory is not
 *             given back, `release` callbacks are not called), and it may make handles of its own.
 *             Data sets and tokenizers of the parent may be read. Models, engines and groups must
 *             not be used in it. Fork while no other thread is inside the library.
 * Blocks      Functions compute or read files before they return; none waits for other processes
 *             unless it says `Blocks`.
 * Text        UTF-8, ends with NUL. Sizes are bytes unless stated. Tensors are row-major.
 */
#ifndef DS_H
#define DS_H

#include <stdint.h>

#if defined(SWIG)
#define DS_API /* SWIG does not parse attributes */
#elif !defined(DS_API)
#define DS_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this header; the loaded library answers ds_abi_version(). */
#define DS_VERSION_MAJOR 0
#define DS_VERSION_MINOR 4 /**< Grows with every addition. */
#define DS_VERSION_PATCH 0 /**< Grows with corrections. */

/* ---- 1. Status, text, log, reports --------------------------------------------------------- */

/** A ds_status_code, or a newer code that this header does not know: negative means failure. */
typedef int32_t ds_status;

/** What a caller can do about a failure; numbers are never reused. */
enum ds_status_code {
  DS_OK = 0,                    /**< Done. */
  DS_ERR_INVALID_ARGUMENT = -1, /**< The call is wrong: fix the caller. */
  DS_ERR_CONFIG = -2,           /**< The configuration document is wrong: fix the document. */
  DS_ERR_OUT_OF_MEMORY = -3,    /**< Memory ran out; the text holds the memory report. */
  DS_ERR_DEVICE = -4,           /**< A device failed. */
  DS_ERR_COMM = -5,             /**< Another process failed or disagreed. */
  DS_ERR_IO = -6,               /**< A file could not be read or written. */
  DS_ERR_UNSUPPORTED = -7,      /**< This build or version does not do that. */
  DS_ERR_ABORTED = -8,          /**< The operation was aborted from elsewhere. */
  DS_ERR_CALLBACK = -9,         /**< A callback of the caller asked to stop. */
  DS_ERR_INTERNAL = -10,        /**< A defect of the library: please report the text. */
  DS_ERR_STATE = -11,           /**< Right call, wrong moment (order of calls, handle busy). */
  DS_ERR_CORRUPT = -12,         /**< A file's content is damaged or hostile. */
  DS_ERR_NOT_FOUND = -13        /**< A file, tag, tensor or token does not exist. */
};

/**
 * Version of the loaded library as major * 1000000 + minor * 1000 + patch.
 * Threads: any. Since: 0.1.
 */
DS_API int32_t ds_abi_version(void);

/**
 * Version of the loaded library as text, such as "0.1.0".
 * Ownership: static. Threads: any. Since: 0.1.
 */
DS_API const char* ds_version(void);

/**
 * Name of a status, such as "DS_ERR_IO"; "DS_ERR_UNKNOWN" for a code this library does not know.
 * Ownership: static. Threads: any. Since: 0.1.
 */
DS_API const char* ds_status_name(ds_status status);

/**
 * Text of this thread's last failing call; "" before the first. Only a failing call changes it.
 * Ownership: borrowed until the thread's next failing call. Threads: any. Since: 0.1.
 */
DS_API const char* ds_last_error_message(void);

/**
 * Frees text received through an `out_` parameter; NULL is fine.
 * Threads: any. Since: 0.1.
 */
DS_API void ds_string_free(char* text);

/** Levels of log messages. */
enum ds_log_level {
  DS_LOG_DEBUG = 0,
  DS_LOG_INFO = 1,
  DS_LOG_WARNING = 2,
  DS_LOG_ERROR = 3,
  DS_LOG_OFF = 4
};

/**
 * Receives log messages, on whatever thread logs, possibly several at once; texts live for the
 * call. It must not call the library.
 */
typedef void (*ds_log_fn)(void* user_data, int32_t level, const char* component, const char* text);

/**
 * Sets the process-wide log sink; NULL restores the default (standard error).
 * @param fn         the sink
 * @param user_data  passed to `fn`
 * @param release    called once with `user_data` when the sink is no longer used; may be NULL
 * Threads: any. Since: 0.1.
 */
DS_API ds_status ds_log_set(ds_log_fn fn, void* user_data, void (*release)(void* user_data));

/**
 * Sets the lowest level that is logged, process-wide; the default is DS_LOG_WARNING.
 * Threads: any. Since: 0.1.
 */
DS_API ds_status ds_log_set_level(int32_t level);

/**
 * Describes the build and the machine as a JSON document: version, compiler, options, libraries
 * with versions, CPU features and the kernels chosen, devices, and what is not usable and why.
 * Threads: any. Since: 0.1.
 */
DS_API ds_status ds_report(char** out_json);

/**
 * What training would take on each rank of a world that need not be there, from shapes alone.
 * @param model_json    a Hugging Face config.json, or {"parameters": N, "layers": L}: only a size
 * @param config_json   a DeepSpeed configuration
 * @param options_json  {"world": 1, "ranks_per_node": 0 (all), "sequence_length": 0 (the model's)}
 * @param out_json      "model", "stage", "memory_per_rank" (bytes by tag), "host_memory_per_rank"
 *                      (with offload_optimizer, of ranks with a GPU) and "moved_per_step" (a list
 *                      of collectives: bytes that a rank sends within its node and across)
 * Errors: DS_ERR_CONFIG, DS_ERR_UNSUPPORTED. Threads: any. Since: 0.4.
 */
DS_API ds_status ds_plan(const char* model_json, const char* config_json, const char* options_json,
                         char** out_json);

/**
 * Checks a configuration without an engine and lists everything that is wrong with it.
 * @param config_json   a DeepSpeed configuration (docs/configuration.md)
 * @param options_json  how it is read, as in ds_engine_create_with, and where it would be used:
 *                      "world", the number of ranks (default: the one that three given batch sizes
 *                      fit, else 1); "device", "cpu" or "cuda"; "model", the object of a
 *                      config.json. NULL for the defaults.
 * @param out_json      {"accepted": true or false, "world", "problems": [{"kind", "path", "text",
 *                      "advice"}], "warnings", "document", "config", "origins"}. A problem's kind is
 *                      "error", "auto", "missing_feature" (with "feature") or "ignored", which
 *                      refuses nothing. "document" is what was given and accepted, with "auto"
 *                      resolved: strict reading accepts it, if this document is accepted, with the
 *                      same meaning. "config" and "origins" are those of ds_engine_config; null
 *                      for a document that is refused.
 * A document that is refused is no error of this call.
 * Errors: DS_ERR_CONFIG (the options). Threads: any. Since: 0.5.
 */
DS_API ds_status ds_config_check(const char* config_json, const char* options_json,
                                 char** out_json);

/* ---- 2. Handles ---------------------------------------------------------------------------- */

typedef struct ds_tensor ds_tensor;       /**< Numbers with shape and type. */
typedef struct ds_comm ds_comm;           /**< A group of processes. */
typedef struct ds_work ds_work;           /**< A collective under way. Since: 0.4. */
typedef struct ds_tokenizer ds_tokenizer; /**< Text to token ids and back; immutable. */
typedef struct ds_dataset ds_dataset;     /**< Samples of token ids; immutable. */
typedef struct ds_model ds_model;         /**< Architecture and weights. */
typedef struct ds_engine ds_engine;       /**< Trains one model. */
typedef struct ds_optimizer ds_optimizer; /**< The optimizer inside an engine. */

/* ---- 3. Tensors ---------------------------------------------------------------------------- */

/** Element types. */
enum ds_dtype {
  DS_FLOAT32 = 1,
  DS_FLOAT64 = 2,
  DS_FLOAT16 = 3,
  DS_BFLOAT16 = 4,
  DS_INT8 = 5,
  DS_INT16 = 6,
  DS_INT32 = 7,
  DS_INT64 = 8,
  DS_UINT8 = 9,
  DS_UINT16 = 10,
  DS_UINT32 = 11,
  DS_UINT64 = 12,
  DS_BOOL = 13
};

/** Kinds of device a tensor may lie on; DLPack's numbers. */
enum ds_device_kind { DS_DEVICE_CPU = 1, DS_DEVICE_CUDA = 2 };

struct DLManagedTensorVersioned; /* from dlpack.h, which a caller includes only if it needs it */
struct DLManagedTensor;          /* the struct of DLPack before version 1.0 */

/**
 * Makes a tensor of zeros in host memory.
 * @param dtype  a ds_dtype
 * @param shape  `ndim` sizes, each >= 0; may be NULL when ndim is 0
 * @param ndim   0 to 8
 * Since: 0.1.
 */
DS_API ds_status ds_tensor_create(int32_t dtype, const int64_t* shape, int32_t ndim,
                                  ds_tensor** out_tensor);

/**
 * Wraps host memory of the caller without copying.
 * @param data       first element; aligned to the element size
 * @param dtype      a ds_dtype
 * @param shape      `ndim` sizes
 * @param strides    `ndim` steps in elements, >= 0; NULL means packed row-major
 * @param ndim       0 to 8
 * @param release    called once when the library no longer uses `data`, on any thread; may be NULL
 * @param user_data  passed to `release`
 * Ownership: `data` stays the caller's and must live until `release` (or, without one, until the
 * tensor and everything made from it are gone). Since: 0.1.
 */
DS_API ds_status ds_tensor_from_buffer(void* data, int32_t dtype, const int64_t* shape,
                                       const int64_t* strides, int32_t ndim,
                                       void (*release)(void* user_data), void* user_data,
                                       ds_tensor** out_tensor);

/**
 * Takes a DLPack 1.x tensor without copying (dmlc/dlpack): host memory, pinned or not, or memory of
 * a GPU. The latter serves as parameters (ds_model_create_from_parameters), gradients and values;
 * other calls refuse it. A call that takes GPU memory expects it ready, and is done with it on
 * return.
 * @param managed  the tensor; another major version is refused
 * @param stream   a cudaStream_t that is waited for first (NULL: CUDA's default); NULL for the host
 * Ownership: on DS_OK the library owns `managed` and calls its deleter once; on failure it remains
 * the caller's. Errors: DS_ERR_UNSUPPORTED. Since: 0.1.
 */
DS_API ds_status ds_tensor_from_dlpack(struct DLManagedTensorVersioned* managed, void* stream,
                                       ds_tensor** out_tensor);

/**
 * The same for the struct of DLPack before 1.0.
 * Ownership and Errors: as ds_tensor_from_dlpack. Since: 0.1.
 */
DS_API ds_status ds_tensor_from_dlpack_legacy(struct DLManagedTensor* managed, void* stream,
                                              ds_tensor** out_tensor);

/**
 * Exports a tensor as DLPack 1.x without copying; its memory stays alive until the deleter runs.
 * @param stream  of GPU memory any: the library's work on it is over; NULL for host memory
 * Ownership: call `(*out_managed)->deleter(*out_managed)` once. Errors: DS_ERR_UNSUPPORTED.
 * Since: 0.1.
 */
DS_API ds_status ds_tensor_to_dlpack(const ds_tensor* tensor, void* stream,
                                     struct DLManagedTensorVersioned** out_managed);

/**
 * The same for the struct of DLPack before 1.0; a read-only tensor is refused, because that struct
 * cannot say so.
 * Ownership and Errors: as ds_tensor_to_dlpack. Since: 0.1.
 */
DS_API ds_status ds_tensor_to_dlpack_legacy(const ds_tensor* tensor, void* stream,
                                            struct DLManagedTensor** out_managed);

/** Element type (a ds_dtype). Threads: any. Since: 0.1. */
DS_API ds_status ds_tensor_dtype(const ds_tensor* tensor, int32_t* out_dtype);
/** Number of dimensions. Threads: any. Since: 0.1. */
DS_API ds_status ds_tensor_ndim(const ds_tensor* tensor, int32_t* out_ndim);
/** Size of dimension `dim` in [0, ndim). Threads: any. Since: 0.1. */
DS_API ds_status ds_tensor_size(const ds_tensor* tensor, int32_t dim, int64_t* out_size);
/** Step of dimension `dim` in elements. Threads: any. Since: 0.1. */
DS_API ds_status ds_tensor_stride(const ds_tensor* tensor, int32_t dim, int64_t* out_stride);
/** Number of elements. Threads: any. Since: 0.1. */
DS_API ds_status ds_tensor_elements(const ds_tensor* tensor, int64_t* out_elements);
/** Kind of device (a ds_device_kind). Threads: any. Since: 0.1. */
DS_API ds_status ds_tensor_device(const ds_tensor* tensor, int32_t* out_device_kind);

/**
 * Address of the first element, in the memory of the tensor's device; NULL for no elements.
 * Ownership: borrowed while the tensor lives. Threads: any. Since: 0.1.
 */
DS_API ds_status ds_tensor_data(const ds_tensor* tensor, void** out_data);

/**
 * Copies all elements, packed row-major, to host memory of the caller.
 * @param size  bytes at `buffer`; must equal elements * element size
 * Since: 0.1.
 */
DS_API ds_status ds_tensor_read(const ds_tensor* tensor, void* buffer, int64_t size);

/**
 * Copies packed row-major elements from host memory of the caller into the tensor.
 * @param size  bytes at `buffer`; must equal elements * element size
 * Errors: DS_ERR_STATE for a read-only tensor. Since: 0.1.
 */
DS_API ds_status ds_tensor_write(ds_tensor* tensor, const void* buffer, int64_t size);

/**
 * The value of a tensor of one element, converted to double.
 * Since: 0.1.
 */
DS_API ds_status ds_tensor_item(const ds_tensor* tensor, double* out_value);

/** Ends a tensor; NULL is fine. Threads: any. Since: 0.1. */
DS_API void ds_tensor_destroy(ds_tensor* tensor);

/* ---- 4. Communicator ----------------------------------------------------------------------- */

/**
 * A key-value store that the caller provides for processes to find each other. Zero is default.
 * `put` and `get` return 0 or a negative status; `get` waits until the key exists or, with
 * DS_ERR_NOT_FOUND, until its own deadline passes, writes at most `capacity` bytes and the value's
 * size to `out_size`.
 */
typedef struct ds_store {
  int64_t struct_size; /**< sizeof(ds_store) of the caller's header */
  void* user_data;     /**< passed to the functions below */
  /** stores a value */
  ds_status (*put)(void* user_data, const char* key, const void* value, int64_t size);
  /** waits for a value and copies it */
  ds_status (*get)(void* user_data, const char* key, void* value, int64_t capacity,
                   int64_t* out_size);
} ds_store;

/** How numbers of several processes become one. Since: 0.4. */
enum ds_reduce_op {
  DS_REDUCE_SUM = 0,
  DS_REDUCE_AVERAGE = 1,
  DS_REDUCE_MIN = 2,
  DS_REDUCE_MAX = 3
};

/**
 * Joins a group of processes.
 * @param rank         this process, in [0, world_size); -1, with world_size -1: what the launcher
 *                     (ds launch, torchrun, mpirun, srun) put into the environment, else 0 of 1
 * @param world_size   number of processes
 * @param config_json  communication options (docs/communication.md); NULL or "{}" for the defaults
 * @param store        where the processes meet; NULL: a port of rank 0, which master_addr and
 *                     master_port of the options or MASTER_ADDR and MASTER_PORT name
 * Processes of one host share memory, others use sockets; the option "transport" decides otherwise.
 * With "nccl" each has a GPU, for engines whose models ds_model_set_device has moved there.
 * With "mpi" ranks are those of MPI: give -1, -1, no store, and in the option "mpi_communicator"
 * the MPI_Comm_c2f of a communicator other than MPI_COMM_WORLD. DS_ERR_UNSUPPORTED: no MPI plug-in.
 * Blocks: until all have joined. Errors: DS_ERR_CONFIG, DS_ERR_COMM, which names who did not come.
 * More than one process needs version 0.4.
 * Since: 0.1.
 */
DS_API ds_status ds_comm_create(int32_t rank, int32_t world_size, const char* config_json,
                                const ds_store* store, ds_comm** out_comm);
/** This process's number in the group. Threads: any. Since: 0.1. */
DS_API ds_status ds_comm_rank(const ds_comm* comm, int32_t* out_rank);
/** Number of processes in the group. Threads: any. Since: 0.1. */
DS_API ds_status ds_comm_size(const ds_comm* comm, int32_t* out_size);
/**
 * Sums a floating tensor over the group, in place, in rank order.
 * Blocks: until all have called. Errors: DS_ERR_COMM, DS_ERR_ABORTED. Since: 0.1.
 */
DS_API ds_status ds_comm_all_reduce(ds_comm* comm, ds_tensor* tensor);
/*
 * Collectives below: every process of the group calls the same ones in the same order, with tensors
 * of the same type; a wrong call, a lost process or a passed deadline is an error that names the
 * process. Tensors are packed, in host memory, of any type; reductions take no bool, and averages
 * only floating types, which are summed in rank order in fp32 and rounded once: the same bits
 * everywhere. Blocks: until the result is there. Errors: DS_ERR_INVALID_ARGUMENT, DS_ERR_COMM,
 * DS_ERR_ABORTED. Since: 0.4.
 */
/** Combines a tensor by a ds_reduce_op, in place. Since: 0.4. */
DS_API ds_status ds_comm_all_reduce_op(ds_comm* comm, ds_tensor* tensor, int32_t op);
/** `input` is one piece per process, one after another; the combined piece of this one lands in
 * `output`. Since: 0.4. */
DS_API ds_status ds_comm_reduce_scatter(ds_comm* comm, ds_tensor* output, const ds_tensor* input,
                                        int32_t op);
/** The `input` of every process, in rank order, lands in `output`. Since: 0.4. */
DS_API ds_status ds_comm_all_gather(ds_comm* comm, ds_tensor* output, const ds_tensor* input);
/** Piece j of the `input` of process i lands in piece i of the `output` of process j.
 * Since: 0.4. */
DS_API ds_status ds_comm_all_to_all(ds_comm* comm, ds_tensor* output, const ds_tensor* input);
/** The tensor of process `root` lands in that of every process. Since: 0.4. */
DS_API ds_status ds_comm_broadcast(ds_comm* comm, ds_tensor* tensor, int32_t root);
/** Processes that give the same color form a new group, ordered by key, then by rank; those with a
 * negative color get NULL. Aborting a group aborts those split from it. Since: 0.4. */
DS_API ds_status ds_comm_split(ds_comm* comm, int32_t color, int32_t key, ds_comm** out_comm);
/** For a process that runs out of work before others: answers the collectives that they still call,
 * with zeros to sums, until every process has called it; then the group goes on. Split and finalize
 * need every process, and roots must not have joined. Since: 0.4. */
DS_API ds_status ds_comm_join(ds_comm* comm);
/** What ds_comm_start starts, with the members of ds_collective that it uses. Since: 0.4. */
enum ds_collective_kind {
  DS_COLLECTIVE_ALL_REDUCE = 1,     /**< `output` in place, by `op` */
  DS_COLLECTIVE_REDUCE = 2,         /**< the same; the result is that of `root` alone */
  DS_COLLECTIVE_REDUCE_SCATTER = 3, /**< ds_comm_reduce_scatter */
  DS_COLLECTIVE_ALL_GATHER = 4,     /**< ds_comm_all_gather; `output_counts`: pieces of any size */
  DS_COLLECTIVE_BROADCAST = 5,      /**< `output` of `root` to that of every process */
  DS_COLLECTIVE_ALL_TO_ALL = 6,     /**< ds_comm_all_to_all; both counts: pieces of any size */
  DS_COLLECTIVE_GATHER = 7,         /**< every `input` to `output` of `root`, NULL elsewhere */
  DS_COLLECTIVE_SCATTER = 8,        /**< pieces of `input` of `root`, NULL elsewhere, to `output` */
  DS_COLLECTIVE_SEND = 9,           /**< `input` to process `root`, by `tag` */
  DS_COLLECTIVE_RECV = 10,          /**< `output` from process `root`, by `tag` */
  DS_COLLECTIVE_BARRIER = 11        /**< done when every process has started it */
};

/** One collective. Zero is default; what a kind does not use must be NULL. Since: 0.4. */
typedef struct ds_collective {
  int64_t struct_size;    /**< sizeof(ds_collective) of the caller's header */
  int32_t kind;           /**< a ds_collective_kind */
  int32_t op;             /**< a ds_reduce_op */
  ds_tensor* output;      /**< what is written, or changed in place */
  const ds_tensor* input; /**< what is only read */
  int32_t root;           /**< of those that have one; the other process of send and recv */
  int32_t tag;            /**< 0 or more: messages of one tag arrive in the order of sending */
  /** elements that come from each process, as many as processes; NULL: the same from all */
  const int64_t* output_counts;
  const int64_t* input_counts; /**< elements that go to each process; NULL: the same to all */
  const char* label;           /**< named in errors, such as a tensor's name; or NULL */
  int64_t timeout_ms;          /**< deadline; 0 = the group's */
  /** nonzero: averages divide by the processes that have not joined, not by all */
  int32_t average_over_participants;
  int32_t reserved; /**< 0 */
} ds_collective;

/**
 * Starts a collective and returns; it goes on beside the program, after those started before it.
 * The rules of the collectives above hold. The memory of `output` and `input` must not be touched
 * until ds_work_wait has returned or ds_work_test has told the end; texts, counts and handles are
 * free at once. Messages match by sender and tag; two processes may send to each other at once.
 * @param out_work  ended with ds_work_destroy
 * Errors: DS_ERR_COMM, DS_ERR_ABORTED (the group failed before); what happens to the operation
 * itself is told by ds_work_wait. Since: 0.4.
 */
DS_API ds_status ds_comm_start(ds_comm* comm, const ds_collective* collective, ds_work** out_work);
/** Whether an operation is over, well or not: `out_done` is 0 or 1. Threads: any. Since: 0.4. */
DS_API ds_status ds_work_test(const ds_work* work, int32_t* out_done);
/**
 * Waits until the result is in place. A second call tells the same.
 * @param out_participants  processes that took part and had not joined; may be NULL
 * Blocks: until the result is there or the deadline has passed. Errors: DS_ERR_COMM (a process
 * failed, was late or called something else: the text names it), DS_ERR_ABORTED. Threads: any.
 * Since: 0.4.
 */
DS_API ds_status ds_work_wait(const ds_work* work, int32_t* out_participants);
/** Ends the handle without waiting: the operation goes on and keeps its memory. NULL is fine.
 * Threads: any. Since: 0.4. */
DS_API void ds_work_destroy(ds_work* work);
/**
 * Makes a tensor of zeros whose memory the processes of a host share: collectives of this group, of
 * the one it was split from and of those split from it read and write it where it lies, without a
 * copy. Each process has its own tensor; views of it count as it does. Between hosts it is ordinary
 * memory.
 * @param dtype, shape, ndim  as in ds_tensor_create, the same in every process
 * Blocks: until every process has called. Errors: DS_ERR_COMM, DS_ERR_ABORTED. Since: 0.4.
 */
DS_API ds_status ds_comm_shared_tensor(ds_comm* comm, int32_t dtype, const int64_t* shape,
                                       int32_t ndim, ds_tensor** out_tensor);
/**
 * What the group is, as JSON: rank, size, transport, topology (local_rank, local_size, node,
 * nodes), traffic, the calls and bytes sent within the node and across nodes by collective, and
 * total_traffic, the same with that of all groups split from it, an engine's own included.
 * @param out_json  receives a string that the caller frees with ds_string_free
 * Threads: any. Since: 0.4.
 */
DS_API ds_status ds_comm_report(const ds_comm* comm, char** out_json);
/**
 * Waits until every process has called it.
 * Blocks: yes. Errors: DS_ERR_COMM, DS_ERR_ABORTED. Since: 0.1.
 */
DS_API ds_status ds_comm_barrier(ds_comm* comm);
/**
 * Ends the group together: afterwards only ds_comm_destroy is allowed.
 * Blocks: until every process has called. Errors: DS_ERR_COMM, DS_ERR_ABORTED. Since: 0.1.
 */
DS_API ds_status ds_comm_finalize(ds_comm* comm);
/** Makes every pending and later operation of the group fail with DS_ERR_ABORTED, here and
 * elsewhere. Threads: any. Since: 0.1. */
DS_API ds_status ds_comm_abort(ds_comm* comm);
/** Ends the handle without waiting for anybody; NULL is fine. Threads: any. Since: 0.1. */
DS_API void ds_comm_destroy(ds_comm* comm);

/* ---- 5. Tokenizers (all functions: Threads: any) ------------------------------------------- */

/** Makes the tokenizer whose tokens are the 256 byte values. Since: 0.1. */
DS_API ds_status ds_tokenizer_create_bytes(ds_tokenizer** out_tokenizer);

/**
 * Reads a tokenizer: a `tokenizer.json` file, a folder that holds one (or vocab.json and
 * merges.txt), or a checkpoint that holds one.
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT, DS_ERR_UNSUPPORTED (a component of the file
 * that this version does not know, by name). Since: 0.1.
 */
DS_API ds_status ds_tokenizer_open(const char* path, ds_tokenizer** out_tokenizer);

/**
 * Reads a tokenizer from the text of a `tokenizer.json`.
 * @param size  bytes of `json`; -1 when it ends with NUL
 * Errors: DS_ERR_CORRUPT, DS_ERR_UNSUPPORTED. Since: 0.1.
 */
DS_API ds_status ds_tokenizer_from_json(const char* json, int64_t size,
                                        ds_tokenizer** out_tokenizer);

/**
 * Learns a byte-level byte-pair encoding from text (Sennrich et al., arXiv:1508.07909; GPT-2's
 * byte alphabet and pre-split). Deterministic.
 * @param text          the training text
 * @param size          its bytes
 * @param options_json  {"vocab_size": 32000, "min_frequency": 2,
 *                      "special_tokens": ["<|endoftext|>"]}; NULL for these defaults
 * Errors: DS_ERR_CONFIG. Since: 0.1.
 */
DS_API ds_status ds_tokenizer_train(const char* text, int64_t size, const char* options_json,
                                    ds_tokenizer** out_tokenizer);

/**
 * Encodes text to token ids.
 * @param text         any bytes, not only UTF-8
 * @param size         bytes of `text`; -1 when it ends with NUL
 * @param add_special  nonzero: add the tokens that the tokenizer's template puts around a text
 * @param out_ids      int32 tensor [count]
 * Since: 0.1.
 */
DS_API ds_status ds_tokenizer_encode(const ds_tokenizer* tokenizer, const char* text, int64_t size,
                                     int32_t add_special, ds_tensor** out_ids);

/**
 * Decodes token ids to text; bytes that are not UTF-8, and U+0000, become U+FFFD.
 * @param ids           int32 or int64 tensor [count]
 * @param skip_special  nonzero: leave special tokens out
 * Since: 0.1.
 */
DS_API ds_status ds_tokenizer_decode(const ds_tokenizer* tokenizer, const ds_tensor* ids,
                                     int32_t skip_special, char** out_text);

/** Number of token ids: ids are in [0, size). Since: 0.1. */
DS_API ds_status ds_tokenizer_vocab_size(const ds_tokenizer* tokenizer, int64_t* out_size);
/** Id of the end-of-text token, -1 when there is none. Since: 0.1. */
DS_API ds_status ds_tokenizer_end_of_text(const ds_tokenizer* tokenizer, int32_t* out_id);
/** Id of a token given as the file spells it. Errors: DS_ERR_NOT_FOUND. Since: 0.1. */
DS_API ds_status ds_tokenizer_token_to_id(const ds_tokenizer* tokenizer, const char* token,
                                          int32_t* out_id);
/** Spelling of a token id. Errors: DS_ERR_NOT_FOUND. Since: 0.1. */
DS_API ds_status ds_tokenizer_id_to_token(const ds_tokenizer* tokenizer, int32_t id,
                                          char** out_token);
/** The tokenizer as the text of a `tokenizer.json`. Since: 0.1. */
DS_API ds_status ds_tokenizer_to_json(const ds_tokenizer* tokenizer, char** out_json);
/** Ends a tokenizer handle; NULL is fine. Since: 0.1. */
DS_API void ds_tokenizer_destroy(ds_tokenizer* tokenizer);

/* ---- 6. Data sets (all functions: Threads: any) -------------------------------------------- */

/**
 * Opens training samples. Kind "gpt" (default) has `sequence_length + 1` running tokens in the
 * order of Megatron's GPT data set: documents and samples shuffled with the seed, epoch after
 * epoch.
 * Kind "blend" draws from members by weight; "packed" packs fine-tuning examples (prompt and
 * completion, chats, texts) of a .jsonl file and learns the answers only; "mlm" hides tokens of
 * documents for BERT (Devlin et al., arXiv:1810.04805). docs/data.md has their keys.
 * @param spec_json  {"kind": "gpt", "path": FILE_OR_PREFIX, "sequence_length": N, "samples": N,
 *                   "split": "969,30,1", "split_rounding": "megatron"|"megatron_core",
 *                   "part": "train"|"valid"|"test", "seed": 1234}.
 *                   `path` names PREFIX.bin and PREFIX.idx, a text file or a .jsonl file whose
 *                   lines have "text". `samples` 0 (default) means one epoch.
 * @param tokenizer  encodes text; NULL reads bytes. Not used for PREFIX.
 * Errors: DS_ERR_CONFIG, DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT. Since: 0.1.
 */
DS_API ds_status ds_dataset_open(const char* spec_json, const ds_tokenizer* tokenizer,
                                 ds_dataset** out_dataset);

/**
 * Tokenises a text or .jsonl file into PREFIX.bin and PREFIX.idx (Megatron's format).
 * @param input        the file; "text" is read from each line of a .jsonl file
 * @param append_end   nonzero: one end-of-text token after each document
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT. Since: 0.1.
 */
DS_API ds_status ds_dataset_build(const char* input, const ds_tokenizer* tokenizer,
                                  int32_t append_end, const char* output_prefix);

/** Number of samples. Since: 0.1. */
DS_API ds_status ds_dataset_size(const ds_dataset* dataset, int64_t* out_samples);
/** Tokens per sample less one. Since: 0.1. */
DS_API ds_status ds_dataset_sequence_length(const ds_dataset* dataset, int64_t* out_length);
/** One sample of running tokens as an int32 tensor [sequence_length + 1].
 * Errors: DS_ERR_UNSUPPORTED (another kind: use ds_dataset_field). Since: 0.1. */
DS_API ds_status ds_dataset_sample(const ds_dataset* dataset, int64_t index,
                                   ds_tensor** out_tokens);
/**
 * One field of a sample as a tensor [sequence_length].
 * @param field  "ids", "labels", "segments", "token_types" (int32) or "mask" (uint8)
 * Errors: DS_ERR_NOT_FOUND (the data set has no such field). Since: 0.2.
 */
DS_API ds_status ds_dataset_field(const ds_dataset* dataset, int64_t index, const char* field,
                                  ds_tensor** out_values);
/** Ends a data set handle; NULL is fine. Since: 0.1. */
DS_API void ds_dataset_destroy(ds_dataset* dataset);

/* ---- 7. Models ----------------------------------------------------------------------------- */

/**
 * Makes a model with fresh weights: N(0, initializer_range), output projections scaled by
 * 1/sqrt(2 layers), biases 0, norms 1 (Shoeybi et al., arXiv:1909.08053).
 * @param config_json  a Hugging Face config.json; docs/models.md lists the families
 * @param seed         same seed, same weights
 * Errors: DS_ERR_CONFIG, DS_ERR_UNSUPPORTED. Since: 0.1.
 */
DS_API ds_status ds_model_create(const char* config_json, int64_t seed, ds_model** out_model);

/**
 * Opens weights from a folder: Hugging Face (config.json and safetensors) or a checkpoint of
 * ds_engine_save (the folder that holds `latest`, or one tag's folder).
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT, DS_ERR_UNSUPPORTED. Since: 0.1.
 */
DS_API ds_status ds_model_open(const char* folder, ds_model** out_model);

/** One parameter of a program that computes its own gradients. Zero is default. */
typedef struct ds_parameter {
  int64_t struct_size; /**< sizeof(ds_parameter) of the caller's header, the same in all elements */
  const char* name;    /**< unlike all others; UTF-8 */
  const int64_t* shape; /**< the whole tensor's; may be NULL when `value` is given */
  const ds_tensor*
      value;          /**< first value (float32, bfloat16, float16), host or GPU; NULL = zeros */
  const char* group;  /**< of the optimizer's param_groups; NULL = the default one */
  const char* alias;  /**< another name of the same tensor (tied weights); NULL = none */
  int32_t ndim;       /**< sizes at `shape`, 0 to 8 */
  int32_t dtype;      /**< type in which the program holds it; 0 = that of `value`, else float32 */
  int32_t lend;       /**< nonzero: `value` receives every new value, in its own type */
  int32_t frozen;     /**< nonzero: never updated, takes no gradient */
  int32_t no_decay;   /**< nonzero: weight decay does not apply */
  int32_t has_expert; /**< nonzero: `expert` counts */
  int64_t expert;     /**< index of the expert that it belongs to */
} ds_parameter;

/**
 * Makes a model of the caller's own parameters, without a forward pass: the caller computes
 * gradients and gives them to an engine (ds_engine_add_gradient). It trains, saves, loads and
 * exports as any other; ds_model_open of a checkpoint gives it back. It lives on the GPU that
 * values lie on, packed; else on the CPU.
 * @param parameters  `count` elements; texts and shapes are copied
 * @param count       1 or more
 * Ownership: a lent `value` is counted: its memory is written after every applied step, load and
 * ds_model_set_tensor, inside those calls only. An engine of several processes at ZeRO stage 3
 * refuses lent values: no process has whole weights to write. A parameter that is not lent lies in
 * the library's memory, see ds_model_view_tensor; its dtype must then be float32 or the type in
 * which the engine's configuration computes. Errors: DS_ERR_UNSUPPORTED (a type, two
 * places). Since: 0.2.
 */
DS_API ds_status ds_model_create_from_parameters(const ds_parameter* parameters, int64_t count,
                                                 ds_model** out_model);

/**
 * A parameter's memory as the model computes with it, without a copy: float32, or the type of the
 * engine's precision while an engine trains. Read it between steps; writing is for
 * ds_model_set_tensor.
 * Ownership: the memory lives as long as the tensor, and is the model's until an engine of the
 * model is made, loads a checkpoint or ends. Errors: DS_ERR_NOT_FOUND, DS_ERR_UNSUPPORTED (a
 * built-in model's weights on a GPU, or weights spread over processes). Since: 0.2.
 */
DS_API ds_status ds_model_view_tensor(ds_model* model, const char* name, ds_tensor** out_tensor);

/**
 * Describes a parameter as JSON: {"name", "shape", "trainable", "decays", "group", "aliases"}.
 * Errors: DS_ERR_NOT_FOUND. Threads: any. Since: 0.2.
 */
DS_API ds_status ds_model_tensor_info(const ds_model* model, const char* name, char** out_json);

/**
 * Moves the weights to a device, where the model then runs and engines made later train it. Tensors
 * that are given and returned stay in host memory; docs/cuda.md says what runs on a GPU.
 * @param device  "cpu", where models begin, or a GPU: "cuda:0", counted as ds_report lists them.
 *     Of several processes each takes another GPU, and their group is one of transport "nccl".
 * Errors: DS_ERR_UNSUPPORTED (no CUDA in this build, no driver, no GPU; or lent parameters),
 * DS_ERR_INVALID_ARGUMENT (no such device), DS_ERR_STATE (the model has an engine, or is prepared
 * for inference), DS_ERR_OUT_OF_MEMORY, DS_ERR_DEVICE. Since: 0.4.
 */
DS_API ds_status ds_model_set_device(ds_model* model, const char* device);
/** Where the weights are, such as "cuda:0". Ownership: owned. Since: 0.4. */
DS_API ds_status ds_model_device(const ds_model* model, char** out_device);

/**
 * Freezes parameters, or lets them train again. Frozen ones take no gradient and no optimizer
 * state.
 * @param pattern    of names: `*` is any text, `?` one character
 * @param trainable  0 freezes
 * Errors: DS_ERR_NOT_FOUND (no name matches), DS_ERR_STATE (the model has an engine). Since: 0.2.
 */
DS_API ds_status ds_model_set_trainable(ds_model* model, const char* pattern, int32_t trainable);

/**
 * Adds low-rank adapters (LoRA: Hu et al., arXiv:2106.09685) and freezes everything else:
 * y = x W^T + (alpha / rank) dropout(x) A^T B^T, with B zero at first.
 * @param options_json  {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": false,
 *                      "target_modules": ["q_proj", "v_proj"], "seed": 0}; target_modules (ends of
 *                      module names, or "all-linear") must be given, the rest has these defaults
 * Errors: DS_ERR_CONFIG, DS_ERR_NOT_FOUND (no layer matches), DS_ERR_STATE (the model has an engine
 * or adapters). Since: 0.2.
 */
DS_API ds_status ds_model_add_lora(ds_model* model, const char* options_json);
/**
 * Adds the adapters' products to the weights and removes the adapters; all parameters train again.
 * Errors: DS_ERR_STATE (no adapters, or the model has an engine). Since: 0.2.
 */
DS_API ds_status ds_model_merge_lora(ds_model* model);
/**
 * Writes the adapters alone in PEFT's layout: adapter_config.json, adapter_model.safetensors.
 * @param dtype  DS_FLOAT32, DS_BFLOAT16 or DS_FLOAT16
 * Errors: DS_ERR_IO, DS_ERR_STATE (no adapters). Since: 0.2.
 */
DS_API ds_status ds_model_save_adapter(ds_model* model, const char* folder, int32_t dtype);
/**
 * Reads adapters in PEFT's layout onto the model they were made for, and freezes everything else.
 * Errors: as ds_model_open, and DS_ERR_STATE (the model has an engine or adapters). Since: 0.2.
 */
DS_API ds_status ds_model_load_adapter(ds_model* model, const char* folder);

/**
 * Makes a second model of the same weights (fp32), adapters and frozen parameters, on the same
 * device, which shares nothing with the first: it can generate, evaluate or be exported while an
 * engine trains the first one on. To be called between two calls of that engine. Where processes share the weights of a model (ZeRO stage 3), every one calls.
 * @param out_model  the copy; no engine trains it. Ownership: owned (ds_model_destroy).
 * Errors: DS_ERR_STATE (another call uses the model, or it is prepared for inference),
 * DS_ERR_UNSUPPORTED (own parameters), DS_ERR_OUT_OF_MEMORY. Since: 0.4.
 */
DS_API ds_status ds_model_copy(ds_model* model, ds_model** out_model);
/**
 * Writes a checkpoint of the weights alone, which ds_model_open reads; it holds no optimizer state.
 * @param tag  NULL for "weights"
 * Errors: DS_ERR_IO, DS_ERR_STATE. Since: 0.2.
 */
DS_API ds_status ds_model_save(ds_model* model, const char* folder, const char* tag);

/**
 * ds_model_export with files of limited size, named by model.safetensors.index.json.
 * @param dtype            DS_FLOAT32, DS_BFLOAT16 or DS_FLOAT16
 * @param max_shard_bytes  of tensor data per file (a larger tensor has a file of its own); 0 = one
 *                         file
 * Errors: as ds_model_export. Since: 0.2.
 */
DS_API ds_status ds_model_export_sharded(ds_model* model, const char* folder, int32_t dtype,
                                         int64_t max_shard_bytes);

/**
 * ds_model_open of a Hugging Face folder with another head or changed options: to begin with an
 * encoder and train a classifier on top, for example.
 * @param changes_json  members that replace those of config.json, such as {"architectures":
 *                      ["BertForSequenceClassification"], "num_labels": 3}; NULL for none
 * @param head_seed     0 or more: parameters of the head that the files lack start fresh from this
 *                      seed; -1: they must be there
 * Errors: as ds_model_open, DS_ERR_CONFIG. Since: 0.2.
 */
DS_API ds_status ds_model_open_with(const char* folder, const char* changes_json, int64_t head_seed,
                                    ds_model** out_model);

/**
 * Writes config.json and model.safetensors so that Transformers loads them (a model of own
 * parameters: model.safetensors alone). While an engine of several processes trains the model,
 * every process makes this call, and the others of this section that read or write weights; the
 * process of rank 0 writes the files.
 * @param dtype  DS_FLOAT32, DS_BFLOAT16 or DS_FLOAT16
 * Errors: DS_ERR_IO, DS_ERR_STATE (trained by an engine that is in the middle of a step).
 * Since: 0.1.
 */
DS_API ds_status ds_model_export(ds_model* model, const char* folder, int32_t dtype);

/** The architecture as a config.json; "null" for own parameters. Threads: any. Since: 0.1. */
DS_API ds_status ds_model_config(const ds_model* model, char** out_json);
/** Number of parameter tensors (tied ones once). Threads: any. Since: 0.1. */
DS_API ds_status ds_model_tensor_count(const ds_model* model, int64_t* out_count);
/** Number of parameters in all (tied ones once). Threads: any. Since: 0.1. */
DS_API ds_status ds_model_parameter_count(const ds_model* model, int64_t* out_count);
/** Name of parameter tensor `index`. Ownership: owned. Threads: any. Since: 0.1. */
DS_API ds_status ds_model_tensor_name(const ds_model* model, int64_t index, char** out_name);
/**
 * A copy of a parameter, full shape, float32: the master copy where an engine keeps one.
 * Errors: DS_ERR_NOT_FOUND (with the nearest name). Since: 0.1.
 */
DS_API ds_status ds_model_get_tensor(ds_model* model, const char* name, ds_tensor** out_tensor);
/**
 * Sets a parameter (and its master copy) from a float32 tensor of the same shape.
 * Between backward and step too: the step works with it. Errors: DS_ERR_NOT_FOUND, DS_ERR_STATE
 * (between forward and backward). Since: 0.1.
 */
DS_API ds_status ds_model_set_tensor(ds_model* model, const char* name, const ds_tensor* value);

/**
 * Makes a model that only runs: from now on its weights lie in one form, the float32 copies are
 * gone, and it has threads of its own. docs/inference.md describes the forms.
 * @param options_json  {"weights": "bf16", "group_size": 64, "symmetric": true, "threads": 0},
 * these being the defaults; NULL for all of them. weights: "fp32", "bf16", or "int8", "int4" for
 * the matrices of linear layers beside bfloat16 for everything else; activations are float32 with
 * "fp32" and bfloat16 otherwise. group_size: elements of a row that share a scale in "int8" and
 * "int4", a multiple of 8; 0 = the whole row. symmetric: false gives groups of "int4" a minimum
 * beside the scale. threads: 0 = the CPUs that the process may run on.
 * @param out_json      {"weights", "threads", "bytes", "bytes_per_token", "group_size",
 *                      "symmetric"}: bytes of all weights, and of those that each new token reads
 *                      whole. Ownership: owned.
 * ds_model_generate, _logits, _hidden_states, _get_tensor and _export go on, with the values that
 * the form holds; whatever trains, sets, views or saves weights gives DS_ERR_STATE.
 * Needs memory for both forms while it runs; when it fails, the model stays as it was.
 * Errors: DS_ERR_CONFIG, DS_ERR_INVALID_ARGUMENT (an unknown form, or weights that are not finite),
 * DS_ERR_STATE (an engine trains the model, or it is prepared already), DS_ERR_UNSUPPORTED (own
 * parameters). Since: 0.3.
 */
DS_API ds_status ds_model_prepare_inference(ds_model* model, const char* options_json,
                                            char** out_json);

/** How ds_model_generate chooses tokens. Zero is default. */
typedef struct ds_generate_options {
  int64_t struct_size;    /**< sizeof(ds_generate_options) of the caller's header */
  int64_t max_tokens;     /**< new tokens at most; 0 = 64 */
  double temperature;     /**< 0 = always the likeliest token */
  int64_t top_k;          /**< keep the k likeliest; 0 = all */
  double top_p;           /**< keep the likeliest whose sum reaches p (Holtzman et al.,
                               arXiv:1904.09751); 0 = all */
  int64_t seed;           /**< same seed, same text */
  int32_t stop_token;     /**< ends the text when `has_stop_token` */
  int32_t has_stop_token; /**< nonzero: use `stop_token` */
  int32_t no_graphs;      /**< nonzero: on a GPU, launch the kernels of each token one by one
                               instead of recording them once as a CUDA graph; the text is the
                               same, bit for bit. Since: 0.4 */
  int32_t reserved;       /**< 0 */
} ds_generate_options;

/** Receives each new token; nonzero stops with DS_ERR_CALLBACK. It must not use the model. */
typedef int32_t (*ds_token_fn)(void* user_data, int32_t token);

/**
 * Continues a prompt, with a key-value cache.
 * @param prompt     int32 or int64 tensor [count], count >= 1
 * @param options    NULL for the defaults
 * @param on_token   called on this thread with each new token; may be NULL
 * @param user_data  passed to `on_token`
 * @param out_ids    int32 tensor [new tokens], without the prompt and the stop token
 * Text beyond the model's positions goes on from its last half alone, with a warning in the log.
 * Errors: DS_ERR_CALLBACK, DS_ERR_STATE (an engine trains the model at this moment). Since: 0.1.
 */
DS_API ds_status ds_model_generate(ds_model* model, const ds_tensor* prompt,
                                   const ds_generate_options* options, ds_token_fn on_token,
                                   void* user_data, ds_tensor** out_ids);

/**
 * Logits of a batch, without training.
 * @param ids             int32 or int64 tensor [batch, length]
 * @param attention_mask  uint8, bool, int32 or int64 tensor [batch, length], 0 = padding; or NULL
 * @param out_logits      float32 tensor [batch, length, vocabulary], or [batch, classes] of a model
 *                        that classifies
 * Errors: DS_ERR_STATE, DS_ERR_UNSUPPORTED (no head, or own parameters). Since: 0.1.
 */
DS_API ds_status ds_model_logits(ds_model* model, const ds_tensor* ids,
                                 const ds_tensor* attention_mask, ds_tensor** out_logits);

/**
 * Hidden states after the last norm, before the head, without training.
 * @param ids             int32 or int64 tensor [batch, length]
 * @param attention_mask  as in ds_model_logits, or NULL
 * @param token_types     int32 or int64 tensor [batch, length] for models that have them, or NULL
 * @param out_states      float32 tensor [batch, length, width]
 * Errors: DS_ERR_STATE, DS_ERR_UNSUPPORTED (own parameters). Since: 0.2.
 */
DS_API ds_status ds_model_hidden_states(ds_model* model, const ds_tensor* ids,
                                        const ds_tensor* attention_mask,
                                        const ds_tensor* token_types, ds_tensor** out_states);

/** Ends a model handle; an engine that uses the model keeps it. Threads: any. Since: 0.1. */
DS_API void ds_model_destroy(ds_model* model);

/* ---- 8. Engine ----------------------------------------------------------------------------- */

/** Why a step was not applied. */
enum ds_skip_reason {
  DS_SKIP_NONE = 0,         /**< It was applied. */
  DS_SKIP_ACCUMULATING = 1, /**< Not a boundary: more micro batches belong to this step. */
  DS_SKIP_NON_FINITE = 2 /**< A gradient was NaN or infinite; weights and moments are untouched. */
};

/** What a step did. Set struct_size before the call. */
typedef struct ds_step_report {
  int64_t struct_size;        /**< sizeof(ds_step_report) of the caller's header */
  int64_t step;               /**< optimizer steps so far, skipped ones included */
  int64_t micro_steps;        /**< micro batches so far */
  int64_t samples;            /**< samples so far */
  int64_t tokens;             /**< labels of this step that count towards the loss, of all micro
                                   batches and processes; -100 does not count */
  int32_t applied;            /**< nonzero: weights changed */
  int32_t skip_reason;        /**< a ds_skip_reason */
  double loss;                /**< mean loss of this step's micro batches; NaN when gradients were
                                   the caller's and it gave none (ds_engine_set_loss) */
  double grad_norm;           /**< global norm before clipping; -1 when not finite */
  double lr;                  /**< rate that this step used */
  double loss_scale;          /**< scale that multiplied the loss */
  double seconds;             /**< wall time of this step */
  char first_bad_tensor[256]; /**< parameter with the first non-finite gradient, else "" */
  int64_t first_bad_element;  /**< its row-major index in that parameter, else -1. Since: 0.4 */
  double first_bad_value;     /**< that gradient: NaN or an infinity, else 0. Since: 0.4 */
} ds_step_report;

/**
 * Makes a training engine.
 * @param config_json  a DeepSpeed configuration (docs/configuration.md); unknown keys are errors
 * @param model        what to train; the engine keeps it alive and trains its weights in place. A
 *                     model serves one engine at a time.
 * @param comm         the group to train with; NULL for this process alone
 * Errors: DS_ERR_CONFIG, DS_ERR_UNSUPPORTED, DS_ERR_STATE (the model has an engine). Since: 0.1.
 */
DS_API ds_status ds_engine_create(const char* config_json, ds_model* model, ds_comm* comm,
                                  ds_engine** out_engine);

/**
 * Makes a training engine of a document as people publish it: ds_engine_create with a say in how the
 * configuration is read.
 * @param options_json  NULL, or an object of
 *   "resolve_auto": what the string "auto" becomes, by the rules of Hugging Face's Trainer and
 *       Accelerate: true, or an object of what the caller knows: "lr", "betas", "eps",
 *       "weight_decay", "gradient_clipping", "total_num_steps", "warmup_num_steps",
 *       "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
 *       "precision" ("fp32", "fp16", "bf16"), "stage", "offload_optimizer", "offload_param"
 *       (devices). What decides the training and is not said is refused.
 *   "lenient": true passes over trailing commas, comments that begin with #, keys that begin with
 *       _, # or //, and unknown keys where DeepSpeed does; each is a warning.
 *   "set": an object of values over the document's, by JSON pointer or dotted path, such as
 *       {"/optimizer/params/lr": 1e-4}.
 *   "require_optimizer": true refuses a document without an optimizer, as DeepSpeed does.
 * Errors: those of ds_engine_create. Since: 0.5.
 */
DS_API ds_status ds_engine_create_with(const char* config_json, const char* options_json,
                                       ds_model* model, ds_comm* comm, ds_engine** out_engine);
/**
 * The same of a file; errors name it.
 * @param path  the file with the configuration
 * Errors: those of ds_engine_create, DS_ERR_IO, DS_ERR_NOT_FOUND. Since: 0.5.
 */
DS_API ds_status ds_engine_create_from_file(const char* path, const char* options_json,
                                            ds_model* model, ds_comm* comm,
                                            ds_engine** out_engine);

/**
 * Computes the loss of one micro batch and remembers what backward needs.
 * @param inputs    [0] token ids, int32 or int64 [batch, length];
 *                  [1] labels, int32 or int64 [batch, length], -100 = not counted: label (b, t) is
 *                  the token that position (b, t) shall predict;
 *                  a model that classifies takes [batch], and one whose config.json says
 *                  problem_type regression (or one label and no problem_type) or
 *                  multi_label_classification takes numbers: float32, int32 or int64 [batch,
 *                  num_labels], also [batch] for one label, from 0 to 1 for several labels. Their
 *                  loss is the mean squared error, or the binary cross entropy of the logits, over
 *                  all numbers;
 *                  [2] optional attention mask, 0 = padding, uint8, bool, int32 or int64;
 *                  [3] optional segment numbers of packed sequences, int32 or int64 [batch,
 *                  length]: tokens see their own segment only, positions restart with each;
 *                  [4] optional token types, int32 or int64 [batch, length]
 * @param count     2 to 5; optional elements may be NULL
 * @param out_loss  float32 tensor [], mean over the counted labels
 * Errors: DS_ERR_STATE (the last forward still waits for its backward). Since: 0.1.
 */
DS_API ds_status ds_engine_forward(ds_engine* engine, ds_tensor* const* inputs, int32_t count,
                                   ds_tensor** out_loss);

/**
 * Adds the gradient of the last forward's loss, divided by gradient_accumulation_steps.
 * @param loss  the tensor that ds_engine_forward gave; another one is refused
 * Errors: DS_ERR_STATE (no forward waits). Since: 0.1.
 */
DS_API ds_status ds_engine_backward(ds_engine* engine, const ds_tensor* loss);

/**
 * Adds a gradient that the caller computed to those of the open step. Parameters without one count
 * as zero. The update uses the sum of all that was added, divided by the loss scale: a mean over
 * micro batches is the caller's to make, as ds_engine_backward divides by
 * gradient_accumulation_steps.
 * Of several processes the average counts; at ZeRO stage 3 it is made as soon as a few neighbouring
 * parameters have their gradients, so processes add them in the same order. With a built-in model
 * of several processes the first call (or view) of an engine is every process's, at the same point,
 * and there is none at stage 3.
 * @param name      parameter
 * @param gradient  float32, bfloat16 or float16 of the parameter's shape, in host memory with any
 *                  strides or packed on the model's GPU; it carries
 *                  ds_engine_loss_scale. It is read before the call returns
 * Errors: DS_ERR_NOT_FOUND, DS_ERR_STATE (a forward waits for its backward), DS_ERR_UNSUPPORTED (a
 * built-in model at stage 3). Since: 0.2.
 */
DS_API ds_status ds_engine_add_gradient(ds_engine* engine, const char* name,
                                        const ds_tensor* gradient);
/**
 * The same for many parameters in one call; nothing is added when one of them is wrong.
 * @param indices    numbers of parameters as in ds_model_tensor_name; NULL = 0, 1, ...
 * @param gradients  `count` tensors
 * Errors: as ds_engine_add_gradient. Since: 0.2.
 */
DS_API ds_status ds_engine_add_gradients(ds_engine* engine, const int64_t* indices,
                                         ds_tensor* const* gradients, int64_t count);
/** Replaces the gathered gradient of a parameter. Errors: as ds_engine_add_gradient. Since: 0.2. */
DS_API ds_status ds_engine_set_gradient(ds_engine* engine, const char* name,
                                        const ds_tensor* gradient);
/**
 * The memory that a parameter's gradient gathers in, without a copy, in the type of
 * grad_accum_dtype: a program adds to it in place, between steps; every step clears it.
 * Ownership: the memory lives as long as the tensor, and is the engine's until it loads a
 * checkpoint or ends. Errors: DS_ERR_NOT_FOUND. Since: 0.2.
 */
DS_API ds_status ds_engine_gradient_view(ds_engine* engine, const char* name,
                                         ds_tensor** out_tensor);
/**
 * Says what the loss of the open micro batch was, where gradients are the caller's: reports and
 * monitors show the mean of those that were given, over micro batches and processes, and leave the
 * loss out when none was. A second call before ds_engine_step replaces the first; NaN and infinities
 * are taken as they are.
 * Errors: DS_ERR_STATE (the micro batch went through ds_engine_forward). Since: 0.4.
 */
DS_API ds_status ds_engine_set_loss(ds_engine* engine, double loss);
/** Gives up the open step: its gradients are cleared, weights stay. Since: 0.2. */
DS_API ds_status ds_engine_discard_gradients(ds_engine* engine);
/**
 * Says whether the next calls of ds_engine_step are accumulation boundaries, until it is called
 * again; every process says the same.
 * @param boundary  1: they update; 0: they only end a micro batch; -1: gradient_accumulation_steps
 *                  decides, as without this call
 * Gradients are divided by gradient_accumulation_steps as before, however many micro batches there
 * are; the report's loss is their mean. Errors: DS_ERR_INVALID_ARGUMENT (another number),
 * DS_ERR_STATE (managed_gradient_accumulation is false: every step is a boundary). While it is set,
 * ds_engine_train_batch and ds_engine_join give DS_ERR_STATE. Since: 0.5.
 */
DS_API ds_status ds_engine_set_boundary(ds_engine* engine, int32_t boundary);
/** What losses are multiplied by before their gradients are taken: 1 unless fp16 trains. It may
 * change with every step. Since: 0.2. */
DS_API ds_status ds_engine_loss_scale(ds_engine* engine, double* out_scale);

/**
 * Makes own parameters whole for the caller's computation, until ds_engine_release_parameters. At
 * ZeRO stage 3 that gathers them from the processes that hold their parts: every process fetches,
 * releases and adds gradients for the same parameters in the same order, and wherever that was the
 * order of the step before, what comes next is fetched ahead. At other stages the tensors are views
 * of weights that are whole anyway, so a program need not know its stage.
 * @param indices      numbers of parameters as in ds_model_tensor_name; NULL = 0, 1, ...
 * @param count        how many
 * @param out_tensors  room for `count` tensors of the parameters' shapes, in the type that the
 *                     engine computes in, to be read only
 * Ownership: the handles end with the release, or the engine; what was exported from them stays
 * readable, with the values of this step. A parameter may be fetched several times and is released
 * as often. Blocks: until the values are there. Errors: DS_ERR_STATE (parameters are gathered),
 * DS_ERR_UNSUPPORTED (a built-in model), DS_ERR_COMM (processes fetch different parameters: the
 * text names them), DS_ERR_ABORTED. Since: 0.4.
 */
DS_API ds_status ds_engine_fetch_parameters(ds_engine* engine, const int64_t* indices,
                                            int64_t count, ds_tensor** out_tensors);
/**
 * Ends fetches: the tensors' handles end, and memory that no parameter needs soon is given back.
 * ds_engine_step needs every fetch released. Nothing happens when one of them was not fetched.
 * @param indices  as in ds_engine_fetch_parameters, in any grouping
 * Errors: DS_ERR_STATE (not fetched). Since: 0.4.
 */
DS_API ds_status ds_engine_release_parameters(ds_engine* engine, const int64_t* indices,
                                              int64_t count);
/**
 * Begins a scope in which parameters of any model are whole in every process and one process may
 * change them, at every ZeRO stage: float32 copies of the master values. Every process calls it.
 * Until ds_engine_scatter_parameters no step can be made.
 * @param indices      as in ds_engine_fetch_parameters
 * @param out_tensors  room for `count` float32 tensors of the parameters' shapes
 * Ownership: the handles end with the scope, or the engine. Blocks: yes. Errors: DS_ERR_STATE (in
 * the middle of a step, a parameter is gathered already, parameters are fetched), DS_ERR_COMM,
 * DS_ERR_ABORTED. Since: 0.4.
 */
DS_API ds_status ds_engine_gather_parameters(ds_engine* engine, const int64_t* indices,
                                             int64_t count, ds_tensor** out_tensors);
/**
 * Ends the scope of parameters: what process `modifier_rank` has in its tensors becomes their value
 * in every process. Every process calls it.
 * @param modifier_rank  -1: all changes are dropped
 * Blocks: yes. Errors: DS_ERR_STATE (not gathered; -1 and changed, with enable_sanity_checks: the
 * scope stays), DS_ERR_COMM, DS_ERR_ABORTED. Since: 0.4.
 */
DS_API ds_status ds_engine_scatter_parameters(ds_engine* engine, const int64_t* indices,
                                              int64_t count, int32_t modifier_rank);
/**
 * The part of a parameter, as elements of its packed values, whose master and optimizer state this
 * process holds: everything at ZeRO stage 0, perhaps nothing at others.
 * Errors: DS_ERR_NOT_FOUND. Since: 0.4.
 */
DS_API ds_status ds_engine_local_range(ds_engine* engine, const char* name, int64_t* out_first,
                                       int64_t* out_count);
/**
 * A copy of this process's part of something, without waiting for others.
 * @param what        "parameter", "gradient" (of what has been reduced) or one of
 *                    ds_optimizer_state_names
 * @param out_tensor  float32 [count of ds_engine_local_range]
 * Errors: DS_ERR_NOT_FOUND. Since: 0.4.
 */
DS_API ds_status ds_engine_get_local(ds_engine* engine, const char* name, const char* what,
                                     ds_tensor** out_tensor);
/**
 * Sets it. Every process makes the call, each with its part.
 * Blocks: for "parameter". Errors: DS_ERR_NOT_FOUND, DS_ERR_STATE (between forward and backward),
 * DS_ERR_UNSUPPORTED (gradients of the caller that are not reduced before the step), DS_ERR_COMM,
 * DS_ERR_ABORTED. Since: 0.4.
 */
DS_API ds_status ds_engine_set_local(ds_engine* engine, const char* name, const char* what,
                                     const ds_tensor* value);
/**
 * For a process that has no further batches while others may: takes part in their steps, because it
 * owns a part of the state, with gradients of zero, and returns when every process has called it.
 * A step's gradient and loss are means over the micro batches that there were. Until then the
 * others make steps only. Afterwards all go on together.
 * Blocks: until every process has called. Errors: DS_ERR_STATE (a micro batch is open; or own
 * parameters at ZeRO stage 3, and this process has had no micro batch yet), DS_ERR_COMM,
 * DS_ERR_ABORTED. Since: 0.4.
 */
DS_API ds_status ds_engine_join(ds_engine* engine);

/**
 * Ends a micro batch; at an accumulation boundary clips, updates and clears the gradients.
 * @param out_report  may be NULL
 * Errors: DS_ERR_STATE (no backward or gradient since the last step; or training cannot go on:
 * max_consecutive_skips steps in a row were skipped, or gradients overflow at the smallest loss
 * scale - that step is counted as skipped, weights are untouched). Since: 0.1.
 */
DS_API ds_status ds_engine_step(ds_engine* engine, ds_step_report* out_report);

/**
 * Sets the data that ds_engine_train_batch reads; sampling begins at the engine's sample counter,
 * so that a loaded engine goes on where it was. NULL takes the data away.
 * Errors: DS_ERR_INVALID_ARGUMENT when the samples are longer than the model allows or hold tokens
 * outside its vocabulary. Up to 64 million stored tokens are checked here, which reads them; those
 * of larger data sets when they are drawn. The text names file, byte, sequence and document.
 * Since: 0.1.
 */
DS_API ds_status ds_engine_set_dataset(ds_engine* engine, const ds_dataset* dataset);

/**
 * One optimizer step over the data set: gradient_accumulation_steps micro batches of forward and
 * backward, then the update.
 * @param out_report  may be NULL
 * Errors: DS_ERR_STATE (no data set, or a forward of the caller is open). Since: 0.1.
 */
DS_API ds_status ds_engine_train_batch(ds_engine* engine, ds_step_report* out_report);

/**
 * Mean loss over a data set, without training and without dropout.
 * @param max_batches  micro batches at most; 0 = all
 * Since: 0.1.
 */
DS_API ds_status ds_engine_evaluate(ds_engine* engine, const ds_dataset* dataset,
                                    int64_t max_batches, double* out_loss);

/**
 * Hears how far a long call of an engine has come, on the thread that makes the call.
 * @param call   "train_batch" (parts are micro batches), "evaluate" (micro batches), "save"
 *               (parameters) or "load" (bytes); the text is static
 * @param done   parts that are done
 * @param total  parts of the call
 * @return 0 to go on; anything else ends the call with DS_ERR_CALLBACK before its next part
 * It must not use the engine, its model or its optimizer.
 */
typedef int32_t (*ds_progress_fn)(void* user_data, const char* call, int64_t done, int64_t total);
/**
 * Sets what hears the progress of this engine's calls, before each of their parts; NULL: nothing.
 * What an early end leaves: ds_engine_train_batch keeps the micro batches that are done and the next
 * call goes on with the step; ds_engine_evaluate has no effect; ds_engine_save leaves no checkpoint
 * of that tag, and what was there stays; ds_engine_load leaves an engine that can only load, as a
 * load that fails. In a group of several processes an early end of a training or evaluating call
 * ends the group, as ds_comm_abort does, because the others would wait; one of saving or loading
 * fails in every process alike.
 * @param release  called once with `user_data` when `fn` is no longer used; may be NULL
 * Since: 0.4.
 */
DS_API ds_status ds_engine_set_progress(ds_engine* engine, ds_progress_fn fn, void* user_data,
                                        void (*release)(void* user_data));
/**
 * Ends the call that runs in this engine before its next part, with DS_ERR_ABORTED, and leaves what
 * ds_engine_set_progress describes; without such a call nothing happens.
 * Threads: any, while another thread is inside a call. Since: 0.4.
 */
DS_API ds_status ds_engine_interrupt(ds_engine* engine);

/**
 * Saves everything a bitwise resume needs: weights, masters, moments, schedule, loss scale, random
 * state, data cursor, configuration, tokenizer. A crash at any moment leaves the older checkpoint.
 * @param folder  made when missing
 * @param tag     name of the checkpoint; NULL for "global_step<N>"
 * A checkpoint of the same tag is replaced; a folder of that name that is no checkpoint is refused.
 * Two programs that save into one folder are not kept apart: take a lock, as `ds train` does.
 * Errors: DS_ERR_IO, DS_ERR_STATE (between forward and step; between the micro batches of a step is
 * fine). Since: 0.1.
 */
DS_API ds_status ds_engine_save(ds_engine* engine, const char* folder, const char* tag);

/**
 * Waits for a save that goes on beside the training (the configuration's
 * checkpoint.writer.decoupled: then ds_engine_save returns with a copy of the state taken, and the
 * checkpoint is there, and `latest` names it, some time later). The next save, ds_engine_load and
 * ds_engine_destroy wait too; a failure is told once, by this call or by the next save, which then
 * saves nothing. Without a save under way it returns at once. Errors: as ds_engine_save.
 * Since: 0.3.
 */
DS_API ds_status ds_engine_save_wait(ds_engine* engine);

/**
 * Loads a checkpoint into an engine made with the same model and a compatible configuration: one
 * whose optimizer has the state tensors that the checkpoint holds. Ranks, ZeRO stage, precision and
 * types of states are free; other settings that change results (optimizer, rate, clipping, batch,
 * data set, ...) are told as warnings (docs/training.md lists them).
 * Tensors go straight to the engine's own memory: no second copy of the state is made.
 * @param tag  NULL for the newest valid one; those found damaged are passed over with a warning
 * What fails before tensors are read (no checkpoint, other shapes, sizes, a damaged manifest)
 * leaves the engine as before. Damage and I/O errors that only show while they are read leave an
 * engine as before if it has trained since it was made or last loaded: its load reads and checks
 * everything once before it changes anything, and takes twice as long. In an engine that has not
 * trained there is nothing to lose: it and its model are then incomplete, and calls that use or
 * save weights or optimizer state fail with DS_ERR_STATE, which says why, until a load succeeds.
 * Views of the model's memory may show a mixture meanwhile; memory that the caller lent is written
 * by success alone.
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT (with file and place), DS_ERR_STATE.
 * Since: 0.1.
 */
DS_API ds_status ds_engine_load(ds_engine* engine, const char* folder, const char* tag);

/**
 * The same, saying how much of the checkpoint is taken over. The first four keys are arguments of
 * DeepSpeed's load_checkpoint.
 * @param options_json  {"load_module_only": false, "load_module_strict": true,
 *                      "load_optimizer_states": true, "load_lr_scheduler_states": true,
 *                      "strict": false}, each optional; NULL for all of these
 * load_module_only: weights alone. Optimizer state, schedule, counters, client state and run stay
 * the engine's own; an open step is given up.
 * load_module_strict false: parameters that the checkpoint lacks stay as they are, those that the
 * model lacks are passed over, with a warning that names them; other shapes are an error.
 * load_optimizer_states false: moments, their count of steps and the loss scale stay as they are,
 * those of a new engine at their beginning; the gradients of an open step are given up.
 * load_lr_scheduler_states false: the schedule and the rates stay where they are.
 * strict: settings that differ from the saved run's (docs/training.md lists them) are refused, not
 * warned of; so is another data set, also by ds_engine_set_dataset later.
 * Errors: as ds_engine_load; DS_ERR_CONFIG (an unknown option; `strict`). Since: 0.5.
 */
DS_API ds_status ds_engine_load_with(ds_engine* engine, const char* folder, const char* tag,
                                     const char* options_json);

/** Attaches a tokenizer, which checkpoints then carry; NULL takes it away. Since: 0.1. */
DS_API ds_status ds_engine_set_tokenizer(ds_engine* engine, const ds_tokenizer* tokenizer);
/** Attaches a JSON document of the caller, which checkpoints then carry; NULL takes it away.
 * Since: 0.1. */
DS_API ds_status ds_engine_set_client_state(ds_engine* engine, const char* json);
/** The caller's document, as set or loaded; "null" when there is none. Since: 0.1. */
DS_API ds_status ds_engine_client_state(ds_engine* engine, char** out_json);

/**
 * The configuration as resolved: {"config": {...}, "given": {...}, "origins": {path: origin},
 * "warnings": [...]}. "given" holds what the caller asked for alone (since 0.5).
 * Since: 0.1.
 */
DS_API ds_status ds_engine_config(ds_engine* engine, char** out_json);
/** Memory by tag, now and peak, in bytes, as JSON; of a GPU with "host", the host's memory beside
 * it, by tag too, where an offloaded optimizer rests. Threads: any. Since: 0.1. */
DS_API ds_status ds_engine_memory_report(const ds_engine* engine, char** out_json);
/**
 * The profile of the step that `flops_profiler` asked for, as JSON: per module parameters,
 * multiply-adds, FLOPs and seconds, forward and backward; "null" before that step
 * (docs/observability.md).
 * Since: 0.2.
 */
DS_API ds_status ds_engine_profile(ds_engine* engine, char** out_json);
/** Optimizer steps so far, skipped ones included. Since: 0.1. */
DS_API ds_status ds_engine_global_step(ds_engine* engine, int64_t* out_step);
/** Samples consumed so far. Since: 0.1. */
DS_API ds_status ds_engine_samples(ds_engine* engine, int64_t* out_samples);
/**
 * A copy of the accumulated gradient of a parameter, full shape, float32, as summed so far.
 * Errors: DS_ERR_NOT_FOUND. Since: 0.1.
 */
DS_API ds_status ds_engine_get_gradient(ds_engine* engine, const char* name,
                                        ds_tensor** out_tensor);
/** The engine's optimizer. Ownership: borrowed; the handle ends with the engine; NULL when
 * `engine` is not one. Since: 0.1. */
DS_API ds_optimizer* ds_engine_optimizer(ds_engine* engine);
/** Ends an engine; its model can then be given to another. NULL is fine. Threads: any. Since: 0.1.
 */
DS_API void ds_engine_destroy(ds_engine* engine);

/* ---- 9. Optimizer -------------------------------------------------------------------------- */

/** Updates applied so far (Adam's t). Since: 0.1. */
DS_API ds_status ds_optimizer_step_count(ds_optimizer* optimizer, int64_t* out_steps);
/** Rate that the next step will use. Since: 0.1. */
DS_API ds_status ds_optimizer_lr(ds_optimizer* optimizer, double* out_lr);
/** Number of learning rates: one per parameter group, two for Muon's (matrices, the rest).
 * Since: 0.2. */
DS_API ds_status ds_optimizer_rate_count(ds_optimizer* optimizer, int64_t* out_count);
/** Rate `index` of the next step; 0 is that of ds_optimizer_lr. Since: 0.2. */
DS_API ds_status ds_optimizer_rate(ds_optimizer* optimizer, int64_t index, double* out_lr);
/**
 * Sets every group's rate of the next step; a configured scheduler overrides it again after that
 * step. Since: 0.1.
 */
DS_API ds_status ds_optimizer_set_lr(ds_optimizer* optimizer, double lr);
/**
 * A copy of one state tensor of a parameter, full shape, float32.
 * @param name   parameter
 * @param state  one of ds_optimizer_state_names, such as "exp_avg"
 * Errors: DS_ERR_NOT_FOUND. Since: 0.1.
 */
DS_API ds_status ds_optimizer_get_state(ds_optimizer* optimizer, const char* name,
                                        const char* state, ds_tensor** out_tensor);
/** Names of a parameter's state tensors as a JSON list. Errors: DS_ERR_NOT_FOUND. Since: 0.2. */
DS_API ds_status ds_optimizer_state_names(ds_optimizer* optimizer, const char* name,
                                          char** out_json);
/** Sets one state tensor of a parameter from a float32 tensor of the same shape, between backward
 * and step too. Errors: DS_ERR_NOT_FOUND, DS_ERR_STATE (between forward and backward). Since: 0.1. */
DS_API ds_status ds_optimizer_set_state(ds_optimizer* optimizer, const char* name,
                                        const char* state, const ds_tensor* value);

/* ---- 10. Checkpoints on disk --------------------------------------------------------------- */

/**
 * Describes a checkpoint as JSON: "tags" of the folder by their steps (those that cannot be opened
 * first) and "runs", the id of the training run by tag (null when unknown); of the one that is
 * described "run", counters, tensors with shapes, slices and places, and the "config" that it was
 * trained with.
 * @param tag  NULL for the newest valid one
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT. Threads: any. Since: 0.1.
 */
DS_API ds_status ds_checkpoint_inspect(const char* folder, const char* tag, char** out_json);

/**
 * Deletes one checkpoint of a folder, valid or not. Where `latest` names it, `latest` first moves to
 * the valid one with the most steps of the others, or goes when there is none. Nobody may be
 * reading it; an engine deletes old ones by itself with the configuration's checkpoint.keep.
 * @param tag  its name; NULL is refused
 * Errors: DS_ERR_NOT_FOUND (also a folder that is no checkpoint), DS_ERR_IO (files that are not a
 * checkpoint's keep its folder; the checkpoint itself is gone), DS_ERR_INVALID_ARGUMENT. Threads:
 * any. Since: 0.5.
 */
DS_API ds_status ds_checkpoint_delete(const char* folder, const char* tag);

/**
 * Reads every byte of a checkpoint and compares checksums; the error names file, tensor and bytes.
 * Errors: as ds_checkpoint_inspect. Threads: any. Since: 0.1.
 */
DS_API ds_status ds_checkpoint_verify(const char* folder, const char* tag);

#ifdef __cplusplus
}
#endif
#endif /* DS_H */
