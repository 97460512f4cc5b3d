#include "comm/waiting_ranks.h"

#include <algorithm>
#include <cstring>

namespace ds::comm {

std::string WaitingRanks::ask(Clock::time_point until) {
  asking_ = true;
  until_ = until;
  ++number_;
  for (auto& answer : answers_) answer.reset();
  return {reinterpret_cast<const char*>(&number_), sizeof(number_)};
}

void WaitingRanks::hear_question(int peer, std::string_view bytes) {
  uint64_t number = 0;
  if (bytes.size() != sizeof(number)) return;
  std::memcpy(&number, bytes.data(), sizeof(number));
  std::erase_if(questions_, [&](const auto& question) { return question.first == peer; });
  questions_.emplace_back(peer, number);
}

// An answer is the number of its question and a bit for each rank.
std::vector<std::pair<int, std::string>> WaitingRanks::answer(std::span<const int> awaited) {
  std::string bits((answers_.size() + 7) / 8, '\0');
  for (const int peer : awaited) {
    char& byte = bits[static_cast<size_t>(peer) / 8];
    byte = static_cast<char>(byte | (1 << (peer % 8)));
  }
  std::vector<std::pair<int, std::string>> due;
  for (const auto& [peer, number] : std::exchange(questions_, {})) {
    std::string bytes(reinterpret_cast<const char*>(&number), sizeof(number));
    due.emplace_back(peer, bytes + bits);
  }
  return due;
}

void WaitingRanks::hear_answer(int peer, std::string_view bytes) {
  uint64_t number = 0;
  if (bytes.size() != sizeof(number) + (answers_.size() + 7) / 8) return;
  std::memcpy(&number, bytes.data(), sizeof(number));
  if (number != number_) return;
  std::vector<int> awaited;
  for (size_t i = 0; i < answers_.size(); ++i) {
    if ((bytes[sizeof(number) + i / 8] >> (i % 8) & 1) != 0) {
      awaited.push_back(static_cast<int>(i));
    }
  }
  answers_[static_cast<size_t>(peer)] = std::move(awaited);
}

std::vector<int> WaitingRanks::to_blame(std::span<const int> awaited) const {
  std::vector<int> reached(awaited.begin(), awaited.end()), silent;
  std::vector<char> seen(answers_.size());
  for (const int peer : awaited) seen[static_cast<size_t>(peer)] = 1;
  for (size_t i = 0; i < reached.size(); ++i) {
    const int peer = reached[i];
    if (peer == rank_) continue;
    const auto& answer = answers_[static_cast<size_t>(peer)];
    if (!answer) {
      silent.push_back(peer);
      continue;
    }
    for (const int next : *answer) {
      if (!std::exchange(seen[static_cast<size_t>(next)], 1)) reached.push_back(next);
    }
  }
  if (silent.empty()) silent.assign(awaited.begin(), awaited.end());
  std::ranges::sort(silent);
  return silent;
}

}  // namespace ds::comm
