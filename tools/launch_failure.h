// When ranks of `ds launch` met their failures, by their own clocks (src/base/failure_note.h).
#pragma once

#include <cstdint>

namespace tool {

// The receiving end of what one rank tells about its failures.
class FailureNotes {
 public:
  FailureNotes() = default;
  explicit FailureNotes(int file) : file_(file) {}  // owns it
  ~FailureNotes();
  FailureNotes(FailureNotes&& other) noexcept;
  FailureNotes& operator=(FailureNotes&& other) noexcept;

  // Takes what has come.
  void read();
  // Of the failures that came within a second of each other, the last such group: the first of them
  // is what the rank met, the others follow from it.
  bool any() const { return last_ != 0; }
  int64_t first() const { return first_; }  // CLOCK_MONOTONIC, nanoseconds
  int64_t last() const { return last_; }
  // It was told by another rank, or is that another rank is lost.
  bool of_others() const { return of_others_; }

 private:
  int file_ = -1;
  int64_t first_ = 0;
  int64_t last_ = 0;
  bool of_others_ = false;
};

}  // namespace tool
