// Keys and values in blocks: memory for a fixed number of tokens in all layers, taken from a pool
// when a sequence needs it. So a cache grows with its texts, and sequences share what there is
// (Kwon et al., arXiv:2309.06180).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/kv_layout.h"
#include "ops/token_blocks.h"

namespace ds::infer {

struct KvBlockOptions {
  int64_t block_tokens = 0;  // of a block; 0 = a cache is one piece, with room for all its tokens
  int64_t pool_tokens = 0;   // that the pool holds at most, in whole blocks; 0 = any number
};
// Throws kUnsupported where caches of the device are one piece.
void check_kv_blocks(const KvBlockOptions& options, const Device& device);

struct KvOptions {
  KvBlockOptions blocks;
  bool codes = false;  // keys and values as 8-bit codes, not in the type that the model computes in
};
// Throws kUnsupported where a cache of the model on the device is not like that.
void check_kv(const KvOptions& options, const models::ArchitectureInfo& info, const Device& device);

// Blocks that are not taken stay allocated for the next ones. Not thread-safe.
class KvBlockPool {
 public:
  KvBlockPool(std::shared_ptr<Device> device, const models::ArchitectureInfo& info, DType dtype,
              const KvBlockOptions& options);
  KvBlockPool(const KvBlockPool&) = delete;
  KvBlockPool& operator=(const KvBlockPool&) = delete;

  int layers() const { return layers_; }
  const KvLayout& layout() const { return layout_; }
  int64_t block_tokens() const { return block_tokens_; }
  int64_t taken() const { return static_cast<int64_t>(blocks_.size() - free_.size()); }
  const std::shared_ptr<Device>& device() const { return device_; }

  // Throws kOutOfMemory unless so many blocks may be taken; `why` says what for.
  void check_free(int64_t count, const std::string& why) const;
  int take();
  void give_back(int block);
  // Part 0 is keys, 1 is values: [1, tokens of a block, H, D].
  Tensor tokens(int block, int layer, int part) const;
  // Of codes: fp32 [1, tokens of a block, H]; else empty.
  Tensor scales(int block, int layer, int part) const;

 private:
  const std::shared_ptr<Device> device_;
  const int layers_;
  const KvLayout layout_;
  const int64_t block_tokens_;
  const int64_t most_;            // blocks
  std::vector<KvMemory> blocks_;  // of all layers
  std::vector<int> free_;
};

// Which blocks the sequences of a cache have.
class KvBlockTable {
 public:
  KvBlockTable(std::shared_ptr<KvBlockPool> pool, int64_t batch);
  ~KvBlockTable();
  KvBlockTable(const KvBlockTable&) = delete;
  KvBlockTable& operator=(const KvBlockTable&) = delete;

  // Takes what the sequences from `first` on lack for `tokens` behind their `lengths`; throws
  // kOutOfMemory, with nothing taken, where the pool has fewer.
  void cover(int64_t first, const std::vector<int64_t>& lengths, int64_t tokens);
  // Gives back what lies behind the first `length` tokens of a sequence.
  void cut(int64_t sequence, int64_t length);
  // Two sequences change places.
  void exchange(int64_t a, int64_t b);
  // Of a layer and `count` sequences from `first` on, as operators read it.
  ops::TokenBlocks blocks(int layer, int64_t room, int64_t first, int64_t count) const;
  // A block of the layer, after cover().
  Tensor tokens(int layer, int part) const { return pool_->tokens(any_, layer, part); }
  Tensor scales(int layer, int part) const { return pool_->scales(any_, layer, part); }

 private:
  int64_t needed(int64_t length) const;
  void make_table(int64_t columns);
  // Says in all layers where the tokens of a column lie; no block: nowhere.
  void write(int64_t sequence, int64_t column, std::optional<int> block);

  const std::shared_ptr<KvBlockPool> pool_;
  std::vector<std::vector<int>> blocks_;  // of each sequence
  int any_ = 0;
  // int64 [layers, keys and values, B, columns]; of codes also their scales: [layers, 4, ...]
  Tensor table_;
};

}  // namespace ds::infer
