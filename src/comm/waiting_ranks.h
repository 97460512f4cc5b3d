// Who is to blame when a deadline passes. A rank waits for others that may themselves wait for one
// that is lost; it asks all, those that wait say for whom, and the silent ones are to blame.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/transport.h"

namespace ds::comm {

class WaitingRanks {
 public:
  WaitingRanks(int rank, int size) : rank_(rank), answers_(static_cast<size_t>(size)) {}

  // This rank asks: what the others are sent. Answers to earlier questions no longer count.
  std::string ask(Clock::time_point until);
  bool asking() const { return asking_; }
  Clock::time_point until() const { return until_; }  // answers are waited for
  void stop_asking() { asking_ = false; }

  // A peer asked. Answers are given by a rank that waits, whenever it does.
  void hear_question(int peer, std::string_view bytes);
  bool asked() const { return !questions_.empty(); }
  // The answers that are due, with the peers they go to.
  std::vector<std::pair<int, std::string>> answer(std::span<const int> awaited);
  void hear_answer(int peer, std::string_view bytes);

  // Of the ranks that this one waits for, and those that they wait for in turn, the ones that did
  // not answer; all of `awaited` where each waits for another.
  std::vector<int> to_blame(std::span<const int> awaited) const;

 private:
  const int rank_;
  bool asking_ = false;
  uint64_t number_ = 0;  // of the last question
  Clock::time_point until_{};
  std::vector<std::optional<std::vector<int>>> answers_;  // by peer: whom it waits for
  std::vector<std::pair<int, uint64_t>> questions_;       // peer and number
};

}  // namespace ds::comm
