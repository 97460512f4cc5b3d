// The group whose ranks have a GPU each: collectives of GPU memory go over NCCL, everything else
// over the group that it is built on.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/nccl/nccl_watch.h"

namespace ds::comm {

class NcclCommunicator : public Communicator,
                         public std::enable_shared_from_this<NcclCommunicator> {
 public:
  // `side` is for this communicator alone, with the ranks of `group`.
  NcclCommunicator(std::shared_ptr<Group> group, std::unique_ptr<Transport> side,
                   std::shared_ptr<const nccl::Library> library, const CommOptions& options,
                   std::shared_ptr<NcclStreams> streams,
                   std::shared_ptr<TrafficCounter> parent = {});
  ~NcclCommunicator() override;

  TrafficTable traffic() const override;
  TrafficTable total_traffic() const override;
  const char* transport() const noexcept override { return "nccl"; }
  bool moves_gpu_memory() const noexcept override { return true; }
  void set_logger(std::shared_ptr<CommsLogger> logger) override;

 protected:
  WorkPtr start(Call call, const CollectiveOptions& options) override;
  WorkPtr do_barrier(const CollectiveOptions& options) override;
  Tensor do_shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                          MemoryTag tag, const CollectiveOptions& options) override;
  std::shared_ptr<Communicator> do_split(int color, int key,
                                         const CollectiveOptions& options) override;
  void do_join(const CollectiveOptions& options) override;
  void do_finalize() override;
  void do_abort(std::string_view reason) noexcept override;

 private:
  std::vector<std::shared_ptr<Device>> devices_of(const Call& call) const;
  NcclOperationPtr make_operation(Call call, std::vector<std::shared_ptr<Device>> devices,
                                  const CollectiveOptions& options) const;
  // Queues these as one group of NCCL; failures end the operations.
  void queue(const std::vector<NcclOperationPtr>& operations) noexcept;
  void queue_locked(const std::vector<NcclOperationPtr>& operations);
  void begin_channel(const std::shared_ptr<CudaDevice>& device, const NcclLimit& limit);
  void compare_calls(const NcclOperation& operation);
  void call_nccl(const NcclOperation& operation);
  void exchange_pieces(const NcclOperation& operation);
  void flush() noexcept;  // messages that were posted
  void wait_for_gpu();
  void count(const NcclOperation& operation);

  const CommOptions options_;
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<const nccl::Library> library_;
  const std::shared_ptr<NcclStreams> streams_;
  const std::shared_ptr<TrafficCounter> traffic_;
  std::shared_ptr<CommsLogger> logger_;
  ChildGroups children_;

  std::mutex queue_mutex_;                // one thread calls NCCL at a time
  std::unique_ptr<NcclChannel> channel_;  // from the first call with GPU memory on
  std::atomic<int> gpu_{-1};              // its number
  std::mutex posted_mutex_;
  std::vector<NcclOperationPtr> posted_;  // messages
  mutable NcclWatch watch_;
};

// Collective over `group`. Throws kUnsupported on every rank when one of them has no GPU or no
// NCCL, naming it, or when their versions differ.
std::shared_ptr<Communicator> make_nccl_communicator(std::shared_ptr<Group> group,
                                                     const CommOptions& options);
// Ranks that are threads of this process, each with a GPU of its own.
std::vector<std::shared_ptr<Communicator>> make_local_nccl(
    const std::vector<std::shared_ptr<Group>>& groups, const CommOptions& options);

}  // namespace ds::comm
