// Updates of single runs before the step that they belong to (the speculation of SuperOffload, Lian
// et al., arXiv:2509.21271): a run whose gradients are complete is updated by threads of their own,
// while backward computes the next gradients and before anybody knows their norm. What the update
// changes is copied first, so that it can be undone bit for bit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "optim/state_space.h"

namespace ds::optim {

// Whether both ask for the same update of every element. The norm and the length of an epoch, which
// say nothing about that where elements are treated alike, may differ.
bool same_update(const UpdateStep& a, const UpdateStep& b);

// One thread calls it.
class EarlyUpdates {
 public:
  // Updates masters, or both halves of split ones, and states of a run.
  using Update = std::function<void(const OpContext&, const StateRun&, ops::UpdateTensors&)>;

  // Makes room for copies of what updates of `space` change, which outlives this and lies in
  // memory, in that of `device`. `tensors`: of all updates.
  EarlyUpdates(const StateSpace& space, const FlatTensors& tensors,
               const std::shared_ptr<Device>& device, int threads);
  // Waits for what is under way.
  ~EarlyUpdates();
  EarlyUpdates(const EarlyUpdates&) = delete;
  EarlyUpdates& operator=(const EarlyUpdates&) = delete;

  // From now on a run is updated when the gradients of all its tensors are complete, until close().
  // Nothing is left of an earlier call. Weights that are copies of masters are not written.
  void open(const OpContext& ctx, const FlatTensors& tensors, Update update);
  // The owned part of a tensor's gradient is what it will be in the step.
  void gradient_complete(size_t tensor);
  // Begins no more and waits for what is under way. If something failed, undoes everything.
  void close();

  // After close(): whether a run is updated. And at any time how many elements are.
  bool made(size_t run) const { return made_[run]; }
  int64_t made_elements() const { return made_elements_; }
  // Undoes what was made. True if anything was.
  bool undo();
  // What was made stays.
  void keep() {
    made_.assign(made_.size(), false);
    made_elements_ = 0;
    tensors_ = {};
  }

 private:
  void serve();
  void make(size_t run);
  void copy(size_t run, bool back);

  const StateSpace& space_;
  FlatTensors tensors_;
  std::vector<std::vector<Tensor>> copies_;   // by run
  std::vector<std::vector<size_t>> runs_of_;  // by tensor
  ThreadPool pool_;
  OpContext ctx_;
  Update update_;
  std::vector<size_t> missing_;  // by run: tensors whose gradients are not complete
  std::vector<bool> complete_;   // by tensor
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;         // guarded, as are those that are ready
  std::deque<size_t> ready_;  // runs, in the order that they came
  std::vector<bool> made_;    // by run: updated, or begun; the thread's while it runs
  std::exception_ptr error_;  // likewise
  std::atomic<int64_t> made_elements_ = 0;
};

}  // namespace ds::optim
