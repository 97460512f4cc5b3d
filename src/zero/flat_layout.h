// Where every parameter lies in the flat spaces of weights, gradients and optimizer state, and
// which part of them a rank owns. ZeRO stages, offload and checkpoints read this one description.
//
// The flat space is a row of buckets: whole parameters, as many as are moved between ranks at a
// time. A bucket is cut into equal pieces, one per rank; what a rank owns are its pieces of all
// buckets, which in the owned space lie one after another.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "nn/parameter.h"

namespace ds::zero {

// A range of the flat space, in elements.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t elements() const { return end - begin; }
};

struct Bucket {
  FlatRange range;    // padded: one piece per rank
  int64_t piece = 0;  // elements
  int64_t owned = 0;  // where the own piece lies in the owned space
  size_t first = 0;   // parameters, in FlatLayout::order()
  size_t last = 0;
  bool trainable = false;
  bool resident = false;
  bool exact = false;
};

// What a rank owns of a parameter: `count` elements from its element `first` on.
struct OwnedPart {
  int64_t first = 0;
  int64_t count = 0;
  int64_t flat = 0;   // of that element in the flat space
  int64_t owned = 0;  // and in the owned one
};

// How a flat space is shared.
struct Sharing {
  int rank = 0;
  int world = 1;
  int64_t bucket_elements = std::numeric_limits<int64_t>::max();  // a larger parameter is alone
  // By parameter, or empty: those that are to stay whole, which have buckets of their own.
  std::vector<bool> resident = {};
  // By parameter, or empty: those that never travel quantised, likewise.
  std::vector<bool> exact = {};
};

class FlatLayout {
 public:
  // Each parameter begins at a multiple of kAlign elements; gaps are zeros and stay zeros.
  static constexpr int64_t kAlign = 32;

  // Trainable parameters come first, and those that share a group and decay alike lie together, so
  // that an update is one pass over a long range.
  explicit FlatLayout(const nn::ParameterSet& parameters, const Sharing& sharing = {});

  int rank() const { return rank_; }
  int world() const { return world_; }
  int64_t elements() const { return elements_; }                      // all parameters, padded
  int64_t trainable_elements() const { return trainable_elements_; }  // the first so many
  int64_t owned_elements() const { return owned_elements_; }
  int64_t owned_trainable_elements() const { return owned_trainable_elements_; }
  FlatRange range(nn::ParamId id) const { return ranges_[static_cast<size_t>(id)]; }
  // Parameters in the order of the flat space.
  std::span<const nn::ParamId> order() const { return order_; }
  // The parameter that owns a flat index, kNoParam for padding.
  nn::ParamId parameter_at(int64_t index) const;

  std::span<const Bucket> buckets() const { return buckets_; }
  size_t bucket_of(nn::ParamId id) const { return bucket_of_[static_cast<size_t>(id)]; }
  FlatRange piece(const Bucket& bucket, int rank) const {
    const int64_t begin = bucket.range.begin + rank * bucket.piece;
    return {begin, begin + bucket.piece};
  }
  OwnedPart part(nn::ParamId id, int rank) const;
  OwnedPart part(nn::ParamId id) const { return part(id, rank_); }

 private:
  void close_bucket(Bucket bucket, int64_t end);

  int rank_;
  int world_;
  std::vector<FlatRange> ranges_;
  std::vector<nn::ParamId> order_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  int64_t elements_ = 0;
  int64_t trainable_elements_ = 0;
  int64_t owned_elements_ = 0;
  int64_t owned_trainable_elements_ = 0;
};

}  // namespace ds::zero
