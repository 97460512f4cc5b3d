#include "zero/flat_layout.h"

#include <algorithm>
#include <numeric>

namespace ds::zero {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

bool says(const std::vector<bool>& by_parameter, nn::ParamId id) {
  return !by_parameter.empty() && by_parameter[static_cast<size_t>(id)];
}

int domain_of(const Sharing& sharing, nn::ParamId id) {
  return sharing.domain.empty() ? 0 : sharing.domain[static_cast<size_t>(id)];
}

}  // namespace

FlatLayout::FlatLayout(const nn::ParameterSet& parameters, const Sharing& sharing)
    : domains_(sharing.domains),
      shapes_(sharing.shapes),
      ranges_(static_cast<size_t>(parameters.size())),
      order_(nn::flat_order(parameters)),
      bucket_of_(static_cast<size_t>(parameters.size()), kNoBucket) {
  if (shapes_.empty()) {
    for (nn::ParamId id = 0; id < parameters.size(); ++id) shapes_.push_back(parameters[id].shape);
  }
  std::erase_if(order_, [&](nn::ParamId id) { return domain_of(sharing, id) == Sharing::kAbsent; });
  std::stable_sort(order_.begin(), order_.end(), [&](nn::ParamId a, nn::ParamId b) {
    const auto key = [&](nn::ParamId id) {
      return std::pair(!parameters[id].trainable, domain_of(sharing, id));
    };
    return key(a) < key(b);
  });
  arrange(parameters, sharing);
}

void FlatLayout::arrange(const nn::ParameterSet& parameters, const Sharing& sharing) {
  Bucket open;
  int64_t end = 0;  // of the open bucket
  const auto close = [&] {
    const int64_t size = end - open.range.begin;
    const int64_t ranks = world(open);
    close_bucket(open, round_up((size + ranks - 1) / ranks, kAlign));
    const size_t next = open.last;
    open = {};
    open.first = next;
    open.range.begin = end = elements_;
  };
  for (size_t i = 0; i < order_.size(); ++i) {
    const nn::ParamId id = order_[i];
    const int64_t n = shape(id).elements();
    const bool trainable = parameters[id].trainable;
    const bool resident = says(sharing.resident, id), exact = says(sharing.exact, id);
    const bool fp32 = says(sharing.fp32, id) || parameters[id].keeps_fp32;
    const bool sparse = says(sharing.sparse, id);
    const int domain = domain_of(sharing, id);
    const bool tiled =
        says(sharing.tiled, id) && !resident && shape(id).dims() == 2 && n > sharing.tile_elements;
    const bool fits = end + n - open.range.begin <= sharing.bucket_elements;
    const bool alike = trainable == open.trainable && resident == open.resident &&
                       exact == open.exact && fp32 == open.fp32 && sparse == open.sparse &&
                       domain == open.domain;
    if (i > open.first && (!fits || !alike || tiled || sparse)) {
      open.last = i;
      close();
    }
    open.trainable = trainable;
    open.resident = resident;
    open.exact = exact;
    open.fp32 = fp32;
    open.sparse = sparse;
    open.domain = domain;
    if (tiled) {
      open.last = i + 1;
      add_tiles(sharing.tile_elements, open);
      ranges_[static_cast<size_t>(id)] = {end, elements_};
      open = {};
      open.first = i + 1;
      open.range.begin = end = elements_;
      continue;
    }
    ranges_[static_cast<size_t>(id)] = {end, end + n};
    end += round_up(n, kAlign);
  }
  open.last = order_.size();
  if (open.first < open.last) close();
}

// Tiles of one parameter, which `tile` describes.
void FlatLayout::add_tiles(int64_t tile_elements, Bucket tile) {
  const nn::ParamId id = order_[tile.first];
  const int64_t rows = shape(id)[0], columns = shape(id)[1];
  // As many rows make a multiple of kAlign elements.
  const int64_t step = kAlign / std::gcd(columns, kAlign), ranks = world(tile);
  nn::Tiling tiling;
  tiling.blocks = ranks;
  tiling.block_rows = round_up((rows + ranks - 1) / ranks, step);
  tiling.height =
      std::clamp(tile_elements / (ranks * columns) / step * step, step, tiling.block_rows);
  tiling.count = (tiling.block_rows + tiling.height - 1) / tiling.height;
  const size_t first = buckets_.size();
  for (tile.tile = 0; tile.tile < tiling.count; ++tile.tile) {
    tile.range.begin = elements_;
    close_bucket(tile, tiling.rows(tile.tile) * columns);
  }
  bucket_of_[static_cast<size_t>(id)] = first;
  tilings_[id] = {tiling, shape(id).elements()};
}

bool FlatLayout::cut() const {
  return std::ranges::any_of(domains_, [](const BucketRanks& ranks) { return ranks.world > 1; });
}

const nn::Tiling* FlatLayout::tiling(nn::ParamId id) const {
  const auto it = tilings_.find(id);
  return it == tilings_.end() ? nullptr : &it->second.tiling;
}

void FlatLayout::close_bucket(Bucket bucket, int64_t piece) {
  bucket.piece = piece;
  bucket.range.end = bucket.range.begin + world(bucket) * bucket.piece;
  bucket.owned = owned_elements_;
  for (size_t i = bucket.first; i < bucket.last; ++i) {
    bucket_of_[static_cast<size_t>(order_[i])] = buckets_.size();
  }
  elements_ = bucket.range.end;
  owned_elements_ += bucket.piece;
  if (bucket.trainable) {
    trainable_elements_ = elements_;
    owned_trainable_elements_ = owned_elements_;
  }
  buckets_.push_back(bucket);
}

OwnedPart FlatLayout::part(nn::ParamId id, int rank) const {
  const Bucket& bucket = buckets_[bucket_of(id)];
  if (bucket.tile >= 0) {
    const Tiled& tiled = tilings_.at(id);
    const int64_t block = tiled.tiling.block_rows * (bucket.piece / tiled.tiling.height);
    const int64_t first = std::min(rank * block, tiled.elements);
    return {first, std::min(block, tiled.elements - first), piece(bucket, rank).begin,
            bucket.owned};
  }
  const FlatRange whole = range(id), own = piece(bucket, rank);
  const int64_t begin = std::clamp(own.begin, whole.begin, whole.end);
  const int64_t end = std::clamp(own.end, begin, whole.end);
  return {begin - whole.begin, end - begin, begin, bucket.owned + begin - own.begin};
}

}  // namespace ds::zero
