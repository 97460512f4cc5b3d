// Arrays of numbers in files: ranges are read ahead of their use and written behind it, past the
// page cache where the file system allows that, so that memory holds what is mapped, fetched and on
// its way, and no more.
//
// The files have no names, so that nothing of them is left when the process ends, however it ends.
#pragma once

#include <deque>
#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/buffer.h"
#include "io/engine.h"
#include "io/file.h"
#include "io/spare_memory.h"
#include "tensor/array_store.h"

namespace ds::io {

struct FileArrayOptions {
  std::filesystem::path folder;
  std::string setting = "";  // that names it, for messages
  // What is best mapped at a time, in bytes. Memory of at most that size is kept for the next range
  // until what was written rests, and so much of it from then on.
  int64_t part_bytes = int64_t{4} << 20;
  int64_t kept_bytes = 0;
  bool read_ahead = true;  // else prefetch() does nothing
  // Ranges of an array that were asked for and not mapped yet; more push the oldest out.
  size_t ranges_ahead = 2;
  bool write_behind = true;  // else a lease that is closed waits for its write
  // Ranges of an array that are being written while others are worked on, at least 1; the next one
  // waits for the oldest.
  size_t ranges_behind = 1;
  QueueOptions queue;
  int parallelism = 1;  // queues of each direction
};

// What the arrays of one owner share, which one thread at a time uses: what carries their reads and
// writes, and memory for them, which is counted under kIo of `device`, the CPU.
class FileArrays : public std::enable_shared_from_this<FileArrays> {
 public:
  // Throws where the folder is not there or nothing can be written in it.
  FileArrays(const FileArrayOptions& options, std::shared_ptr<Device> device);

  // An array of zeros in a file of its own. `name` is for messages. kIo where the disk has no room.
  std::shared_ptr<ArrayStore> make(std::string_view name, DType dtype, int64_t elements);

  const FileArrayOptions& options() const { return options_; }
  Engine& engine() { return engine_; }
  // Memory of so many bytes for a tensor, which goes back to the pool with its last use. It begins
  // `shift` bytes behind an address that suits the device.
  std::shared_ptr<Storage> memory(int64_t bytes, int64_t shift);
  // Nothing will be mapped for a while: memory that is kept is freed, but for `kept_bytes`.
  void rest() noexcept { spare_->clear(options_.kept_bytes); }

 private:
  const FileArrayOptions options_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<SpareMemory<Buffer>> spare_;
  int64_t made_ = 0;
  Engine engine_;  // last: it waits for what is under way
};

class FileArray final : public ArrayStore {
 public:
  // Of a file that is open, is as long as the array and whole pages, and holds zeros.
  FileArray(std::shared_ptr<FileArrays> owner, File file, DType dtype, int64_t elements);
  ~FileArray() override;

  int64_t part_elements() const override;
  void prefetch(int64_t begin, int64_t end) override;
  void flush() override;

 protected:
  Tensor open(int64_t begin, int64_t end, ds::Access access) override;
  void write_back(Tensor memory, int64_t begin) override;
  void drop(Tensor memory) noexcept override;

 private:
  // A range whose memory is being read into, or written from.
  struct Transfer {
    int64_t begin, end;
    Tensor memory;
    Engine::Ticket ticket = 0;  // 0: nothing is under way
    bool overlaps(int64_t first, int64_t last) const { return first < end && begin < last; }
  };
  // A range whose write failed: what it holds is not known.
  struct Lost {
    int64_t begin, end;
    Error why;
  };

  int64_t item() const { return dtype_size(dtype()); }
  Transfer start_read(int64_t begin, int64_t end);
  Tensor memory_for(int64_t begin, int64_t end);
  // Waits for a transfer and throws its error.
  void finish(Transfer& transfer);
  void finish_write();  // the oldest
  void finish_writes_of(int64_t begin, int64_t end);
  void check_not_lost(int64_t begin, int64_t end) const;
  void forget_lost(int64_t begin, int64_t end);
  void end_quietly(std::list<Transfer>& transfers) noexcept;
  void forget_fetched(std::list<Transfer>::iterator transfer) noexcept;

  const std::shared_ptr<FileArrays> owner_;
  const File file_;
  std::list<Transfer> fetched_;  // asked for by prefetch
  std::list<Transfer> writes_;   // oldest first
  std::vector<Lost> lost_;
};

}  // namespace ds::io
