#include "io/queue.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/file.h"
#include "io/buffer.h"

namespace ds::io {
namespace {

bool aligned(int64_t value) { return value % kAlignment == 0; }
bool aligned(const std::byte* data, const File& file) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(file.memory_alignment()) == 0;
}

Error io_error(const File& file, const Piece& piece, int error) {
  return errno_error(piece.write ? "cannot write" : "cannot read", file.path(), error,
                     str_cat(" (", piece.bytes, " bytes at ", piece.offset, ")"));
}

// What a file system answers that does not do this kind of I/O on this file.
bool refused(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS || error == EPERM;
}

}  // namespace

Queue::Queue(const QueueOptions& options) : options_(options) {
  DS_CHECK(options.depth >= 1 && options.depth <= 4096, Code::kInvalidArgument,
           "an I/O queue depth of ", options.depth, "; 1 to 4096 are possible");
  constexpr int64_t kMostBlock = int64_t{1} << 30;
  DS_CHECK(options.block_bytes >= kAlignment && options.block_bytes <= kMostBlock &&
               aligned(options.block_bytes),
           Code::kInvalidArgument, "an I/O block of ", options.block_bytes,
           " bytes; a multiple of ", kAlignment, " up to ", kMostBlock, " is needed");
  DS_CHECK(options.threads >= 1 && options.threads <= 256, Code::kInvalidArgument, options.threads,
           " I/O threads; 1 to 256 are possible");
  slots_.resize(static_cast<size_t>(options.depth));
  completions_.resize(slots_.size());
  for (int i = options.depth; i > 0; --i) free_slots_.push_back(static_cast<uint32_t>(i - 1));
  if (options.uring) uring_ = make_uring(options.depth);
}

Queue::~Queue() {
  for (Backend* backend : {uring_.get(), threads_.get()}) {
    const auto mine = [&](const Slot& slot) { return slot.backend == backend; };
    auto left = backend == nullptr ? 0 : std::count_if(slots_.begin(), slots_.end(), mine);
    while (left > 0) left -= static_cast<int64_t>(backend->reap(true, completions_));
  }
}

Queue::Ticket Queue::read(const File& file, int64_t offset, std::span<std::byte> out) {
  return add(file, false, offset, out.data(), out.size());
}

Queue::Ticket Queue::write(const File& file, int64_t offset, std::span<const std::byte> bytes) {
  return add(file, true, offset, const_cast<std::byte*>(bytes.data()), bytes.size());
}

Queue::Ticket Queue::add(const File& file, bool write, int64_t offset, std::byte* data,
                         size_t bytes) {
  DS_CHECK(offset >= 0, Code::kInvalidArgument, "file I/O at the negative offset ", offset);
  forget_ended();
  const bool through_cache = !file.direct() || !aligned(offset) || !aligned(data, file);
  requests_.push_back({&file, write, through_cache, data, offset, static_cast<int64_t>(bytes), 0, 0,
                       std::nullopt, 0, false});
  poll();
  return first_ + requests_.size() - 1;
}

void Queue::forget_ended() {
  while (!requests_.empty() && first_ < next_issue_ && requests_.front().ended() &&
         (!requests_.front().error || requests_.front().told)) {
    requests_.pop_front();
    ++first_;
  }
}

Backend& Queue::threads() {
  if (threads_ == nullptr) threads_ = make_thread_backend(options_.threads);
  return *threads_;
}

void Queue::fail_request(Request& request, int64_t offset, Error error) {
  if (request.error && request.error_offset <= offset) return;
  request.error = std::move(error);
  request.error_offset = offset;
}

// Hands out blocks, oldest request first, while there are free slots.
void Queue::issue() {
  for (; next_issue_ < first_ + requests_.size(); ++next_issue_) {
    const Request& next = request(next_issue_);
    while (next.issued < next.bytes && !next.error) {
      if (free_slots_.empty()) return;
      if (!issue_block(next_issue_) && !next.error) return;
    }
  }
}

bool Queue::issue_block(Ticket ticket) {
  Request& r = request(ticket);
  int64_t bytes = std::min(options_.block_bytes, r.bytes - r.issued);
  Slot& slot = slots_[free_slots_.back()];
  slot.ticket = ticket;
  // Past the cache go multiples of the alignment; a shorter end follows through it.
  if (!r.through_cache && bytes >= kAlignment) bytes -= bytes % kAlignment;
  const bool direct = !r.through_cache && aligned(bytes);
  slot.piece = {direct ? r.file->direct_fd() : r.file->fd(), r.write, r.data + r.issued,
                static_cast<size_t>(bytes), r.offset + r.issued};
  slot.backend = direct && uring_ != nullptr ? uring_.get() : &threads();
  if (!start(free_slots_.back())) return false;
  free_slots_.pop_back();
  r.issued += bytes;
  r.blocks += 1;
  return true;
}

