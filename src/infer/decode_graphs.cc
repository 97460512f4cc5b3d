#include "infer/decode_graphs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/log.h"
#include "tensor/transfer.h"

namespace ds::infer {
namespace {

constexpr int64_t kSmallestRoom = 256;  // keys of one split: up to there a graph costs no more
constexpr int64_t kPitch = 4;           // int32 from one input to the next: 16 bytes
constexpr int kInputs = 3;

}  // namespace

std::unique_ptr<DecodeGraphs> DecodeGraphs::make(const std::shared_ptr<Device>& device,
                                                 const nn::ParameterReader& weights,
                                                 const models::ArchitectureInfo& info) {
  if (device->kind() != DeviceKind::kCuda) return nullptr;
  if (!weights.stays_in_place() || info.angles_follow_length) return nullptr;
  if (info.experts > 0) return nullptr;         // the host reads how many tokens each expert got
  if (info.values_in_keys > 0) return nullptr;  // keys of the whole text are made for each token
  return std::unique_ptr<DecodeGraphs>(
      new DecodeGraphs(std::static_pointer_cast<CudaDevice>(device), info.vocab_size));
}

DecodeGraphs::DecodeGraphs(std::shared_ptr<CudaDevice> device, int64_t vocabulary)
    : device_(std::move(device)),
      inputs_(Tensor::empty(device_, DType::kInt32, {kInputs * kPitch}, MemoryTag::kOther)),
      logits_(Tensor::empty(device_, DType::kFloat32, {1, 1, vocabulary}, MemoryTag::kOther)) {}

int64_t DecodeGraphs::room_for(int64_t length, int64_t capacity) {
  const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(length)));
  return std::min(std::max(whole, kSmallestRoom), capacity);
}

Tensor DecodeGraphs::input(int index, const Shape& shape) const {
  const int64_t at = index * kPitch * static_cast<int64_t>(sizeof(int32_t));
  return Tensor(inputs_.storage(), at, DType::kInt32, shape);
}

bool DecodeGraphs::run(int32_t token, KvCache& cache, const Pass& pass) {
  if (failed_) return false;
  const int64_t room = room_for(cache.length(0) + 1, cache.capacity());
  const auto [found, fresh] = entries_.try_emplace(room);
  if (fresh) return false;
  if (!found->second.graph && !record(found->second, cache, room, pass)) return false;
  std::array<int32_t, kInputs * kPitch> numbers{};
  numbers[0] = token;
  numbers[kPitch] = numbers[2 * kPitch] = static_cast<int32_t>(cache.length(0));
  copy_from_host(numbers.data(), inputs_);
  // What the work keeps for itself is in use meanwhile: peaks of the account show it.
  const int64_t bytes = memory_->bytes();
  device_->account().add(MemoryTag::kActivations, bytes);
  device_->account().remove(MemoryTag::kActivations, bytes);
  found->second.graph->launch();
  cache.advance(1);
  return true;
}

bool DecodeGraphs::record(Entry& entry, KvCache& cache, int64_t room, const Pass& pass) {
  if (!memory_) memory_ = device_->make_graph_memory();
  models::Batch batch;
  batch.ids = input(0, {1, 1});
  batch.position_ids = input(1, {1, 1});
  batch.positions = room;
  const int64_t length = cache.length(0);
  struct Length {  // that the host knows, again
    KvCache& cache;
    const int64_t length;
    ~Length() {
      cache.know_lengths();
      cache.shorten(0, length);
    }
  } const again{cache, length};
  try {
    cache.read_lengths_from(input(2, {1}), room);
    entry.graph = device_->record(memory_, [&] { pass(batch, logits_, &entry.constants); });
    log_info("infer", "recorded a token for texts of up to ", room,
             " tokens: ", entry.graph->nodes(), " nodes, ", format_bytes(memory_->bytes()),
             " of memory");
    return true;
  } catch (const Error& error) {
    log_warning("infer", "a token could not be recorded, and none will: ", error.message());
  }
  failed_ = true;
  entries_.clear();
  memory_.reset();
  return false;
}

}  // namespace ds::infer
