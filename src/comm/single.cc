// The group of one process: every collective is the identity, done when it returns. Arguments and
// states are checked as in a larger group, so that a program's mistakes show before it grows.
#include <cstring>
#include <vector>

#include "comm/communicator.h"
#include "comm/logger.h"

namespace ds {
namespace {

class DoneWork : public Work {
 public:
  bool done() const override { return true; }
  void wait() override {}
  int participants() const override { return 1; }
};

class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(const CommOptions& options) : Communicator(0, 1, options.deadline) {}

  TrafficTable traffic() const override {
    TrafficTable table{};
    for (size_t i = 0; i < table.size(); ++i) table[i].calls = calls_[i].load();
    return table;
  }
  TrafficTable total_traffic() const override { return traffic(); }
  const char* transport() const noexcept override { return "self"; }
  bool moves_gpu_memory() const noexcept override { return true; }
  void set_logger(std::shared_ptr<CommsLogger> logger) override { logger_ = std::move(logger); }

 protected:
  WorkPtr start(Call call, const CollectiveOptions&) override {
    const auto begin = std::chrono::steady_clock::now();
    const int64_t bytes = call.input ? call.input.bytes() : 0;
    if (call.output.raw() != call.input.raw() && bytes > 0) {
      copy(call.output, call.input);
    }
    count(call.kind);
    if (logger_) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      logger_->record(call.kind, bytes, took.count(), 1);
    }
    return done_;
  }
  WorkPtr do_barrier(const CollectiveOptions&) override {
    count(Collective::kBarrier);
    return done_;
  }

  Tensor do_shared_tensor(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                          MemoryTag tag, const CollectiveOptions&) override {
    count(Collective::kSharedTensor);
    return Tensor::zeros(device, dtype, shape, tag);
  }

  std::shared_ptr<Communicator> do_split(int color, int, const CollectiveOptions&) override {
    count(Collective::kSplit);
    if (color < 0) return nullptr;
    CommOptions options;
    options.deadline = deadline();
    auto group = std::make_shared<SingleCommunicator>(options);
    const std::lock_guard lock(groups_mutex_);
    std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
    groups_.push_back(group);
    if (state() == State::kAborted) group->abort("the parent group was aborted");
    return group;
  }

  void do_join(const CollectiveOptions&) override { count(Collective::kJoin); }
  void do_finalize() override { count(Collective::kFinalize); }

  void do_abort(std::string_view) noexcept override {
    const std::lock_guard lock(groups_mutex_);
    for (const std::weak_ptr<Communicator>& weak : groups_) {
      if (const auto group = weak.lock()) group->abort("the parent group was aborted");
    }
  }

 private:
  static void copy(const Tensor& output, const Tensor& input) {
    const std::shared_ptr<Device>& device = output.storage()->device();
    if (device != nullptr && device->kind() != DeviceKind::kCpu) {
      device->copy(output.raw(), input.raw(), input.bytes(), device->default_stream());
    } else {
      std::memmove(output.raw(), input.raw(), static_cast<size_t>(input.bytes()));
    }
  }
  void count(Collective kind) { ++calls_[static_cast<size_t>(kind)]; }

  const WorkPtr done_ = std::make_shared<DoneWork>();
  std::array<std::atomic<int64_t>, kCollectives> calls_{};
  std::shared_ptr<CommsLogger> logger_;
  std::mutex groups_mutex_;
  std::vector<std::weak_ptr<Communicator>> groups_;
};

}  // namespace

std::shared_ptr<Communicator> make_single_communicator(const CommOptions& options) {
  return std::make_shared<SingleCommunicator>(options);
}

}  // namespace ds
