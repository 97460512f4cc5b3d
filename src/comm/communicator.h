// A group of processes that compute together, as a value: made explicitly, passed on, never found
// in a global. Collectives may be asynchronous; each carries a label and a deadline, so that a wait
// that fails names the operation. Transports implement the protected half; the public half checks
// arguments (collective_checks.h) and state (group_state.h) in one place, the same on every rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "comm/collective.h"
#include "comm/group_state.h"
#include "comm/options.h"
#include "tensor/tensor.h"

namespace ds {

class CommsLogger;

// How one collective is called. The label (usually a tensor's name) must outlive the call only.
struct CollectiveOptions {
  std::string_view label = {};
  std::optional<std::chrono::milliseconds> deadline = {};  // empty: the communicator's own
  // The operation runs on the calling thread and is over when the call returns; failures still
  // come from wait(). For callers that would wait at once: it saves the way to another thread.
  bool blocking = false;
  // kAverage divides by the ranks that have not joined (see join) instead of by size().
  bool average_over_participants = false;
  // The label must be the same on every rank, also in a group that does not check labels: for calls
  // that differ in nothing else.
  bool same_label = false;
};

// A collective in flight. Tensors given to it are kept alive and must not be touched until wait()
// returns or throws. Dropping a Work does not cancel the collective.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Returns when the result is in place. Throws kComm when a peer failed, the deadline passed or
  // the ranks called different things, and kAborted after an abort; every further wait throws the
  // same.
  virtual void wait() = 0;
  // Ranks that took part and had not joined. Valid after wait().
  virtual int participants() const = 0;
};
using WorkPtr = std::shared_ptr<Work>;

// Every rank of a group calls the same collectives in the same order, from one thread at a time.
// abort(), the group's state and the traffic may be called from any thread at any moment.
class Communicator : public GroupState {
 public:
  using GroupState::GroupState;
  virtual ~Communicator() = default;  // local: never waits for peers

  virtual TrafficTable traffic() const = 0;
  // With that of all groups split from this one, also those that are gone.
  virtual TrafficTable total_traffic() const = 0;
  virtual const char* transport() const noexcept = 0;  // "shm", ...
  // Whether collectives take memory of GPUs, too.
  virtual bool moves_gpu_memory() const noexcept { return false; }

  // Reductions. Floating types are summed in rank order in fp32 (float64 in float64) and rounded
  // once: the same bits on every rank, for any transport, and however a range is cut into calls.
  // Integers: kSum wraps, kAverage is refused. kMin and kMax give NaN where any rank has one.

