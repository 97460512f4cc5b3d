#include "io/file_array.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

#include "base/text.h"

namespace ds::io {
namespace {

int64_t round_down(int64_t n) { return n / kAlignment * kAlignment; }
int64_t round_up(int64_t n) { return round_down(n + kAlignment - 1); }

// Memory that goes back to the spare with its last use. Both outlive it: the spare, and the device
// whose account counts it.
struct Lent {
  std::shared_ptr<Device> device;
  std::shared_ptr<SpareMemory<Buffer>> spare;
  int64_t bytes = 0;
  Buffer buffer = {};

  Lent(std::shared_ptr<Device> on, std::shared_ptr<SpareMemory<Buffer>> from, int64_t size)
      : device(std::move(on)), spare(std::move(from)), bytes(size) {}
  ~Lent() {
    if (buffer) spare->give(std::move(buffer), bytes);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
};

}  // namespace

// ---- what arrays share ----

FileArrays::FileArrays(const FileArrayOptions& options, std::shared_ptr<Device> device)
    : options_(options),
      device_(std::move(device)),
      spare_(std::make_shared<SpareMemory<Buffer>>(round_up(options.part_bytes))),
      engine_({options.queue, options.parallelism}) {
  std::error_code error;
  DS_CHECK(std::filesystem::is_directory(options_.folder, error), Code::kIo,
           "state in files: ", printable(options_.folder.string(), 300),
           " is no folder; make it, or name another",
           options_.setting.empty() ? "" : str_cat(" (", options_.setting, ")"));
}

std::shared_ptr<Storage> FileArrays::memory(int64_t bytes, int64_t shift) {
  const int64_t wanted = round_up(shift + bytes);
  const auto lent = std::make_shared<Lent>(device_, spare_, wanted);
  try {
    lent->buffer =
        spare_->take(wanted, [this](int64_t size) { return Buffer(size, &device_->account()); });
  } catch (const Error& error) {
    if (error.code() != Code::kOutOfMemory) throw;
    fail_out_of_memory(*device_, "the CPU", wanted, MemoryTag::kIo, 0);
  }
  std::byte* const data = lent->buffer.data() + shift;
  return std::make_shared<Storage>(DeviceKind::kCpu, 0, data, bytes, false, [lent] {});
}

std::shared_ptr<ArrayStore> FileArrays::make(std::string_view name, DType dtype, int64_t elements) {
  // Of this thread alone, where the file has that name for a moment.
  const std::filesystem::path path = options_.folder / str_cat("ds-", ::getpid(), "-", ::gettid(),
                                                               "-", ++made_, "-", name, ".state");
  const int64_t bytes = round_up(elements * dtype_size(dtype));
  try {
    File file = File::unnamed(path);
    file.reserve(0, bytes);
    if (file.size() < bytes) {  // a file system that makes no room ahead
      constexpr std::byte kZero{0};
      file.write_at(bytes - 1, {&kZero, 1});
    }
    return std::make_shared<FileArray>(shared_from_this(), std::move(file), dtype, elements);
  } catch (const Error& error) {
    if (error.code() != Code::kIo) throw;
    throw Error(error.code(), str_cat("state in files: ", elements, " ", dtype_name(dtype), " of ",
                                      name, ": ", error.message()));
  }
}

// ---- one array ----

FileArray::FileArray(std::shared_ptr<FileArrays> owner, File file, DType dtype, int64_t elements)
    : ArrayStore(dtype, elements), owner_(std::move(owner)), file_(std::move(file)) {}

FileArray::~FileArray() {
  end_quietly(fetched_);
  end_quietly(writes_);
}

// Their memory is free when nothing of them is under way.
void FileArray::end_quietly(std::list<Transfer>& transfers) noexcept {
  for (Transfer& transfer : transfers) {
    try {
      finish(transfer);
    } catch (const std::exception&) {
      // Nobody reads what came of it.
    }
  }
  transfers.clear();
}

// Nobody has asked for its numbers, so that a read that failed is no error: who maps the range
// reads it anew.
void FileArray::forget_fetched(std::list<Transfer>::iterator transfer) noexcept {
  std::list<Transfer> one;
  one.splice(one.begin(), fetched_, transfer);
  end_quietly(one);
}

int64_t FileArray::part_elements() const {
  return std::max<int64_t>(1, owner_->options().part_bytes / item());
}

// The range in the middle of whole pages; what lies before it in the first page is not its own.
Tensor FileArray::memory_for(int64_t begin, int64_t end) {
  const int64_t shift = begin * item() % kAlignment;
  return {owner_->memory((end - begin) * item(), shift), 0, dtype(), {end - begin}};
}

FileArray::Transfer FileArray::start_read(int64_t begin, int64_t end) {
  Transfer transfer{begin, end, memory_for(begin, end)};
  const int64_t from = round_down(begin * item()), to = round_up(end * item());
  std::byte* const data = static_cast<std::byte*>(transfer.memory.raw()) - (begin * item() - from);
  transfer.ticket = owner_->engine().read(file_, from, {data, static_cast<size_t>(to - from)});
  return transfer;
}

void FileArray::finish(Transfer& transfer) {
  const Engine::Ticket ticket = std::exchange(transfer.ticket, 0);
  if (ticket != 0) owner_->engine().wait(ticket);
}

void FileArray::prefetch(int64_t begin, int64_t end) {
  if (!owner_->options().read_ahead || begin == end) return;
  for (const Transfer& there : fetched_) {
    if (there.begin == begin && there.end == end) return;
  }
  finish_writes_of(begin, end);
  if (fetched_.size() >= owner_->options().ranges_ahead) forget_fetched(fetched_.begin());
  fetched_.push_back(start_read(begin, end));
}

Tensor FileArray::open(int64_t begin, int64_t end, ds::Access access) {
  finish_writes_of(begin, end);
  if (access == ds::Access::kWrite) return memory_for(begin, end);
  check_not_lost(begin, end);
  const auto there = std::find_if(fetched_.begin(), fetched_.end(), [&](const Transfer& one) {
    return one.begin == begin && one.end == end;
  });
  Transfer read = there != fetched_.end() ? std::move(*there) : start_read(begin, end);
  if (there != fetched_.end()) fetched_.erase(there);
  finish(read);
  return std::move(read.memory);
}

void FileArray::write_back(Tensor memory, int64_t begin) {
  const int64_t end = begin + memory.elements();
  // What was fetched of the range is not what it holds now.
  for (auto it = fetched_.begin(); it != fetched_.end();) {
    const auto next = std::next(it);
    if (it->overlaps(begin, end)) forget_fetched(it);
    it = next;
  }
  while (writes_.size() >= owner_->options().ranges_behind) finish_write();
  // Neighbours own the rest of the first and last page: those parts go through the page cache.
  const auto* const data = static_cast<const std::byte*>(memory.raw());
  const auto bytes = static_cast<size_t>(memory.bytes());
  writes_.push_back({begin, end, memory});
  try {
    writes_.back().ticket = owner_->engine().write(file_, begin * item(), {data, bytes});
  } catch (...) {
    writes_.pop_back();
    throw;
  }
  forget_lost(begin, end);
  if (!owner_->options().write_behind) finish_write();
}

void FileArray::drop(Tensor memory) noexcept { memory = {}; }

void FileArray::finish_write() {
  Transfer oldest = std::move(writes_.front());
  writes_.pop_front();
  try {
    finish(oldest);
  } catch (const Error& error) {
    lost_.push_back({oldest.begin, oldest.end, error});
    throw;
  }
}

void FileArray::finish_writes_of(int64_t begin, int64_t end) {
  while (std::any_of(writes_.begin(), writes_.end(),
                     [&](const Transfer& write) { return write.overlaps(begin, end); })) {
    finish_write();
  }
}

void FileArray::flush() {
  std::optional<Error> first;
  while (!writes_.empty()) {
    try {
      finish_write();
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  owner_->rest();
  if (first) throw Error(*first);
}

void FileArray::check_not_lost(int64_t begin, int64_t end) const {
  for (const Lost& lost : lost_) {
    if (begin < lost.end && lost.begin < end) {
      throw Error(lost.why.code(),
                  str_cat("elements ", lost.begin, " to ", lost.end,
                          " were not written, and what they are is not known: load a checkpoint (",
                          lost.why.message(), ")"));
    }
  }
}

// A range that is written anew is known again.
void FileArray::forget_lost(int64_t begin, int64_t end) {
  std::vector<Lost> left;
  for (const Lost& lost : lost_) {
    if (lost.begin < begin) left.push_back({lost.begin, std::min(lost.end, begin), lost.why});
    if (end < lost.end) left.push_back({std::max(lost.begin, end), lost.end, lost.why});
  }
  lost_ = std::move(left);
}

}  // namespace ds::io
