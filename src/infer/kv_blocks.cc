#include "infer/kv_blocks.h"

#include <algorithm>
#include <utility>

namespace ds::infer {

void check_kv_blocks(const KvBlockOptions& options, const Device& device) {
  DS_CHECK(options.block_tokens == 0 || device.kind() == DeviceKind::kCpu, Code::kUnsupported,
           "kv_block_tokens of a model on ", device.describe(),
           ": attention on a GPU reads keys and values in one piece so far; leave it out, or run "
           "the model on the CPU");
}

void check_kv(const KvOptions& options, const models::ArchitectureInfo& info,
              const Device& device) {
  check_kv_blocks(options.blocks, device);
  if (!options.codes) return;
  DS_CHECK(
      device.kind() == DeviceKind::kCpu, Code::kUnsupported, "kv_cache int8 of a model on ",
      device.describe(),
      ": attention on a GPU reads keys and values in the type that the model computes in; leave it "
      "out, or run the model on the CPU");
  DS_CHECK(info.values_in_keys == 0, Code::kUnsupported,
           "kv_cache int8 of a model with latent attention: its cache is latents that all heads "
           "share beside channels for positions, which one scale for a token would round alike; "
           "leave it out: latents are few numbers already");
}

KvBlockPool::KvBlockPool(std::shared_ptr<Device> device, const models::ArchitectureInfo& info,
                         DType dtype, const KvBlockOptions& options)
    : device_(std::move(device)),
      layers_(info.layers),
      layout_(info, dtype, *device_),
      block_tokens_(options.block_tokens),
      most_(options.pool_tokens == 0 ? INT64_MAX : options.pool_tokens / options.block_tokens) {
  check_kv_blocks(options, *device_);
}

void KvBlockPool::check_free(int64_t count, const std::string& why) const {
  DS_CHECK(count <= most_ - taken(), Code::kOutOfMemory, "the KV cache's pool of ", most_,
           " blocks of ", block_tokens(), " tokens has ", most_ - taken(), " left, and ", count,
           " are needed ", why, "; a larger kv_pool_tokens makes room");
}

int KvBlockPool::take() {
  if (free_.empty()) {
    free_.reserve(blocks_.size() + 1);  // giving back does not fail
    blocks_.push_back(layout_.make(device_, layers_, block_tokens_));
    return static_cast<int>(blocks_.size()) - 1;
  }
  const int block = free_.back();
  free_.pop_back();
  return block;
}

void KvBlockPool::give_back(int block) { free_.push_back(block); }

Tensor KvBlockPool::tokens(int block, int layer, int part) const {
  const KvMemory& all = blocks_[static_cast<size_t>(block)];
  return layout_.part(all.numbers, part).slice(0, layer, layer + 1);
}

Tensor KvBlockPool::scales(int block, int layer, int part) const {
  if (!layout_.coded()) return {};
  return layout_.scales(blocks_[static_cast<size_t>(block)], part).slice(0, layer, layer + 1);
}

KvBlockTable::KvBlockTable(std::shared_ptr<KvBlockPool> pool, int64_t batch)
    : pool_(std::move(pool)), blocks_(static_cast<size_t>(batch)) {}

KvBlockTable::~KvBlockTable() {
  for (const std::vector<int>& blocks : blocks_) {
    for (const int block : blocks) pool_->give_back(block);
  }
}

int64_t KvBlockTable::needed(int64_t length) const {
  return (length + pool_->block_tokens() - 1) / pool_->block_tokens();
}

void KvBlockTable::cover(int64_t first, const std::vector<int64_t>& lengths, int64_t tokens) {
  int64_t missing = 0, columns = 0;
  const auto blocks_of = [&](size_t i) -> std::vector<int>& {
    return blocks_[static_cast<size_t>(first) + i];
  };
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t own = needed(lengths[i] + tokens);
    missing += std::max<int64_t>(0, own - std::ssize(blocks_of(i)));
    columns = std::max(columns, own);
  }
  if (missing == 0) return;
  pool_->check_free(missing, str_cat("for ", tokens, " tokens behind ",
                                     *std::max_element(lengths.begin(), lengths.end())));
  make_table(columns);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t own = needed(lengths[i] + tokens);
    std::vector<int>& blocks = blocks_of(i);
    blocks.reserve(static_cast<size_t>(own));
    for (int64_t column = std::ssize(blocks); column < own; ++column) {
      any_ = pool_->take();
      blocks.push_back(any_);
      write(first + static_cast<int64_t>(i), column, any_);
    }
  }
}

void KvBlockTable::exchange(int64_t a, int64_t b) {
  std::swap(blocks_[static_cast<size_t>(a)], blocks_[static_cast<size_t>(b)]);
  if (!table_) return;
  const int64_t batch = table_.size(2), columns = table_.size(3);
  auto* const data = table_.data<int64_t>();
  for (int64_t part = 0; part < table_.size(0) * table_.size(1); ++part) {
    int64_t* const rows = data + part * batch * columns;
    std::swap_ranges(rows + a * columns, rows + (a + 1) * columns, rows + b * columns);
  }
}

void KvBlockTable::cut(int64_t sequence, int64_t length) {
  std::vector<int>& blocks = blocks_[static_cast<size_t>(sequence)];
  while (static_cast<int64_t>(blocks.size()) > needed(length)) {
    pool_->give_back(blocks.back());
    blocks.pop_back();
    write(sequence, static_cast<int64_t>(blocks.size()), std::nullopt);
  }
}

// Twice as many columns as before, so that filling them costs each block little.
void KvBlockTable::make_table(int64_t columns) {
  const int64_t before = table_ ? table_.size(3) : 0;
  if (columns <= before) return;
  const Shape shape{pool_->layers(), pool_->layout().coded() ? 4 : 2,
                    static_cast<int64_t>(blocks_.size()), std::max(columns, 2 * before)};
  table_ = Tensor::zeros(pool_->device(), DType::kInt64, shape, MemoryTag::kKvCache);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    for (size_t column = 0; column < blocks_[b].size(); ++column) {
      write(static_cast<int64_t>(b), static_cast<int64_t>(column), blocks_[b][column]);
    }
  }
}

void KvBlockTable::write(int64_t sequence, int64_t column, std::optional<int> block) {
  const int64_t batch = table_.size(2), columns = table_.size(3);
  const auto kinds = static_cast<int>(table_.size(1));
  for (int layer = 0; layer < pool_->layers(); ++layer) {
    for (int kind = 0; kind < kinds; ++kind) {
      const auto rows = [&] {
        return kind < 2 ? pool_->tokens(*block, layer, kind)
                        : pool_->scales(*block, layer, kind - 2);
      };
      const int64_t row = (layer * kinds + kind) * batch + sequence;
      table_.data<int64_t>()[row * columns + column] =
          block ? reinterpret_cast<int64_t>(rows().raw()) : 0;
    }
  }
}

ops::TokenBlocks KvBlockTable::blocks(int layer, int64_t room, int64_t first, int64_t count) const {
  const Tensor own = table_.select(0, layer).slice(1, first, first + count);
  ops::TokenBlocks blocks{own.select(0, 0), own.select(0, 1), room};
  if (own.size(0) > 2) {
    blocks.key_scales = own.select(0, 2);
    blocks.value_scales = own.select(0, 3);
  }
  return blocks;
}

}  // namespace ds::infer
