#include "device/upload_queue.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace ds {
namespace {

constexpr int64_t kPiece = int64_t{4} << 20;  // bytes that travel at a time
constexpr int64_t kMost = 4 * kPiece;         // that are on their way together

template <class Wait>
void wait_quietly(const Wait& wait) noexcept {
  try {
    wait();
  } catch (const Error&) {  // whoever uses the GPU next gets it too
  }
}

}  // namespace

UploadQueue::~UploadQueue() {
  for (const Piece& piece : under_way_) {
    wait_quietly([&] { piece.copied->synchronize(); });
    give_back(piece);
  }
}

void UploadQueue::upload(void* target, const void* source, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (int64_t at = 0; at < bytes; at += kPiece) {
    send(static_cast<std::byte*>(target) + at, static_cast<const std::byte*>(source) + at,
         std::min(kPiece, bytes - at));
  }
}

void UploadQueue::release_arrived() noexcept {
  const std::lock_guard lock(mutex_);
  wait_quietly([&] { drop_arrived(); });
}

void UploadQueue::send(void* target, const void* source, int64_t bytes) {
  make_room(bytes);
  Piece& piece = under_way_.emplace_back(Piece{.bytes = bytes});
  try {
    piece.memory = pinned_.allocate(bytes, MemoryTag::kIo);
    std::memcpy(piece.memory, source, static_cast<size_t>(bytes));
    Stream& stream = gpu_.default_stream();
    gpu_.copy(target, piece.memory, bytes, stream);
    piece.copied = stream.record();
  } catch (...) {
    if (piece.memory != nullptr) {  // the copy may have been queued
      wait_quietly([&] { gpu_.default_stream().synchronize(); });
      give_back(piece);
    }
    under_way_.pop_back();
    throw;
  }
  bytes_ += bytes;
}

void UploadQueue::make_room(int64_t bytes) {
  drop_arrived();
  while (!under_way_.empty() && bytes_ + bytes > kMost) {
    under_way_.front().copied->synchronize();
    drop_arrived();
  }
}

// What follows the first piece that has not arrived has not either.
void UploadQueue::drop_arrived() {
  while (!under_way_.empty() && under_way_.front().copied->ready()) {
    bytes_ -= under_way_.front().bytes;
    give_back(under_way_.front());
    under_way_.pop_front();
  }
}

void UploadQueue::give_back(const Piece& piece) noexcept {
  pinned_.deallocate(piece.memory, piece.bytes, MemoryTag::kIo);
}

}  // namespace ds
