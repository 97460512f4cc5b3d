#include "zero/weight_gatherer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace ds::zero {

WeightGatherer::WeightGatherer(const FlatLayout& layout, std::unique_ptr<BucketRoute> route,
                               const Limits& limits)
    : layout_(layout),
      route_(std::move(route)),
      limits_(limits),
      entries_(layout.buckets().size()) {}

WeightGatherer::~WeightGatherer() {
  // Memory that a gather writes to must outlive it.
  for (Entry& entry : entries_) {
    if (!entry.flight.work) continue;
    try {
      entry.flight.work->wait();
    } catch (const Error&) {
    }
  }
}

CollectiveOptions WeightGatherer::options_of(size_t index) const {
  const std::string_view label = names_.empty() ? "weights" : std::string_view(names_[index]);
  return {.label = label, .same_label = !names_.empty()};
}

void WeightGatherer::fetch(size_t index) {
  Entry& entry = entries_[index];
  Tensor data;
  entry.flight = route_->start(index, data, options_of(index));
  entry.data = std::move(data);
  live_ += size(index);
  most_live_ = std::max(most_live_, live_);
}

void WeightGatherer::drop(size_t index) {
  Entry& entry = entries_[index];
  if (!entry.present()) return;
  if (entry.flight) route_->abandon(index, entry.flight, entry.data);
  entry = {};
  live_ -= size(index);
}

int64_t WeightGatherer::distance(size_t bucket) const {
  if (position_ > 0 && record_.back().bucket == bucket &&
      record_.back().times < trace_[position_ - 1].times) {
    return 0;
  }
  int64_t elements = 0;
  for (size_t i = position_; i < trace_.size(); ++i) {
    if (trace_[i].bucket == bucket) return elements;
    elements += size(trace_[i].bucket);
    if (elements > limits_.reuse) break;
  }
  return std::numeric_limits<int64_t>::max();
}

// Drops what is used last, or, while the order is not known, what was used longest ago.
void WeightGatherer::make_room(int64_t elements, size_t spared) {
  while (live_ + elements > limits_.live) {
    size_t worst = kNever;
    int64_t worst_rank = -1;
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      if (!entry.present() || entry.users > 0 || i == spared || layout_.buckets()[i].resident)
        continue;
      const int64_t rank =
          known() ? distance(i) : std::numeric_limits<int64_t>::max() - 1 - entry.last_use;
      if (rank > worst_rank) {
        worst = i;
        worst_rank = rank;
      }
    }
    if (worst == kNever) return;  // all in use: the limit gives way
    drop(worst);
  }
}

void WeightGatherer::note_use(size_t bucket) {
  entries_[bucket].last_use = static_cast<int64_t>(record_.size());
  if (!record_.empty() && record_.back().bucket == bucket) {
    ++record_.back().times;
    return;
  }
  record_.push_back({bucket, 1});
  if (!following_) return;
  if (position_ < trace_.size() && trace_[position_].bucket == bucket) {
    ++position_;
  } else {
    following_ = false;
  }
}

const Tensor& WeightGatherer::acquire(size_t bucket) {
  hold(bucket);
  return wait(bucket);
}

void WeightGatherer::hold(size_t bucket) {
  Entry& entry = entries_[bucket];
  if (!entry.present()) {
    make_room(size(bucket), bucket);
    fetch(bucket);
  }
  ++entry.users;
  note_use(bucket);
}

const Tensor& WeightGatherer::wait(size_t bucket) {
  fetch_ahead();
  Entry& entry = entries_[bucket];
  if (entry.flight) {
    try {
      route_->finish(bucket, entry.flight, entry.data, options_of(bucket));
    } catch (...) {
      --entry.users;
      throw;
    }
  }
  return entry.data;
}

void WeightGatherer::fetch_ahead() {
  if (!known()) return;
  int64_t under_way = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    // What somebody waits for already is not ahead of its use.
    if (entries_[i].flight && entries_[i].users == 0) under_way += size(i);
  }
  for (size_t i = position_; i < trace_.size(); ++i) {
    const size_t next = trace_[i].bucket;
    if (entries_[next].present()) continue;
    const int64_t with = size(next);
    if (under_way + with > limits_.prefetch || live_ + with > limits_.live) return;
    fetch(next);
    under_way += with;
  }
}

void WeightGatherer::release(size_t bucket) noexcept {
  Entry& entry = entries_[bucket];
  if (--entry.users > 0 || layout_.buckets()[bucket].resident) return;
  // While the order is not known only the limit of live elements makes room.
  if (known() && distance(bucket) > limits_.reuse) drop(bucket);
}

void WeightGatherer::begin_pass() {
  record_.clear();
  position_ = 0;
  following_ = !trace_.empty();
}

void WeightGatherer::end_pass() {
  if (!record_.empty()) {
    if (limits_.tell_order_changes && !trace_.empty() && trace_ != record_) {
      log_warning("zero", "weights are fetched in another order than in the pass before, from its ",
                  position_, ". fetch on: what was fetched ahead was no use");
    }
    trace_ = std::exchange(record_, {});
  }
  following_ = false;
  drop_unused();
}

void WeightGatherer::drop_unused() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].users == 0 && !layout_.buckets()[i].resident) drop(i);
  }
}

void WeightGatherer::drop_pass() noexcept {
  record_.clear();
  following_ = false;
  try {
    drop_unused();
  } catch (const std::exception&) {
    // A gather that fails leaves its memory to the next pass, which says what is wrong.
  }
}

void WeightGatherer::pieces_changed(bool frozen_too) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].users == 0) drop(i);
  }
  route_->pieces_changed(frozen_too);
}

}  // namespace ds::zero
