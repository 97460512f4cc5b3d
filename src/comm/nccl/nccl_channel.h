// One NCCL communicator on one GPU. Nothing here blocks inside NCCL: what it has begun is asked for
// until it is over, the deadline passes or somebody says stop.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/nccl/nccl_library.h"
#include "comm/transport.h"
#include "device/cuda_device.h"

namespace ds::comm {

// A deadline that passed. Peers are then asked who did not come.
class NcclLate : public Error {
 public:
  using Error::Error;
};

// How long something may take, and what it is for errors.
struct NcclLimit {
  std::string what;
  Clock::time_point deadline;
  std::chrono::milliseconds allowed{};
  [[noreturn]] void fail_late() const;
};

// The streams, one for each GPU, that a group and all that are split from it use together. NCCL may
// hang when operations of two communicators run on a GPU at once; so they come one after another,
// in the order of their calls. Any thread.
class NcclStreams {
 public:
  std::shared_ptr<Stream> of(CudaDevice& device) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Stream>& stream = by_gpu_[device.index()];
    if (!stream) stream = device.create_stream();
    return stream;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Stream>> by_gpu_;
};

// A rank of those that share an id.
struct NcclMember {
  const nccl::UniqueId& id;
  int rank, size;
};

// One thread at a time.
class NcclChannel {
 public:
  // Collective over the ranks that have the id. `stop` may turn true at any moment.
  NcclChannel(std::shared_ptr<const nccl::Library> library, std::shared_ptr<CudaDevice> device,
              std::shared_ptr<Stream> stream, const NcclMember& member,
              const std::atomic<bool>& stop, const NcclLimit& limit);
  ~NcclChannel();  // aborts what was not finalized

  CudaDevice& device() const { return *device_; }
  Stream& stream() const { return *stream_; }
  const nccl::Library& library() const { return *library_; }
  nccl::Comm comm() const { return comm_; }
  nccl::CudaStream native() const { return stream_->native(); }

  // Makes NCCL queue what `calls` asks for, as one group, on the stream.
  void launch(const std::function<void()>& calls, const NcclLimit& limit);
  // Throws for what NCCL answers, unless it is going on.
  void check(nccl::Result result, const char* call) const;
  // What has failed in the background, if anything.
  std::optional<Error> failure() const;
  // Collective: everything has arrived everywhere when it returns.
  void finalize(const NcclLimit& limit);
  // Ends what is queued. Memory freed from now on waits for what the GPU still does with it.
  void end() noexcept;

 private:
  void begin(const NcclMember& member, const NcclLimit& limit);
  void wait_until_ready(const char* call, const NcclLimit& limit) const;

  const std::shared_ptr<const nccl::Library> library_;
  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<Stream> stream_;
  const std::atomic<bool>& stop_;
  nccl::Comm comm_ = nullptr;
};

}  // namespace ds::comm
