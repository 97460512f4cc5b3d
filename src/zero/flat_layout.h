// Where every parameter lies in the flat spaces of weights, gradients and optimizer state, and
// which part of them a rank owns. ZeRO stages, offload and checkpoints read this one description.
//
// The flat space is a row of buckets: whole parameters, as many as are moved between ranks at a
// time. A bucket is cut into equal pieces, one per rank; what a rank owns are its pieces of all
// buckets, which in the owned space lie one after another.
//
// A matrix that is too large to be moved as one is tiled: it has several buckets, and each rank's
// pieces of them are, one after another, rows of the matrix that follow each other. So what a rank
// owns of it is one range, as of any parameter, but a bucket has a band of rows of every rank, and
// the matrix lies nowhere in the flat space in its own order.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "nn/flat_order.h"
#include "nn/parameter_reader.h"

namespace ds::zero {

using nn::FlatRange;

struct Bucket {
  FlatRange range;    // padded: one piece per rank
  int64_t piece = 0;  // elements
  int64_t owned = 0;  // where the own piece lies in the owned space
  size_t first = 0;   // parameters, in FlatLayout::order()
  size_t last = 0;
  bool trainable = false;
  bool resident = false;
  bool exact = false;
  bool fp32 = false;
  bool sparse = false;
  int domain = 0;     // whose ranks its pieces are of
  int64_t tile = -1;  // of the one parameter that it has a part of
};

// What a rank owns of a parameter: `count` elements from its element `first` on.
struct OwnedPart {
  int64_t first = 0;
  int64_t count = 0;
  int64_t flat = 0;   // of that element in the flat space
  int64_t owned = 0;  // and in the owned one
};

// The ranks that cut the buckets of a gradient domain among each other, and this one's place.
struct BucketRanks {
  int rank = 0;
  int world = 1;
};

// How a flat space is shared.
struct Sharing {
  // Whose buckets lie one domain after another, first those of all that are trained.
  std::vector<BucketRanks> domains = {{}};
  // By parameter, or empty: its domain, or kAbsent, and then it has no place here.
  static constexpr int kAbsent = -1;
  std::vector<int> domain = {};
  // By parameter, or empty: the shape of the part that this rank holds.
  std::vector<Shape> shapes = {};
  int64_t bucket_elements = std::numeric_limits<int64_t>::max();  // a larger parameter is alone
  // By parameter, or empty: those that are to stay whole, which have buckets of their own.
  std::vector<bool> resident = {};
  // By parameter, or empty: those that never travel quantised, likewise.
  std::vector<bool> exact = {};
  // By parameter, or empty: those that are computed with in fp32 where others are not, likewise.
  std::vector<bool> fp32 = {};
  // By parameter, or empty: matrices of whose gradients few rows are not zero, each of which has a
  // bucket to itself.
  std::vector<bool> sparse = {};
  // By parameter, or empty: matrices of more than `tile_elements` that are cut into tiles of at
  // most so many, if a row of each rank is no more.
  std::vector<bool> tiled = {};
  int64_t tile_elements = 0;
};

class FlatLayout {
 public:
  // Pieces are multiples of it, too.
  static constexpr int64_t kAlign = nn::kFlatAlign;

  // The order is nn::flat_order within each domain, trainable parameters of all domains before
  // frozen ones. Where one rank has everything and nothing is tiled, each parameter lies where
  // nn::FlatOrder places it.
  explicit FlatLayout(const nn::ParameterSet& parameters, const Sharing& sharing = {});

  // Of the ranks that share a domain, and of those that share a bucket.
  int rank(int domain) const { return domains_[static_cast<size_t>(domain)].rank; }
  int world(int domain) const { return domains_[static_cast<size_t>(domain)].world; }
  int rank(const Bucket& bucket) const { return rank(bucket.domain); }
  int world(const Bucket& bucket) const { return world(bucket.domain); }
  // Whether ranks cut some domain among each other.
  bool cut() const;
  // Of the part that this rank holds.
  const Shape& shape(nn::ParamId id) const { return shapes_[static_cast<size_t>(id)]; }
  // Whether this rank has a part in the parameter; otherwise it has no range and no bucket.
  bool holds(nn::ParamId id) const { return bucket_of(id) != kNoBucket; }
  int64_t elements() const { return elements_; }                      // all parameters, padded
  int64_t trainable_elements() const { return trainable_elements_; }  // the first so many
  int64_t owned_elements() const { return owned_elements_; }
  int64_t owned_trainable_elements() const { return owned_trainable_elements_; }
  // Of a tiled one: that of its buckets.
  FlatRange range(nn::ParamId id) const { return ranges_[static_cast<size_t>(id)]; }
  // Null when it is not tiled. Blocks are ranks; tile k is bucket bucket_of() + k.
  const nn::Tiling* tiling(nn::ParamId id) const;
  bool any_tiled() const { return !tilings_.empty(); }
  // Parameters in the order of the flat space.
  std::span<const nn::ParamId> order() const { return order_; }

  std::span<const Bucket> buckets() const { return buckets_; }
  // The first one of a tiled parameter.
  size_t bucket_of(nn::ParamId id) const { return bucket_of_[static_cast<size_t>(id)]; }
  FlatRange piece(const Bucket& bucket, int rank) const {
    const int64_t begin = bucket.range.begin + rank * bucket.piece;
    return {begin, begin + bucket.piece};
  }
  // Of a rank of those that share its bucket, and of this one; nothing where nobody here holds it.
  OwnedPart part(nn::ParamId id, int rank) const;
  OwnedPart part(nn::ParamId id) const {
    return holds(id) ? part(id, rank(buckets_[bucket_of(id)])) : OwnedPart{};
  }

 private:
  static constexpr size_t kNoBucket = std::numeric_limits<size_t>::max();

  void arrange(const nn::ParameterSet& parameters, const Sharing& sharing);
  void close_bucket(Bucket bucket, int64_t piece);
  void add_tiles(int64_t tile_elements, Bucket tile);

  std::vector<BucketRanks> domains_;
  std::vector<Shape> shapes_;
  std::vector<FlatRange> ranges_;
  std::vector<nn::ParamId> order_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  struct Tiled {
    nn::Tiling tiling;
    int64_t elements;  // of the rank's part of the parameter
  };
  std::unordered_map<nn::ParamId, Tiled> tilings_;
  int64_t elements_ = 0;
  int64_t trainable_elements_ = 0;
  int64_t owned_elements_ = 0;
  int64_t owned_trainable_elements_ = 0;
};

}  // namespace ds::zero
