#include "zero/weight_checks.h"

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "base/text.h"
#include "comm/message_memory.h"
#include "ops/stored_array.h"
#include "tensor/transfer.h"

namespace ds::zero {
namespace {

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

constexpr int64_t kPiece = int64_t{1} << 20;  // elements that are looked at together

// Of parameters that all ranks of a group hold: one number of everything first; which tensor it is
// only where ranks differ.
void check_alike(const OpContext& ctx, const StateArrays& arrays, const Weights& weights,
                 const RankGroup& ranks, const std::vector<nn::ParamId>& ids) {
  const OpContext host{host_memory_of(arrays.device), ctx.pool};
  const auto gather = [&](const std::vector<uint64_t>& own) {
    const auto count = static_cast<int64_t>(own.size());
    const auto numbers = [&](int64_t n) {
      return comm::message_memory(*ranks.comm, host.device, DType::kInt64, {n},
                                  MemoryTag::kWorkspace);
    };
    const Tensor mine = numbers(count), all = numbers(count * ranks.size);
    std::memcpy(mine.raw(), own.data(), own.size() * sizeof(uint64_t));
    ranks->all_gather(all, mine, {.label = "checksums of weights", .blocking = true})->wait();
    return std::vector<int64_t>(all.data<int64_t>(), all.data<int64_t>() + all.elements());
  };
  const auto checksum = [&](nn::ParamId id) {
    const int64_t n = arrays.parameters[id].shape.elements();
    const Tensor values = weights.view(id).view({n});
    std::vector<uint64_t> sums;
    for (int64_t begin = 0; begin < n; begin += kPiece) {
      const int64_t end = std::min(n, begin + kPiece);
      const Tensor piece = to_host(values.slice(0, begin, end), host.device);
      sums.push_back(xxh3_64(bytes_of(piece)));
    }
    return xxh3_64(std::as_bytes(std::span(sums)));
  };
  std::vector<uint64_t> each;
  for (const nn::ParamId id : ids) each.push_back(checksum(id));
  const std::vector<int64_t> sums = gather({xxh3_64(std::as_bytes(std::span(each)))});
  const auto other = std::ranges::find_if(sums, [&](int64_t sum) { return sum != sums[0]; });
  if (other == sums.end()) return;
  const auto rank = static_cast<size_t>(other - sums.begin());
  const std::vector<int64_t> all = gather(each);
  const char* const in =
      ranks.size < arrays.all_ranks().size ? " of those that hold the expert" : "";
  for (size_t i = 0; i < each.size(); ++i) {
    DS_CHECK(all[i] == all[rank * each.size() + i], Code::kState, "the weights of ",
             arrays.parameters[ids[i]].name, " on rank ", rank, in,
             " are not those of rank 0: a rank computed something else, or wrote to them");
  }
}

}  // namespace

void check_weights(const OpContext& ctx, const StateArrays& arrays, const Weights& weights) {
  if (!arrays.shared()) return;
  if (!arrays.weights().compact) {
    std::vector<std::vector<nn::ParamId>> by_domain(arrays.groups.size());
    for (nn::ParamId id = 0; id < arrays.parameters.size(); ++id) {
      if (arrays.holds(id)) by_domain[static_cast<size_t>(arrays.layout.domain(id))].push_back(id);
    }
    for (size_t i = 0; i < by_domain.size(); ++i) {
      if (!by_domain[i].empty()) {
        check_alike(ctx, arrays, weights, arrays.groups[i].all, by_domain[i]);
      }
    }
  }
  const optim::FlatTensors& flat = arrays.flat;
  const bool beside_masters = flat.model || arrays.host_store;
  if (!beside_masters || !flat.masters) return;
  arrays.before_reading_masters();
  const OpContext masters_ctx = arrays.state_context(ctx);
  const std::shared_ptr<Device> host = host_memory_of(arrays.device);
  for (nn::ParamId id = 0; id < arrays.parameters.size(); ++id) {
    if (!arrays.holds(id)) continue;
    const FlatRange masters = arrays.owned_range(flat.masters, id);
    const FlatRange copies = arrays.owned_range(arrays.weights(), id);
    for (int64_t begin = 0; begin < copies.elements(); begin += kPiece) {
      const int64_t end = std::min(copies.elements(), begin + kPiece);
      Tensor rounded = masters_ctx.workspace(weights.compute_type(), {end - begin});
      ops::read_array(masters_ctx, flat.masters, masters.begin + begin, rounded);
      const Tensor expected = to_host(rounded, host);
      const ArrayLease copy =
          arrays.weights().map(copies.begin + begin, copies.begin + end, Access::kRead);
      const Tensor found = to_host(copy.data(), host);
      DS_CHECK(std::ranges::equal(bytes_of(expected), bytes_of(found)), Code::kState,
               "the weights of ", arrays.parameters[id].name, " on rank ", arrays.all_ranks().rank,
               " are not their masters, rounded: something else wrote to them");
    }
  }
}

}  // namespace ds::zero
