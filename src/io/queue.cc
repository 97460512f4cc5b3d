#include "io/queue.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

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

Queue::Queue(const QueueOptions& options) : options_(options), bounce_(options.block_bytes) {
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
  staged_.reserve(slots_.size());
  batch_.reserve(slots_.size());
  for (int i = options.depth; i > 0; --i) {
    free_slots_.push_back(static_cast<uint32_t>(i - 1));
    slots_[free_slots_.back()].piece.slot = free_slots_.back();
  }
  if (options.backend == BackendKind::kThreads) return;
  async_ = options.backend == BackendKind::kBest
               ? make_best_backend(options.depth)
               : make_async_backend(options.backend, options.depth);
  if (options.wrap && async_ != nullptr) async_ = options.wrap(std::move(async_));
}

Queue::~Queue() {
  for (Backend* backend : {async_.get(), threads_.get()}) {
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
  requests_.push_back({&file, write, !file.direct(), data, offset, static_cast<int64_t>(bytes), 0,
                       0, std::nullopt, 0, false});
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
  if (threads_ == nullptr) {
    threads_ = make_thread_backend(options_.threads, options_.depth);
    if (options_.wrap) threads_ = options_.wrap(std::move(threads_));
  }
  return *threads_;
}

void Queue::fail_request(Request& request, int64_t offset, Error error) {
  if (request.error && request.error_offset <= offset) return;
  request.error = std::move(error);
  request.error_offset = offset;
}

// Hands out blocks, oldest request first, while there are free slots.
void Queue::issue() {
  const bool busy = free_slots_.size() < slots_.size();
  if (busy && !options_.overlap) return submit_staged();
  for (; next_issue_ < first_ + requests_.size(); ++next_issue_) {
    const Request& next = request(next_issue_);
    while (next.issued < next.bytes && !next.error) {
      if (free_slots_.empty()) return submit_staged();
      issue_block(next_issue_);
      if (options_.single_submit) submit_staged();
    }
  }
  submit_staged();
}

void Queue::issue_block(Ticket ticket) {
  Request& r = request(ticket);
  const int64_t offset = r.offset + r.issued;
  int64_t bytes = std::min(options_.block_bytes, r.bytes - r.issued);
  // Past the cache go whole pages; what lies before and after them goes through it.
  const int64_t before = (kAlignment - offset % kAlignment) % kAlignment;
  if (!r.through_cache && before > 0) bytes = std::min(bytes, before);
  if (!r.through_cache && before == 0 && bytes >= kAlignment) bytes -= bytes % kAlignment;
  const bool direct = !r.through_cache && before == 0 && aligned(bytes);

  const uint32_t index = free_slots_.back();
  Slot& slot = slots_[index];
  slot.ticket = ticket;
  slot.target = r.data + r.issued;
  slot.target_bytes = static_cast<size_t>(bytes);
  slot.piece = {r.file->fd(), r.write, slot.target, slot.target_bytes, offset, index};
  if (direct && (aligned(slot.target, *r.file) || take_bounce(slot))) {
    slot.piece.fd = r.file->direct_fd();
  }
  free_slots_.pop_back();
  r.issued += bytes;
  r.blocks += 1;
  if (slot.piece.fd == r.file->direct_fd() && async_ != nullptr) {
    staged_.push_back(index);
  } else {
    give_to_threads(index);
  }
}

// Aligned memory for a block whose own is not; false where there is none.
bool Queue::take_bounce(Slot& slot) {
  try {
    slot.bounce = bounce_.take();
  } catch (const Error&) {
    return false;  // then it goes through the cache
  }
  slot.piece.data = slot.bounce.data();
  if (slot.piece.write) stream_copy(slot.piece.data, slot.target, slot.target_bytes);
  return true;
}

// Starts what is staged. What finds no room waits for a piece that is under way; what is refused
// goes through the cache, with the rest of its request.
void Queue::submit_staged() {
  while (!staged_.empty()) {
    batch_.clear();
    for (const uint32_t index : staged_) {
      batch_.push_back(&slots_[index].piece);
      if (options_.single_submit) break;
    }
    const Submitted submitted = async_->submit(batch_);
    for (size_t i = 0; i < submitted.count; ++i) slots_[staged_[i]].backend = async_.get();
    staged_.erase(staged_.begin(), staged_.begin() + static_cast<int64_t>(submitted.count));
    if (submitted.error == 0 || staged_.empty()) continue;
    if (submitted.error == EAGAIN && under_way(async_.get())) return;
    const uint32_t index = staged_.front();
    staged_.erase(staged_.begin());
    Slot& slot = slots_[index];
    Request& r = request(slot.ticket);
    if (refused(submitted.error) || submitted.error == EAGAIN) {
      slot.piece.fd = r.file->fd();
      r.through_cache = true;
      give_to_threads(index);
    } else {
      fail_request(r, slot.piece.offset, io_error(*r.file, slot.piece, submitted.error));
      end_block(index, false);
    }
  }
}

void Queue::give_to_threads(uint32_t index) {
  Slot& slot = slots_[index];
  Request& r = request(slot.ticket);
  const Piece* const piece = &slot.piece;
  try {
    const Submitted submitted = threads().submit({&piece, 1});
    if (submitted.count == 1) {
      slot.backend = &threads();
      return;
    }
    fail_request(r, piece->offset, io_error(*r.file, *piece, submitted.error));
  } catch (const std::bad_alloc&) {
    fail_request(r, piece->offset, Error(Code::kOutOfMemory, "no memory for file I/O"));
  }
  end_block(index, false);
}

bool Queue::under_way(const Backend* backend) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.backend == backend && slot.backend != nullptr;
  });
}

