// Memory that several ranks map: nameless files for processes of one host, plain memory for ranks
// that are threads of one process. Nothing is left behind however a process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace ds::comm {

class Segment {
 public:
  // Takes over a mapping and a file descriptor (-1: none).
  Segment(std::byte* data, size_t bytes, int file) : data_(data), bytes_(bytes), file_(file) {}
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const noexcept { return data_; }
  size_t bytes() const noexcept { return bytes_; }
  // Nobody can open it any more; the mappings stay.
  void close_file() noexcept;

 private:
  std::byte* const data_;
  const size_t bytes_;
  int file_;
};

// Where the ranks of one host get segments from. Any thread.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Zeroed memory, and the ticket by which other ranks open it. The first eight bytes are the
  // segment's nonce and must stay. Throws kOutOfMemory.
  virtual std::shared_ptr<Segment> create(size_t bytes, std::string& ticket) = 0;
  // Throws kComm where the memory cannot be reached (another host, another container), or has not
  // the size that was agreed on.
  virtual std::shared_ptr<Segment> open(const std::string& ticket, size_t bytes) = 0;
};

// Between processes: anonymous files, opened through /proc while their creator lives.
std::shared_ptr<SegmentSource> make_process_segments();
// Between threads of one process that share the source.
std::shared_ptr<SegmentSource> make_thread_segments();

uint64_t random_nonce();

}  // namespace ds::comm