// Gives a slot's piece to its backend; false when that is full and something is under way that will
// make room. A request whose piece cannot be started at all fails.
bool Queue::start(uint32_t index) {
  Slot& slot = slots_[index];
  Request& r = request(slot.ticket);
  int error = slot.backend->submit(slot.piece, index);
  if (error == 0) return true;
  const bool busy = free_slots_.size() < slots_.size();
  if (error == EAGAIN && busy && slot.backend == uring_.get()) {
    slot.backend = nullptr;
    return false;
  }
  if (slot.backend == uring_.get() && (refused(error) || error == EAGAIN)) {
    slot.backend = &threads();
    slot.piece.fd = r.file->fd();
    r.through_cache = true;
    error = slot.backend->submit(slot.piece, index);
    if (error == 0) return true;
  }
  slot.backend = nullptr;
  fail_request(r, slot.piece.offset, io_error(*r.file, slot.piece, error));
  return false;
}

void Queue::complete(const Completion& completion) {
  Slot& slot = slots_[completion.slot];
  Request& r = request(slot.ticket);
  Piece& piece = slot.piece;
  const bool direct = piece.fd == r.file->direct_fd();
  const int64_t n = completion.result;
  bool again = false;
  if (n == -EAGAIN || n == -EINTR) {
    again = true;
  } else if (n < 0 && direct && refused(static_cast<int>(-n))) {
    r.through_cache = true;  // the rest as well
    piece.fd = r.file->fd();
    slot.backend = &threads();
    again = true;
  } else if (n < 0) {
    fail_request(r, piece.offset, io_error(*r.file, piece, static_cast<int>(-n)));
  } else if (n == 0 && piece.write) {
    fail_request(r, piece.offset, io_error(*r.file, piece, ENOSPC));
  } else if (n == 0) {
    fail_request(r, piece.offset,
                 Error(Code::kCorrupt, str_cat(printable(r.file->path().string(), 300),
                                               " ends at byte ", piece.offset, ", ", piece.bytes,
                                               " bytes short: the file is truncated")));
  } else if (n < static_cast<int64_t>(piece.bytes)) {
    piece.data += n;
    piece.bytes -= static_cast<size_t>(n);
    piece.offset += n;
    if (direct && (!aligned(n) || !aligned(static_cast<int64_t>(piece.bytes)))) {
      piece.fd = r.file->fd();
      slot.backend = &threads();
    }
    again = true;
  }
  // A failure further on does not hide one that comes first.
  if (again && !(r.error && r.error_offset < piece.offset)) {
    int error = slot.backend->submit(piece, completion.slot);
    if (error != 0 && slot.backend == uring_.get()) {
      piece.fd = r.file->fd();
      slot.backend = &threads();
      error = slot.backend->submit(piece, completion.slot);
    }
    if (error == 0) return;
    fail_request(r, piece.offset, io_error(*r.file, piece, error));
  }
  slot.backend = nullptr;
  free_slots_.push_back(completion.slot);
  r.blocks -= 1;
}

void Queue::reap(Backend& backend, bool block) {
  const size_t n = backend.reap(block, completions_);
  for (size_t i = 0; i < n; ++i) complete(completions_[i]);
}

// Takes in what has ended and hands out what fits.
void Queue::poll() {
  if (uring_ != nullptr && free_slots_.size() < slots_.size()) reap(*uring_, false);
  if (threads_ != nullptr) reap(*threads_, false);
  issue();
}

bool Queue::done(Ticket ticket) {
  if (ticket < first_) return true;
  poll();
  return request(ticket).ended();
}

void Queue::wait(Ticket ticket) {
  DS_CHECK(ticket < first_ + requests_.size(), Code::kInvalidArgument,
           "waiting for I/O that was never asked for");
  if (ticket < first_) return;
  for (;;) {
    issue();
    Request& r = request(ticket);
    if (r.ended()) {
      const bool tell = r.error && !r.told;
      r.told = true;
      if (tell) throw Error(*r.error);
      return;
    }
    // Something is under way: a block of this request, or one that keeps it from its slots.
    const auto busy = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
      return slot.backend != nullptr && (r.blocks == 0 || slot.ticket == ticket);
    });
    DS_CHECK(busy != slots_.end(), Code::kInternal, "an I/O queue has lost a request");
    reap(*busy->backend, true);
    poll();
  }
}

void Queue::wait_all() {
  std::optional<Error> first;
  for (Ticket ticket = first_; ticket < first_ + requests_.size(); ++ticket) {
    try {
      wait(ticket);
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  forget_ended();
  if (first) throw Error(*first);
}

}  // namespace ds::io