void Queue::complete(const Completion& completion) {
  Slot& slot = slots_[completion.slot];
  slot.backend = nullptr;
  const bool direct = slot.piece.fd == request(slot.ticket).file->direct_fd();
  if (!goes_on(slot, completion.result)) {
    end_block(completion.slot, slot.piece.bytes == 0);
  } else if (direct && slot.piece.fd == request(slot.ticket).file->direct_fd() &&
             async_ != nullptr) {
    staged_.push_back(completion.slot);
  } else {
    give_to_threads(completion.slot);
  }
}

// Takes in how a piece ended: leaves in it what is still to be moved, and says whether to try that.
bool Queue::goes_on(Slot& slot, int64_t n) {
  Request& r = request(slot.ticket);
  Piece& piece = slot.piece;
  const bool direct = piece.fd == r.file->direct_fd();
  if (n < 0 && direct && refused(static_cast<int>(-n))) {
    r.through_cache = true;  // the rest as well
    piece.fd = r.file->fd();
  } else if (n < 0 && n != -EAGAIN && n != -EINTR) {
    fail_request(r, piece.offset, io_error(*r.file, piece, static_cast<int>(-n)));
  } else if (n == 0 && piece.write) {
    fail_request(r, piece.offset, io_error(*r.file, piece, ENOSPC));
  } else if (n == 0) {
    fail_request(r, piece.offset,
                 Error(Code::kCorrupt, str_cat(printable(r.file->path().string(), 300),
                                               " ends at byte ", piece.offset, ", ", piece.bytes,
                                               " bytes short: the file is truncated")));
  } else if (n > 0) {
    piece.data += n;
    piece.bytes -= static_cast<size_t>(n);
    piece.offset += n;
    if (direct && (!aligned(n) || !aligned(static_cast<int64_t>(piece.bytes)))) {
      piece.fd = r.file->fd();
    }
  }
  // A failure further on does not hide one that comes first.
  return piece.bytes > 0 && !(r.error && r.error_offset <= piece.offset);
}

void Queue::end_block(uint32_t index, bool well) {
  Slot& slot = slots_[index];
  Request& r = request(slot.ticket);
  if (slot.bounce) {
    if (well && !r.write) stream_copy(slot.target, slot.bounce.data(), slot.target_bytes);
    bounce_.give(std::move(slot.bounce));
    slot.bounce = Buffer();
  }
  free_slots_.push_back(index);
  r.blocks -= 1;
}

void Queue::reap(Backend& backend, bool block) {
  const size_t n = backend.reap(block, completions_);
  for (size_t i = 0; i < n; ++i) complete(completions_[i]);
}

// Takes in what has ended and hands out what fits.
void Queue::poll() {
  if (async_ != nullptr && under_way(async_.get())) reap(*async_, false);
  if (threads_ != nullptr) reap(*threads_, false);
  issue();
}

void Queue::advance() {
  issue();
  for (Backend* backend : {async_.get(), threads_.get()}) {
    if (backend == nullptr || !under_way(backend)) continue;
    reap(*backend, true);
    break;
  }
  poll();
}

void Queue::cancel(Ticket ticket) {
  if (ticket < first_) return;
  for (size_t i = 0; i < staged_.size();) {
    const uint32_t index = staged_[i];
    if (slots_[index].ticket != ticket) {
      ++i;
      continue;
    }
    staged_.erase(staged_.begin() + static_cast<int64_t>(i));
    Request& r = request(ticket);
    if (!r.error) fail_request(r, -1, Error(Code::kAborted, "file I/O was cancelled"));
    end_block(index, false);
  }
  Request& r = request(ticket);
  if (!r.ended()) fail_request(r, -1, Error(Code::kAborted, "file I/O was cancelled"));
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
    auto busy = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
      return slot.backend != nullptr && slot.ticket == ticket;
    });
    if (busy == slots_.end()) {
      busy = std::find_if(slots_.begin(), slots_.end(),
                          [](const Slot& slot) { return slot.backend != nullptr; });
    }
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
