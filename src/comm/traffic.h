// Counts what a group sends, by collective, for itself and for the groups that it was split from.
#pragma once

#include <memory>
#include <mutex>

#include "comm/collective.h"

namespace ds::comm {

class TrafficCounter {
 public:
  // `parent`: of the group that this one was split from.
  explicit TrafficCounter(std::shared_ptr<TrafficCounter> parent = {})
      : parent_(std::move(parent)) {}

  // Threads: any, like the rest.
  void add(Collective kind, const Traffic& sent) {
    add_to(&TrafficCounter::own_, kind, sent);
    for (TrafficCounter* counter = this; counter != nullptr; counter = counter->parent_.get()) {
      counter->add_to(&TrafficCounter::total_, kind, sent);
    }
  }
  TrafficTable own() const { return read(own_); }
  // With all groups split from this one, also those that are gone.
  TrafficTable total() const { return read(total_); }

 private:
  void add_to(TrafficTable TrafficCounter::*table, Collective kind, const Traffic& sent) {
    const std::lock_guard lock(mutex_);
    (this->*table)[static_cast<size_t>(kind)] += sent;
  }
  TrafficTable read(const TrafficTable& table) const {
    const std::lock_guard lock(mutex_);
    return table;
  }

  const std::shared_ptr<TrafficCounter> parent_;
  mutable std::mutex mutex_;
  TrafficTable own_{};
  TrafficTable total_{};
};

}  // namespace ds::comm