  // In place over the group.
  WorkPtr all_reduce(const Tensor& tensor, ReduceOp op, const CollectiveOptions& options = {});
  // The result lands in the tensor of `root`; the others keep theirs.
  WorkPtr reduce(const Tensor& tensor, ReduceOp op, int root,
                 const CollectiveOptions& options = {});
  // `input` is size() equal pieces one after another; piece `rank` of the reduced whole lands in
  // `output`, which may be that piece of `input`.
  WorkPtr reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op,
                         const CollectiveOptions& options = {});

  // Movements; every element type. Outputs and inputs do not overlap except where said.

  // The `input` of every rank, in rank order, lands in `output`. `input` may be the own piece of
  // `output`.
  WorkPtr all_gather(const Tensor& output, const Tensor& input,
                     const CollectiveOptions& options = {});
  // The same with pieces of `counts[rank]` elements, the same counts on every rank.
  WorkPtr all_gather_v(const Tensor& output, const Tensor& input, std::span<const int64_t> counts,
                       const CollectiveOptions& options = {});
  // The tensor of `root` lands in that of every rank.
  WorkPtr broadcast(const Tensor& tensor, int root, const CollectiveOptions& options = {});
  // Piece j of the input of rank i lands in piece i of the output of rank j.
  WorkPtr all_to_all(const Tensor& output, const Tensor& input,
                     const CollectiveOptions& options = {});
  // The same with pieces of `input_counts[j]` and `output_counts[i]` elements.
  WorkPtr all_to_all_v(const Tensor& output, const Tensor& input,
                       std::span<const int64_t> output_counts,
                       std::span<const int64_t> input_counts,
                       const CollectiveOptions& options = {});
  // The inputs of all land in the `output` of `root`; elsewhere `output` is ignored.
  WorkPtr gather(const Tensor& output, const Tensor& input, int root,
                 const CollectiveOptions& options = {});
  // Piece `rank` of the `input` of `root` lands in `output`; elsewhere `input` is ignored.
  WorkPtr scatter(const Tensor& output, const Tensor& input, int root,
                  const CollectiveOptions& options = {});
  // Point to point, matched by sender and tag (>= 0) in the order of sending. Ranks may send to
  // each other at once when they post before they wait.
  WorkPtr send(const Tensor& tensor, int peer, int tag, const CollectiveOptions& options = {});
  WorkPtr recv(const Tensor& tensor, int peer, int tag, const CollectiveOptions& options = {});

  // Waits until every rank has called it.
  void barrier(const CollectiveOptions& options = {});
  WorkPtr start_barrier(const CollectiveOptions& options = {});

  // Collective: memory that collectives of this group, of its parent and of groups split from
  // either use without staging; zero at first. Each rank gets a buffer of the same size, and peers
  // of the same host map it too. Where ranks share no memory, and on GPUs, it is ordinary memory of
  // `device`, which carries the account in every case. Views of it count as it does.
  Tensor shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                       MemoryTag tag, const CollectiveOptions& options = {});

  // Collective: ranks that give the same color form a new group, ordered by key, then by rank.
  // A negative color takes part and gets no group (null). Aborting a group aborts its subgroups.
  std::shared_ptr<Communicator> split(int color, int key, const CollectiveOptions& options = {});

  // For ranks that run out of work before others: answers the collectives that the others still
  // call, with nothing to contribute (zero to sums), until every rank has called join. Then the
  // group goes on as before. Roots must not have joined; split, shared_tensor and finalize need
  // every rank; point-to-point calls are not answered. Groups are joined one by one.
  void join(const CollectiveOptions& options = {});

  // Collective: completes what is in flight and ends the group; later calls throw kState. A second
  // call does nothing.
  void finalize();
  // Makes pending and later operations throw kAborted with this reason, here and on the peers. The
  // first reason stays. Does nothing after finalize or a failure.
  void abort(std::string_view reason) noexcept;

  // Times of operations go there from now on, and those of groups split from now on; null: nowhere.
  // Not while operations are in flight.
  virtual void set_logger(std::shared_ptr<CommsLogger> logger) = 0;

 protected:
  // A call whose arguments were checked. `output` and `input` are the same for calls in place;
  // where a rank has none they are empty.
  struct Call {
    Collective kind;
    ReduceOp op = ReduceOp::kSum;
    Tensor output;
    Tensor input;
    int root = -1;  // or the peer
    int tag = 0;
    std::vector<int64_t> output_counts;  // of the calls with counts
    std::vector<int64_t> input_counts;
  };
  virtual WorkPtr start(Call call, const CollectiveOptions& options) = 0;
  virtual WorkPtr do_barrier(const CollectiveOptions& options) = 0;
  virtual Tensor do_shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                  const Shape& shape, MemoryTag tag,
                                  const CollectiveOptions& options) = 0;
  virtual std::shared_ptr<Communicator> do_split(int color, int key,
                                                 const CollectiveOptions& options) = 0;
  virtual void do_join(const CollectiveOptions& options) = 0;
  virtual void do_finalize() = 0;
  // Wakes every waiter and tells the peers, without blocking.
  virtual void do_abort(std::string_view reason) noexcept = 0;

 private:
  static Call call_of(Collective kind, ReduceOp op, const Tensor& output, const Tensor& input,
                      int root = -1);
};

// The group of this process alone.
std::shared_ptr<Communicator> make_single_communicator(const CommOptions& options = {});

}  // namespace ds
