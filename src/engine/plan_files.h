// What arrays in files take of memory while ranges of them are mapped, for the plan.
#pragma once

#include <memory>

#include "io/file_array.h"
#include "io/spare_memory.h"

namespace ds {

// The memory of arrays whose first elements stay in memory, as io::FileArrays takes and keeps it
// for the others.
class FileMemory : public std::enable_shared_from_this<FileMemory> {
 public:
  // Files are read into `buffers`; `device` has what joins that with memory. `aside` is memory that
  // is not counted, of as many bytes as any range has.
  FileMemory(std::shared_ptr<Device> device, std::shared_ptr<Device> buffers,
             const io::FileArrayOptions& options, int64_t part_bytes, int64_t stay, Tensor aside);

  // Of elements from `begin` on what is read into memory; none where all of them stay there.
  Tensor read(DType type, int64_t elements, int64_t begin);
  // The elements as somebody works with them: where they lie, what was read, or both joined.
  Tensor take(DType type, int64_t elements, int64_t begin);
  // Beside what was read of so many elements; none where that is all of them, or none.
  Tensor joined(const Tensor& read, DType type, int64_t elements) const;
  // Nothing will be taken for a while.
  void rest() { spare_.clear(kept_); }
  bool reads_ahead() const { return ahead_; }
  bool writes_behind() const { return behind_; }
  int64_t stay() const { return stay_; }

 private:
  const std::shared_ptr<Device> device_, buffers_;
  const bool ahead_, behind_;
  const int64_t kept_, stay_;
  const Tensor aside_;
  io::SpareMemory<Tensor> spare_;
};

// An array while an update goes through it.
struct MappedArray {
  std::shared_ptr<FileMemory> files;
  DType type;
  bool written = true;
  Tensor fetched = {}, mapped = {}, joined = {}, writing = {};

  void open(int64_t elements, int64_t begin);
  void prefetch(int64_t elements, int64_t begin);
  void close();
};

}  // namespace ds
