// Weights that ranks hold in pieces, made whole for as long as an operator needs them: buckets are
// gathered when they are first asked for, kept while they will be needed again soon, and, once the
// order of a pass is known, fetched ahead of their use.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "zero/flat_layout.h"
#include "zero/weight_route.h"

namespace ds::zero {

class WeightGatherer {
 public:
  // All in elements.
  struct Limits {
    int64_t live = std::numeric_limits<int64_t>::max();      // gathered at a time
    int64_t reuse = std::numeric_limits<int64_t>::max();     // kept if used again within so many
    int64_t prefetch = std::numeric_limits<int64_t>::max();  // under way ahead of their use
    bool tell_order_changes = false;                         // in the log
  };

  WeightGatherer(const FlatLayout& layout, std::unique_ptr<BucketRoute> route,
                 const Limits& limits);
  ~WeightGatherer();

  // The whole bucket, valid until the matching release.
  const Tensor& acquire(size_t bucket);
  void release(size_t bucket) noexcept;
  // acquire() in two steps, for several buckets at once: all are under way before one is waited
  // for.
  void hold(size_t bucket);
  const Tensor& wait(size_t bucket);  // of one that is held; a failure ends the hold
  // Says what buckets are called; ranks that then gather different ones are told so.
  void name_buckets(std::vector<std::string> names) { names_ = std::move(names); }

  // A pass begins, such as a forward with its backward: what order it asks in is recorded, and
  // compared with that of the pass before.
  void begin_pass();
  // It is over: nothing is kept that is not resident.
  void end_pass();
  // It is given up: likewise, and its order, of which the rest is missing, is forgotten.
  void drop_pass() noexcept;
  // The pieces have changed, with `frozen_too` also those of frozen weights: gathered copies are
  // worthless.
  void pieces_changed(bool frozen_too);
  // The most elements that were there at a time.
  int64_t most_live() const { return most_live_; }

 private:
  struct Entry {
    Tensor data;
    BucketRoute::Flight flight;  // while it is under way
    int users = 0;
    int64_t last_use = 0;
    bool present() const { return data || flight; }
  };
  // Uses of one bucket after each other.
  struct Uses {
    size_t bucket;
    int64_t times;
    bool operator==(const Uses&) const = default;
  };
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();

  CollectiveOptions options_of(size_t bucket) const;
  void fetch(size_t bucket);
  void drop(size_t bucket);
  void drop_unused();
  void make_room(int64_t elements, size_t spared);
  void note_use(size_t bucket);
  void fetch_ahead();
  // Elements that are asked for before `bucket` is again; the limit when it is not.
  int64_t distance(size_t bucket) const;
  int64_t size(size_t bucket) const { return layout_.buckets()[bucket].range.elements(); }
  bool known() const { return following_; }

  const FlatLayout& layout_;
  std::unique_ptr<BucketRoute> route_;
  Limits limits_;
  std::vector<Entry> entries_;  // by bucket
  std::vector<Uses> trace_;     // in the order of the last pass
  std::vector<Uses> record_;    // and of this one
  size_t position_ = 0;         // in the trace, of the next bucket
  bool following_ = false;      // this pass has been like the trace
  int64_t live_ = 0, most_live_ = 0;
  std::vector<std::string> names_;  // by bucket, or none
};

}  // namespace ds::zero
