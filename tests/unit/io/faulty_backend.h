// Backends that tests make fail: pieces that end with an errno, move fewer bytes than they should,
// are held back, or move other bytes than they were given.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "io/queue.h"

namespace ds::io::test {

// What goes wrong, shared by all backends of a queue or an engine. Piece and submission numbers
// count from 0, over all of them.
struct Faults {
  std::atomic<int64_t> fail_piece{-1};  // the number of the piece that ends with `error`
  std::atomic<int> error{EIO};
  std::atomic<int64_t> fail_submission{-1};  // the number of the submission that ends with `error`
  std::atomic<size_t> most_bytes{0};         // that a piece moves; 0: no limit
  std::atomic<bool> flip_writes{false};      // the first byte that a piece writes is another one

  std::atomic<int64_t> pieces{0}, submissions{0};
};

class FaultyBackend final : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)), given_(4096), copies_(4096) {}

  BackendKind kind() const override { return inner_->kind(); }

  Submitted submit(std::span<const Piece* const> pieces) override {
    if (faults_->submissions++ == faults_->fail_submission) return {0, faults_->error};
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (faults_->pieces++ == faults_->fail_piece) {
        ended_.push_back({pieces[i]->slot, -faults_->error});
        continue;
      }
      Piece& piece = given_[pieces[i]->slot] = *pieces[i];
      if (faults_->most_bytes > 0) piece.bytes = std::min(piece.bytes, faults_->most_bytes.load());
      if (faults_->flip_writes && piece.write) {
        Buffer& copy = copies_[piece.slot] = Buffer(static_cast<int64_t>(piece.bytes));
        std::memcpy(copy.data(), piece.data, piece.bytes);
        copy.data()[0] ^= std::byte{1};
        piece.data = copy.data();
      }
      const Piece* const one = &piece;
      const Submitted inner = inner_->submit({&one, 1});
      if (inner.count == 0) return {i, inner.error};
      ++inner_pieces_;
    }
    return {pieces.size(), 0};
  }

  size_t reap(bool block, std::span<Completion> out) override {
    size_t n = 0;
    for (; n < out.size() && !ended_.empty(); ended_.pop_front()) out[n++] = ended_.front();
    if (n > 0 || inner_pieces_ == 0) return n;
    n = inner_->reap(block, out);
    inner_pieces_ -= n;
    return n;
  }

 private:
  const std::unique_ptr<Backend> inner_;
  const std::shared_ptr<Faults> faults_;
  std::deque<Completion> ended_;
  size_t inner_pieces_ = 0;
  std::vector<Piece> given_;    // by slot
  std::vector<Buffer> copies_;  // by slot
};

inline auto faulty(const std::shared_ptr<Faults>& faults) {
  return [faults](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
    return std::make_unique<FaultyBackend>(std::move(inner), faults);
  };
}

// Holds writes back until it is opened.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    opened_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }
  bool is_open() {
    const std::lock_guard lock(mutex_);
    return open_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

class GatedBackend final : public Backend {
 public:
  GatedBackend(std::unique_ptr<Backend> inner, std::shared_ptr<Gate> gate)
      : inner_(std::move(inner)), gate_(std::move(gate)) {}
  BackendKind kind() const override { return inner_->kind(); }
  Submitted submit(std::span<const Piece* const> pieces) override {
    for (const Piece* const piece : pieces) writes_ = writes_ || piece->write;
    return inner_->submit(pieces);
  }
  // What has been written is not known before the gate is open.
  size_t reap(bool block, std::span<Completion> out) override {
    if (writes_ && !gate_->is_open()) {
      if (!block) return 0;
      gate_->pass();
    }
    return inner_->reap(block, out);
  }

 private:
  const std::unique_ptr<Backend> inner_;
  const std::shared_ptr<Gate> gate_;
  bool writes_ = false;
};

inline auto gated(const std::shared_ptr<Gate>& gate) {
  return [gate](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
    return std::make_unique<GatedBackend>(std::move(inner), gate);
  };
}

}  // namespace ds::io::test
