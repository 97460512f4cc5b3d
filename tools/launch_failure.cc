#include "launch_failure.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "ds.h"

namespace tool {
namespace {

struct Note {
  int64_t nanoseconds;
  int32_t code;
  int32_t unused;
};

}  // namespace

FailureNotes::~FailureNotes() {
  if (file_ >= 0) ::close(file_);
}

FailureNotes::FailureNotes(FailureNotes&& other) noexcept { *this = std::move(other); }

FailureNotes& FailureNotes::operator=(FailureNotes&& other) noexcept {
  std::swap(file_, other.file_);
  first_ = other.first_;
  last_ = other.last_;
  of_others_ = other.of_others_;
  return *this;
}

void FailureNotes::read() {
  constexpr int64_t kApart = 1'000'000'000;
  Note note;
  while (file_ >= 0 && ::recv(file_, &note, sizeof note, MSG_DONTWAIT) == sizeof note) {
    if (!any() || note.nanoseconds - last_ > kApart) {
      first_ = note.nanoseconds;
      of_others_ = note.code == DS_ERR_COMM || note.code == DS_ERR_ABORTED;
    }
    last_ = note.nanoseconds;
  }
}

}  // namespace tool
