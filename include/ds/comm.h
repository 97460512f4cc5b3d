/**
 * @file
 * ds/comm.h - groups of processes and their collectives.
 */
#ifndef DS_COMM_H
#define DS_COMM_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

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
/** A ds_store with nothing set. */
#define DS_STORE_INIT \
  { (int64_t)sizeof(ds_store), 0, 0, 0 }

/** A ds_reduce_code. Since: 0.5. */
typedef int32_t ds_reduce_op;
/** How numbers of several processes become one. Since: 0.4. */
enum ds_reduce_code {
  DS_REDUCE_UNKNOWN = -1,
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
DS_API ds_status ds_comm_create(int32_t rank, int32_t world_size,
                                const char* DS_NULLABLE config_json,
                                const ds_store* DS_NULLABLE store, ds_comm** out_comm);

/** What a process is in its group. Set struct_size before the call. Since: 0.5. */
typedef struct ds_comm_info {
  int64_t struct_size; /**< sizeof(ds_comm_info) of the caller's header */
  int32_t rank;        /**< this process, in [0, size) */
  int32_t size;        /**< processes of the group */
  int32_t local_rank;  /**< this process among those of its host */
  int32_t local_size;  /**< processes on its host */
  int32_t node;        /**< its host, in [0, nodes) */
  int32_t nodes;       /**< hosts */
} ds_comm_info;
/** A ds_comm_info to be filled. */
#define DS_COMM_INFO_INIT \
  { (int64_t)sizeof(ds_comm_info), 0, 0, 0, 0, 0, 0 }
/** Ranks and sizes. Threads: any. Since: 0.5. */
DS_API ds_status ds_comm_describe(const ds_comm* comm, ds_comm_info* out_info);

/*
 * Collectives below: every process of the group calls the same ones in the same order, with tensors
 * of the same type; a wrong call, a lost process or a passed deadline is an error that names the
 * process. Tensors are packed, in host memory, of any type; reductions take no bool, and averages
 * only floating types, which are summed in rank order in fp32 and rounded once: the same bits
 * everywhere. Blocks: until the result is there. Errors: DS_ERR_INVALID_ARGUMENT, DS_ERR_COMM,
 * DS_ERR_ABORTED.
 */
/** Combines a tensor by a ds_reduce_op, in place. Blocks: yes. Since: 0.5. */
DS_API ds_status ds_comm_all_reduce(ds_comm* comm, ds_tensor* tensor, ds_reduce_op op);
/** `input` is one piece per process, one after another; the combined piece of this one lands in
 * `output`. Blocks: yes. Since: 0.4. */
DS_API ds_status ds_comm_reduce_scatter(ds_comm* comm, ds_tensor* output, const ds_tensor* input,
                                        ds_reduce_op op);
/** The `input` of every process, in rank order, lands in `output`. Blocks: yes. Since: 0.4. */
DS_API ds_status ds_comm_all_gather(ds_comm* comm, ds_tensor* output, const ds_tensor* input);
/** Piece j of the `input` of process i lands in piece i of the `output` of process j.
 * Blocks: yes. Since: 0.4. */
DS_API ds_status ds_comm_all_to_all(ds_comm* comm, ds_tensor* output, const ds_tensor* input);
/** The tensor of process `root` lands in that of every process. Blocks: yes. Since: 0.4. */
DS_API ds_status ds_comm_broadcast(ds_comm* comm, ds_tensor* tensor, int32_t root);
/*
 * The coalesced collectives do the same for many tensors of one type with one collective over all
 * of them, which costs one start instead of `count`; the bits are those of the single ones.
 */
/** ds_comm_all_reduce of `count` tensors, 1 or more. Blocks: yes. Since: 0.5. */
DS_API ds_status ds_comm_all_reduce_coalesced(ds_comm* comm, ds_tensor* const* tensors,
                                              int64_t count, ds_reduce_op op);
/** ds_comm_reduce_scatter of `inputs[i]` to `outputs[i]`. Blocks: yes. Since: 0.5. */
DS_API ds_status ds_comm_reduce_scatter_coalesced(ds_comm* comm, ds_tensor* const* outputs,
                                                  ds_tensor* const* inputs, int64_t count,
                                                  ds_reduce_op op);
/** ds_comm_all_gather of `inputs[i]` to `outputs[i]`. Blocks: yes. Since: 0.5. */
DS_API ds_status ds_comm_all_gather_coalesced(ds_comm* comm, ds_tensor* const* outputs,
                                              ds_tensor* const* inputs, int64_t count);
/** Processes that give the same color form a new group, ordered by key, then by rank; those with a
 * negative color get NULL. Aborting a group aborts those split from it. Blocks: yes. Since: 0.4. */
DS_API ds_status ds_comm_split(ds_comm* comm, int32_t color, int32_t key, ds_comm** out_comm);
/** For a process that runs out of work before others: answers the collectives that they still call,
 * with zeros to sums, until every process has called it; then the group goes on. Split and finalize
 * need every process, and roots must not have joined. Blocks: yes. Since: 0.4. */
DS_API ds_status ds_comm_join(ds_comm* comm);

/** A ds_collective_code. Since: 0.5. */
typedef int32_t ds_collective_kind;
/** What ds_comm_start starts, with the members of ds_collective that it uses. Since: 0.4. */
enum ds_collective_code {
  DS_COLLECTIVE_UNKNOWN = -1,
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
  int64_t struct_size;     /**< sizeof(ds_collective) of the caller's header */
  ds_collective_kind kind; /**< a ds_collective_kind */
  ds_reduce_op op;         /**< a ds_reduce_op */
  ds_tensor* output;       /**< what is written, or changed in place */
  const ds_tensor* input;  /**< what is only read */
  int32_t root;            /**< of those that have one; the other process of send and recv */
  int32_t tag;             /**< 0 or more: messages of one tag arrive in the order of sending */
  /** elements that come from each process, as many as processes; NULL: the same from all */
  const int64_t* output_counts;
  const int64_t* input_counts; /**< elements that go to each process; NULL: the same to all */
  const char* label;           /**< named in errors, such as a tensor's name; or NULL */
  int64_t timeout_ms;          /**< deadline; 0 = the group's */
  /** nonzero: averages divide by the processes that have not joined, not by all */
  ds_bool average_over_participants;
  int32_t reserved; /**< 0 */
} ds_collective;
/** A ds_collective with nothing set. */
#define DS_COLLECTIVE_INIT \
  { (int64_t)sizeof(ds_collective), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Starts a collective and returns; it goes on beside the program, after those started before it.
 * The rules of the collectives above hold. The memory of `output` and `input` must not be touched
 * until ds_work_wait has returned or ds_work_test has told the end; texts, counts and handles are
 * free at once. Messages match by sender and tag; two processes may send to each other at once.
 * @param out_work  ended with ds_work_destroy
 * Errors: DS_ERR_COMM, DS_ERR_ABORTED (the group failed before); what happens to the operation
 * itself is reported by ds_work_wait. Since: 0.4.
 */
DS_API ds_status ds_comm_start(ds_comm* comm, const ds_collective* collective, ds_work** out_work);
/** Whether an operation is over, well or not: `out_done` is 0 or 1. Threads: any. Since: 0.4. */
DS_API ds_status ds_work_test(const ds_work* work, ds_bool* out_done);
/**
 * Waits until the result is in place. A second call tells the same.
 * @param out_participants  processes that took part and had not joined; may be NULL
 * Blocks: until the result is there or the deadline has passed. Errors: DS_ERR_COMM (a process
 * failed, was late or called something else: the text names it), DS_ERR_ABORTED. Threads: any.
 * Since: 0.4.
 */
DS_API ds_status ds_work_wait(const ds_work* work, int32_t* DS_NULLABLE out_participants);
/** Ends the handle without waiting: the operation goes on and keeps its memory. NULL is fine.
 * Threads: any. Since: 0.4. */
DS_API void ds_work_destroy(ds_work* DS_NULLABLE work);
/**
 * Makes a tensor of zeros whose memory the processes of a host share: collectives of this group, of
 * the one it was split from and of those split from it read and write it where it lies, without a
 * copy. Each process has its own tensor; views of it count as it does. Between hosts it is ordinary
 * memory.
 * @param dtype, shape, ndim  as in ds_tensor_create, the same in every process
 * Blocks: until every process has called. Errors: DS_ERR_COMM, DS_ERR_ABORTED. Since: 0.4.
 */
DS_API ds_status ds_comm_shared_tensor(ds_comm* comm, ds_dtype dtype,
                                       const int64_t* DS_NULLABLE shape, int32_t ndim,
                                       ds_tensor** out_tensor);
/**
 * What the group is, as JSON: rank, size, transport, topology (local_rank, local_size, node,
 * nodes), traffic, the calls and bytes sent within the node and across nodes by collective, with
 * the blocks that went to ranks of other nodes (across_nodes_messages), and
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
DS_API void ds_comm_destroy(ds_comm* DS_NULLABLE comm);

#ifdef __cplusplus
}
#endif
#endif /* DS_COMM_H */
