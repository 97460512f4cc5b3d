// The group of one process: every collective is the identity, done when it returns. Arguments and
// states are checked as in a larger group, so that a program's mistakes show before it grows.
#include <cstring>
#include <vector>

#include "comm/communicator.h"

namespace ds {
namespace {

class DoneWork : public Work {
 public:
  bool done() const override { return true; }
  void wait() override {}
};

class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(const CommOptions& options) : Communicator(0, 1, options.deadline) {}

 protected:
  WorkPtr start_all_reduce(const Tensor&, ReduceOp, const CollectiveOptions&) override {
    return done_;
  }
  WorkPtr start_reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp,
                               const CollectiveOptions&) override {
    return copy(output, input);
  }
  WorkPtr start_all_gather(const Tensor& output, const Tensor& input,
                           const CollectiveOptions&) override {
    return copy(output, input);
  }
  WorkPtr start_broadcast(const Tensor&, int, const CollectiveOptions&) override { return done_; }
  void do_barrier(const CollectiveOptions&) override {}

  std::shared_ptr<Communicator> do_split(int color, int, const CollectiveOptions&) override {
    if (color < 0) return nullptr;
    auto group = std::make_shared<SingleCommunicator>(CommOptions{deadline()});
    const std::lock_guard lock(groups_mutex_);
    std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
    groups_.push_back(group);
    if (state() == State::kAborted) group->abort("the parent group was aborted");
    return group;
  }

  void do_finalize() override {}

  void do_abort() noexcept override {
    const std::lock_guard lock(groups_mutex_);
    for (const std::weak_ptr<Communicator>& weak : groups_) {
      if (const auto group = weak.lock()) group->abort("the parent group was aborted");
    }
  }

 private:
  WorkPtr copy(const Tensor& output, const Tensor& input) {
    if (output.raw() != input.raw() && input.bytes() > 0) {
      std::memmove(output.raw(), input.raw(), static_cast<size_t>(input.bytes()));
    }
    return done_;
  }

  const WorkPtr done_ = std::make_shared<DoneWork>();
  std::mutex groups_mutex_;
  std::vector<std::weak_ptr<Communicator>> groups_;
};

}  // namespace

std::shared_ptr<Communicator> make_single_communicator(const CommOptions& options) {
  return std::make_shared<SingleCommunicator>(options);
}

}  // namespace ds
