// Keys and values of the tokens seen so far, per layer: what makes decoding a token cost one token.
#pragma once

#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace ds::nn {

class KvCache {
 public:
  // Room for `capacity` tokens of `batch` sequences. What no token has written is never read.
  KvCache(const std::shared_ptr<Device>& device, int layers, int64_t batch, int64_t capacity,
          int64_t heads, int64_t head_size, DType dtype) {
    const Shape shape{batch, capacity, 2, heads, head_size};
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(Tensor::empty(device, dtype, shape, MemoryTag::kKvCache));
    }
  }

  int64_t length() const { return length_; }
  int64_t capacity() const { return layers_.front().size(1); }
  // Tokens [0, count) of a layer as [B, count, H, D]; `part` 0 is keys, 1 is values.
  Tensor view(int layer, int part, int64_t begin, int64_t end) const {
    return layers_[static_cast<size_t>(layer)].slice(1, begin, end).select(2, part);
  }
  void advance(int64_t tokens) { length_ += tokens; }
  void clear() { length_ = 0; }

  // For work on a GPU that is recorded and runs again: it reads from `past`, int32 [1] in the
  // memory of the device, how many tokens are there, and attention has room for `room` with the new
  // ones.
  void read_length_from(Tensor past, int64_t room) {
    past_ = std::move(past);
    room_ = room;
  }
  // As ever: the length of this object is an argument of the work.
  void know_length() { past_ = Tensor(); }
  const Tensor& past() const { return past_; }
  int64_t room() const { return room_; }

 private:
  std::vector<Tensor> layers_;  // [B, capacity, 2, H, D]
  int64_t length_ = 0;
  Tensor past_;
  int64_t room_ = 0;
};

}  // namespace ds::nn
