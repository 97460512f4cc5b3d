// Waits over shared memory: their deadlines, and who is to blame.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <tuple>

#include "comm/shm/shm_transport.h"

namespace ds::comm {
namespace {

// How long a sleeper sleeps before it looks for lost peers.
constexpr std::chrono::milliseconds kSlice{10};

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}

std::string seconds_text(int64_t ms) {
  const int64_t hundredths = ms / 10;
  return str_cat(format_number(static_cast<double>(hundredths) / 100), " s");
}

}  // namespace

void ShmTransport::sync(const Watch& watch) {
  ++step_;
  RankControl& self = control_.of(rank());
  self.step.store(step_);  // sequentially consistent, as the look at the sleepers
  if (self.sleepers.load() != 0) futex_wake(self.step);
  for (int peer = 0; peer < size(); ++peer) {
    if (!reached(peer, step_)) await_step(peer, step_, watch);
  }
}

void ShmTransport::await_step(int peer, uint32_t target, const Watch& watch) {
  if (spin_wait_.wait([&] { return reached(peer, target); })) return;
  RankControl& control = control_.of(peer);
  while (true) {
    control.sleepers.fetch_add(1);
    const uint32_t seen = control.step.load();
    if (static_cast<int32_t>(seen - target) < 0 &&
        control_.header().raised.load() != ControlHeader::kYes) {
      futex_wait(control.step, seen, kSlice);
    }
    control.sleepers.fetch_sub(1);
    if (reached(peer, target)) return;
    watch.slept();
    check_peers(std::span(&peer, 1), watch, target, false);
  }
}

bool ShmTransport::process_ended(int rank) {
  const int file = process_files_[static_cast<size_t>(rank)];
  if (file >= 0) {
    pollfd entry{.fd = file, .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0;
  }
  const int32_t process = control_.of(rank).process.load();
  return process != static_cast<int32_t>(::getpid()) && ::kill(process, 0) != 0 && errno == ESRCH;
}

void ShmTransport::check_peers(std::span<const int> peers, const Watch& watch, uint32_t target,
                               bool streams) {
  check_raised();
  // A collective needs every rank, whomever this one waits for.
  std::vector<int> awaited(peers.begin(), peers.end());
  if (!streams) {
    awaited.clear();
    for (int peer = 0; peer < size(); ++peer) {
      if (!reached(peer, target)) awaited.push_back(peer);
    }
    if (awaited.empty()) return;  // the last one came just now, be it at the deadline
  }
  for (const int peer : awaited) {
    const bool ended = process_ended(peer), left = control_.of(peer).left.load() != 0;
    if (!ended && !left) continue;
    if (!streams && reached(peer, target)) continue;  // its last deed
    check_raised();                                   // it may have said why
    fail(Code::kComm, watch.what(), ": rank ", name_of(peer), " ",
         ended ? str_cat("(process ", control_.of(peer).process.load(), ") has ended")
               : "has left the group: its communicator is gone",
         "; ", rank_states());
  }
  for (int& peer : awaited) peer = name_of(peer);
  if (watch.beside != nullptr) watch.beside->hear_peers(awaited);
  if (Clock::now() >= watch.end()) {
    fail(Code::kComm, watch.what(), ": ", rank_list(awaited), " did not arrive within ",
         seconds_text(watch.allowed.count()), "; ", rank_states());
  }
}

void ShmTransport::wait_for_streams(std::span<const int> peers, const Watch& watch) {
  RankControl& self = control_.of(rank());
  const auto rung = [&] { return self.bell.load() != bell_seen_; };
  if (!spin_wait_.wait(rung)) {
    self.bell_sleepers.fetch_add(1);
    if (!rung()) futex_wait(self.bell, bell_seen_, kSlice);
    self.bell_sleepers.fetch_sub(1);
    watch.slept();
  }
  if (rung()) {
    bell_seen_ = self.bell.load();
  } else {
    check_peers(peers, watch, 0, true);
  }
}

void ShmTransport::announce(const Record& record, bool busy) noexcept {
  Note& note = control_.of(rank()).note;
  uint64_t words[std::tuple_size_v<decltype(note.record)>];
  std::memcpy(words, &record, sizeof(words));
  for (size_t i = 0; i < note.record.size(); ++i) {
    note.record[i].store(words[i], std::memory_order_relaxed);
  }
  note.since_ms.store(now_ms(), std::memory_order_relaxed);
  note.busy.store(busy ? 1 : 0, std::memory_order_relaxed);
}

std::string ShmTransport::rank_states() const {
  std::vector<std::string> parts;
  constexpr int kMost = 16;
  for (int peer = 0; peer < size() && peer < kMost; ++peer) {
    const Note& note = control_.of(peer).note;
    uint64_t words[std::tuple_size_v<decltype(note.record)>];
    for (size_t i = 0; i < note.record.size(); ++i) {
      words[i] = note.record[i].load(std::memory_order_relaxed);
    }
    Record record;
    std::memcpy(&record, words, sizeof(record));
    const std::string since =
        seconds_text(now_ms() - note.since_ms.load(std::memory_order_relaxed));
    const std::string what = str_cat("operation ", record.sequence, ", ", describe(record));
    if (note.busy.load(std::memory_order_relaxed) != 0) {
      parts.push_back(str_cat("rank ", name_of(peer), " has been in ", what, ", for ", since));
    } else if (record.sequence == 0) {
      parts.push_back(str_cat("rank ", name_of(peer), " has called nothing for ", since));
    } else {
      parts.push_back(
          str_cat("rank ", name_of(peer), " has called nothing for ", since, " since ", what));
    }
  }
  if (size() > kMost) parts.push_back(str_cat("and ", size() - kMost, " more ranks"));
  return join(parts, "; ");
}

}  // namespace ds::comm
