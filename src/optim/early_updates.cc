#include "optim/early_updates.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace ds::optim {
namespace {

constexpr int64_t kCopied = int64_t{1} << 18;  // bytes that a thread copies at a time

// What an update of the arrays changes.
template <class Body>
void for_changed(const ops::UpdateTensors& part, const Body& body) {
  for (const Tensor* const one : {&part.master, &part.weight, &part.low}) {
    if (*one) body(*one);
  }
  for (const ops::StateTensor& state : part.states) {
    if (state.data) body(state.data);
    if (state.scales) body(state.scales);
  }
}

// Without the copy of masters that the model computes with.
FlatTensors without_copy(FlatTensors tensors) {
  if (!tensors.low_halves) tensors.model = {};
  return tensors;
}

}  // namespace

bool same_update(const UpdateStep& a, const UpdateStep& b) {
  return a.rates == b.rates && a.beta1 == b.beta1 && a.beta2 == b.beta2 &&
         a.weight_decay == b.weight_decay && a.grad_scale == b.grad_scale &&
         a.updates == b.updates && !a.gate && !b.gate;
}

EarlyUpdates::EarlyUpdates(const StateSpace& space, const FlatTensors& tensors,
                           const std::shared_ptr<Device>& device, int threads)
    : space_(space), pool_(threads) {
  const std::span<const StateRun> runs = space_.runs();
  const FlatTensors changed = without_copy(tensors);
  copies_.resize(runs.size());
  made_.resize(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto make = [&](const Tensor& one) {
      copies_[i].push_back(
          Tensor::empty(device, one.dtype(), {one.elements()}, MemoryTag::kOptimizer));
    };
    for_changed(space_.map_weights(runs[i], changed, Access::kRead).part, make);
    for_changed(space_.map_states(runs[i], Access::kRead).part, make);
    for (const size_t tensor : runs[i].tensors) {
      if (runs_of_.size() <= tensor) runs_of_.resize(tensor + 1);
      std::vector<size_t>& of = runs_of_[tensor];
      if (of.empty() || of.back() != i) of.push_back(i);
    }
  }
}

EarlyUpdates::~EarlyUpdates() { close(); }

void EarlyUpdates::open(const OpContext& ctx, const FlatTensors& tensors, Update update) {
  close();
  keep();
  tensors_ = without_copy(tensors);
  ctx_ = {ctx.device, &pool_};
  update_ = std::move(update);
  complete_.assign(runs_of_.size(), false);
  missing_.assign(copies_.size(), 0);
  for (const std::vector<size_t>& runs : runs_of_) {
    for (const size_t run : runs) ++missing_[run];
  }
  open_ = true;
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error&) {  // then the step makes all of it
    open_ = false;
  }
}

void EarlyUpdates::gradient_complete(size_t tensor) {
  if (!thread_.joinable() || tensor >= runs_of_.size() || complete_[tensor]) return;
  complete_[tensor] = true;
  for (const size_t run : runs_of_[tensor]) {
    if (--missing_[run] > 0) continue;
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(run);
    }
    changed_.notify_one();
  }
}

void EarlyUpdates::close() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  changed_.notify_one();
  thread_.join();
  ready_.clear();
  update_ = nullptr;
  const std::exception_ptr error = std::exchange(error_, nullptr);
  if (!error) return;
  undo();
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {  // whoever makes the step gets it, if it stays
    log_warning("optimizer",
                "an update ahead of its step failed, and was undone: ", failure.what());
  }
}

void EarlyUpdates::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !open_ || !ready_.empty(); });
    if (!open_) return;
    const size_t run = ready_.front();
    ready_.pop_front();
    lock.unlock();
    try {
      make(run);
    } catch (...) {
      lock.lock();
      error_ = std::current_exception();
      open_ = false;
      return;
    }
    lock.lock();
  }
}

void EarlyUpdates::make(size_t run) {
  const StateRun& of = space_.runs()[run];
  copy(run, /*back=*/false);
  made_[run] = true;
  MappedRun mapped = space_.map(of, tensors_, Writes::kBoth);
  update_(ctx_, of, mapped.part);
  mapped.close();
  made_elements_ += of.end - of.begin;
}

// Between the arrays and their copies.
void EarlyUpdates::copy(size_t run, bool back) {
  const StateRun& of = space_.runs()[run];
  auto next = copies_[run].begin();
  const auto one = [&](const Tensor& array) {
    const Tensor& copied = *next++;
    std::byte* to = static_cast<std::byte*>((back ? array : copied).raw());
    const std::byte* from = static_cast<const std::byte*>((back ? copied : array).raw());
    pool_.for_range(array.bytes(), kCopied, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  };
  for_changed(space_.map_weights(of, tensors_, Access::kReadWrite).part, one);
  for_changed(space_.map_states(of, Access::kReadWrite).part, one);
}

bool EarlyUpdates::undo() {
  close();
  bool any = false;
  for (size_t i = 0; i < made_.size(); ++i) {
    if (!made_[i]) continue;
    copy(i, /*back=*/true);
    any = true;
  }
  keep();
  return any;
}

}  // namespace ds::optim
