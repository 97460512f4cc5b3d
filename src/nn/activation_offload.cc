#include "nn/activation_offload.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tensor/transfer.h"

namespace ds::nn {

ActivationOffload::ActivationOffload(std::shared_ptr<Device> gpu, Stream& copies)
    : gpu_(std::move(gpu)), host_(host_memory_of(gpu_)), copies_(copies) {}

ActivationOffload::~ActivationOffload() {
  try {
    copies_.synchronize();
  } catch (const Error&) {  // whoever uses the GPU next gets it too
  }
}

std::shared_ptr<ActivationOffload::Kept> ActivationOffload::find(const Tensor& x) const {
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const auto& k) { return k->mark.is(x); });
  return found == kept_.end() ? nullptr : *found;
}

bool ActivationOffload::travels(const Tensor& x) const {
  return x && x.bytes() >= TensorMark::kSmallest && x.contiguous() && x.storage()->device() == gpu_;
}

Tensor ActivationOffload::host_memory_for(const Tensor& x) const {
  try {
    return Tensor::empty(host_, x.dtype(), x.shape(), MemoryTag::kActivations);
  } catch (const Error& error) {
    fail(error.code(), "no room for the input of a segment (activation_checkpointing.",
         "cpu_checkpointing): ", error.message());
  }
}

size_t ActivationOffload::keep(std::span<const Tensor> inputs) {
  Segment segment, fresh;
  for (const Tensor& x : inputs) {
    std::shared_ptr<Kept> kept = travels(x) ? find(x) : nullptr;
    if (!kept) {
      kept = std::make_shared<Kept>();
      kept->gpu = x;
      if (travels(x)) {
        kept->host = host_memory_for(x);
        kept->mark = TensorMark(x);
        kept_.push_back(kept);
        fresh.push_back(kept);
      }
    }
    segment.push_back(std::move(kept));
  }
  free_sent();
  send(fresh);
  segments_.push_back(std::move(segment));
  return segments_.size() - 1;
}

// What made the tensors comes first.
void ActivationOffload::send(Segment& fresh) {
  if (fresh.empty()) return;
  copies_.wait(*gpu_->default_stream().record());
  for (const auto& kept : fresh) {
    gpu_->copy(kept->host.raw(), kept->gpu.raw(), kept->host.bytes(), copies_);
  }
  const std::shared_ptr<Event> copied = copies_.record();
  for (const auto& kept : fresh) kept->copied = copied;
  sent_ = std::move(fresh);
}

// Freed memory serves what comes next on the default stream, so that waits for the copies first.
// They had the time of a whole segment.
void ActivationOffload::free_sent() {
  for (const auto& kept : sent_) {
    gpu_->default_stream().wait(*kept->copied);
    kept->gpu = Tensor();
  }
  sent_.clear();
}

// Work that is queued on the default stream may still use the memory that the copies go to.
void ActivationOffload::bring(Segment& segment) {
  Segment away;
  for (const auto& kept : segment) {
    if (kept->gpu || !kept->host) continue;
    kept->gpu = kept->mark.find();
    if (kept->gpu) continue;
    kept->gpu =
        Tensor::empty(gpu_, kept->host.dtype(), kept->host.shape(), MemoryTag::kActivations);
    kept->mark = TensorMark(kept->gpu);
    away.push_back(kept);
  }
  if (away.empty()) return;
  copies_.wait(*gpu_->default_stream().record());
  for (const auto& kept : away) {
    gpu_->copy(kept->gpu.raw(), kept->host.raw(), kept->host.bytes(), copies_);
  }
  const std::shared_ptr<Event> copied = copies_.record();
  for (const auto& kept : away) kept->copied = copied;
}

std::vector<Tensor> ActivationOffload::fetch(size_t number) {
  Segment segment = std::exchange(segments_.at(number), {});
  bring(segment);
  std::vector<Tensor> inputs;
  for (const auto& kept : segment) {
    if (kept->copied) gpu_->default_stream().wait(*kept->copied);
    inputs.push_back(kept->gpu);
  }
  for (const auto& kept : segment) kept->gpu = Tensor();
  if (number > 0) bring(segments_[number - 1]);
  return inputs;
}

}  // namespace ds::nn
