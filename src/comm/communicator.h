// A group of processes that compute together, as a value: made explicitly, passed on, never found
// in a global. Collectives may be asynchronous; each carries a label and a deadline, so that a wait
// that fails names the operation. Transports implement the protected half; the public half checks
// arguments and state in one place, the same on every rank.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tensor/tensor.h"

namespace ds {

enum class ReduceOp { kSum, kAverage, kMin, kMax };
std::string_view reduce_op_name(ReduceOp op) noexcept;

// How one collective is called. The label (usually a tensor's name) must outlive the call only.
struct CollectiveOptions {
  std::string_view label;
  std::optional<std::chrono::milliseconds> deadline;  // empty: the communicator's own
};

// A collective in flight. Tensors given to it are kept alive and must not be touched until wait()
// returns or throws. Dropping a Work does not cancel the collective.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Returns when the result is in place. Throws kComm when a peer failed or the deadline passed and
  // kAborted after an abort; every further wait throws the same.
  virtual void wait() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

// Every rank of a group calls the same collectives in the same order, from one thread at a time.
// abort() and state() may be called from any thread at any moment.
class Communicator {
 public:
  enum class State { kActive, kFinalized, kAborted };

  Communicator(int rank, int size, std::chrono::milliseconds deadline);
  virtual ~Communicator() = default;  // local: never waits for peers
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::chrono::milliseconds deadline() const noexcept { return deadline_; }
  State state() const noexcept { return state_.load(std::memory_order_acquire); }

  // In place over the group. Floating types: summed in rank order, the same bits on every rank.
  // Integers: kSum wraps, kAverage is refused.
  WorkPtr all_reduce(const Tensor& tensor, ReduceOp op, const CollectiveOptions& options = {});
  // `input` is size() equal pieces one after another; piece `rank` of the reduced whole lands in
  // `output`.
  WorkPtr reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op,
                         const CollectiveOptions& options = {});
  // The `input` of every rank, in rank order, lands in `output`.
  WorkPtr all_gather(const Tensor& output, const Tensor& input,
                     const CollectiveOptions& options = {});
  // The tensor of `root` lands in that of every rank.
  WorkPtr broadcast(const Tensor& tensor, int root, const CollectiveOptions& options = {});
  // Waits until every rank has called it.
  void barrier(const CollectiveOptions& options = {});

  // Collective: ranks that give the same color form a new group, ordered by key, then by rank.
  // A negative color takes part and gets no group (null). Aborting a group aborts its subgroups.
  std::shared_ptr<Communicator> split(int color, int key, const CollectiveOptions& options = {});

  // Collective: completes what is in flight and ends the group; later calls throw kState. A second
  // call does nothing.
  void finalize();
  // Makes pending and later operations throw kAborted with this reason, here and on the peers. The
  // first reason stays. Does nothing after finalize.
  void abort(std::string_view reason) noexcept;

 protected:
  virtual WorkPtr start_all_reduce(const Tensor& tensor, ReduceOp op,
                                   const CollectiveOptions& options) = 0;
  virtual WorkPtr start_reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op,
                                       const CollectiveOptions& options) = 0;
  virtual WorkPtr start_all_gather(const Tensor& output, const Tensor& input,
                                   const CollectiveOptions& options) = 0;
  virtual WorkPtr start_broadcast(const Tensor& tensor, int root,
                                  const CollectiveOptions& options) = 0;
  virtual void do_barrier(const CollectiveOptions& options) = 0;
  virtual std::shared_ptr<Communicator> do_split(int color, int key,
                                                 const CollectiveOptions& options) = 0;
  virtual void do_finalize() = 0;
  // Wakes every waiter and tells the peers, without blocking.
  virtual void do_abort() noexcept = 0;

  // Throws kAborted or kState unless the group is active.
  void check_active(const char* operation) const;

 private:
  void check_tensor_for(const char* operation, const char* name, const Tensor& tensor,
                        bool written) const;

  const int rank_;
  const int size_;
  const std::chrono::milliseconds deadline_;
  std::atomic<State> state_{State::kActive};
  mutable std::mutex reason_mutex_;
  std::string abort_reason_;
};

struct CommOptions {
  std::chrono::milliseconds deadline{std::chrono::minutes(30)};  // of one collective
};

// Reads a JSON document: {"timeout_seconds": 1800}. "" and "{}" mean the defaults; unknown keys and
// wrong values throw kConfig.
CommOptions parse_comm_options(std::string_view json);

// The group of this process alone.
std::shared_ptr<Communicator> make_single_communicator(const CommOptions& options = {});

}  // namespace ds
