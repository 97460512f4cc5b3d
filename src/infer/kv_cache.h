// Keys and values of the tokens seen so far, in memory of one piece per layer or in blocks of a
// pool: what makes decoding a token cost one token. Sequences of a batch may have different
// lengths, and passes may be over some of them.
#pragma once

#include <memory>
#include <vector>

#include "infer/kv_blocks.h"
#include "infer/kv_layout.h"
#include "nn/attention_state.h"

namespace ds::infer {

class KvCache final : public nn::AttentionState {
 public:
  // Room for `capacity` tokens of each of `batch` sequences. What no token has written is never
  // read. `dtype` is what the model computes in, or kInt8 for codes.
  KvCache(const std::shared_ptr<Device>& device, const models::ArchitectureInfo& info,
          int64_t batch, int64_t capacity, DType dtype);

  // The same tokens in blocks, which are taken when tokens need them and given back when these are
  // forgotten. Several caches may share a pool.
  KvCache(const std::shared_ptr<KvBlockPool>& pool, int64_t batch, int64_t capacity);

  int64_t capacity() const { return capacity_; }
  int64_t batch() const { return std::ssize(lengths_); }
  bool in_blocks() const { return blocks_ != nullptr; }
  // Passes that follow are over `count` sequences from `first` on: all at first.
  void choose(int64_t first, int64_t count);
  // Of the chosen ones.
  const std::vector<int64_t>& lengths() const override { return chosen_; }
  int64_t length(int64_t sequence) const { return lengths_.at(static_cast<size_t>(sequence)); }
  // Forgets the end of a sequence: padding behind its own tokens in a pass of several, or all of it
  // before another text takes its place.
  void shorten(int64_t sequence, int64_t length);
  // Two sequences of a cache in blocks change places.
  void exchange(int64_t a, int64_t b);

  ops::CacheRows append(int layer, int64_t tokens) override;
  nn::SeenTokens view(int layer, int64_t tokens) const override;
  void advance(int64_t tokens) override;

  // For work on a GPU that is recorded and runs again: it reads the lengths from `past`, int32 [B]
  // in the memory of the device, and attention has room for `room` tokens with the new ones.
  void read_lengths_from(Tensor past, int64_t room);
  // As ever: the lengths of this object are what work goes by.
  void know_lengths();

 private:
  KvCache(std::shared_ptr<Device> device, const KvLayout& layout, int64_t batch, int64_t capacity);

  // The first `end` tokens of the chosen sequences in a layer as [B, end, H, D], or a block; `part`
  // 0 is keys, 1 is values.
  Tensor tokens(int layer, int part, int64_t end) const;
  // Of codes: as many scales, or those of a block; else empty.
  Tensor scales(int layer, int part, int64_t end) const;
  Tensor of_chosen(const Tensor& all) const { return all.slice(0, first_, first_ + count()); }
  int64_t count() const { return std::ssize(chosen_); }
  int64_t longest() const;  // of the chosen sequences
  // Takes unequal lengths to where attention reads them.
  void place_lengths();

  const std::shared_ptr<Device> device_;
  const KvLayout layout_;
  const int64_t capacity_;
  std::vector<KvMemory> layers_;          // of B sequences; none with ...
  std::unique_ptr<KvBlockTable> blocks_;  // ... which else is null
  std::vector<int64_t> lengths_;
  int64_t first_ = 0;            // the sequences of a pass, ...
  std::vector<int64_t> chosen_;  // ... and their lengths
  Tensor past_;  // int32 [B] of the device, of the chosen; empty while all their lengths are equal
  int64_t room_ = 0;  // of recorded work; 0 = what the lengths ask for
};

}  // namespace ds::infer
