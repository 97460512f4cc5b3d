#include "optim/muon_rounds.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace ds::optim {

bool is_muon_matrix(const TensorPlace& place) {
  std::string name = place.name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return place.shape.dims() >= 2 && name.find("embed") == std::string::npos &&
         name.find("lm_head") == std::string::npos;
}

Shape muon_stack(const Shape& shape) {
  if (shape.dims() == 3) return shape;
  const int64_t rows = shape[0];
  return {1, rows, rows == 0 ? 0 : shape.elements() / rows};
}

namespace {

// Each rank's buffers hold about so many elements.
constexpr int64_t kRoundElements = int64_t{16} << 20;

double work_of(const TensorPlace& place) {
  const Shape stack = muon_stack(place.shape);
  return static_cast<double>(place.shape.elements()) *
         static_cast<double>(std::min(stack[1], stack[2]));
}

// The most work goes first, to the rank with the least: the same on every rank.
MuonRound make_round(const std::vector<TensorPlace>& places, const ShardGroup& shard_group,
                     std::vector<size_t> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](size_t a, size_t b) { return work_of(places[a]) > work_of(places[b]); });
  const auto size = static_cast<size_t>(shard_group.size());
  std::vector<double> load(size);
  std::vector<std::vector<size_t>> of_rank(size);
  for (const size_t tensor : tensors) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += work_of(places[tensor]);
    of_rank[static_cast<size_t>(least - load.begin())].push_back(tensor);
  }
  MuonRound round;
  round.sent.resize(size);
  round.received.resize(size);
  for (int owner = 0; owner < shard_group.size(); ++owner) {
    for (const size_t tensor : of_rank[static_cast<size_t>(owner)]) {
      round.tensors.push_back(tensor);
      round.owners.push_back(owner);
      const OwnedRange own = shard_group.part(tensor, shard_group.rank());
      round.sent[static_cast<size_t>(owner)] += own.end - own.begin;
      for (int rank = 0; owner == shard_group.rank() && rank < shard_group.size(); ++rank) {
        const OwnedRange part = shard_group.part(tensor, rank);
        round.received[static_cast<size_t>(rank)] += part.end - part.begin;
      }
    }
  }
  return round;
}

}  // namespace

std::vector<MuonRound> muon_rounds(const std::vector<TensorPlace>& places,
                                   const ShardGroup& shard_group) {
  std::vector<MuonRound> rounds;
  std::vector<size_t> open;
  int64_t elements = 0;
  const auto close = [&] {
    if (!open.empty()) {
      rounds.push_back(make_round(places, shard_group, std::exchange(open, {})));
    }
    elements = 0;
  };
  for (const size_t i : shard_group.tensors()) {
    const int64_t n = places[i].shape.elements();
    if (!is_muon_matrix(places[i]) || n == 0) continue;
    if (elements + n > kRoundElements * shard_group.size()) close();
    open.push_back(i);
    elements += n;
  }
  close();
  return rounds;
}

}  // namespace ds::optim
