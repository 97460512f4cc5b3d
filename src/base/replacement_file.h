// A file that takes the place of another one when it is whole: made beside it, synced, renamed. A
// crash leaves the old content or the new; what a killed process leaves beside it goes with the
// next write.
#pragma once

#include <filesystem>

#include "base/file.h"

namespace ds {

class ReplacementFile {
 public:
  // Makes PATH.tmp.PID.N, which it keeps locked, and removes such files whose writer is gone (their
  // lock is free).
  explicit ReplacementFile(const std::filesystem::path& path);
  // Without commit() nothing is left behind.
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  File* operator->() noexcept { return &file_; }
  File& file() noexcept { return file_; }
  // Syncs the file, puts it at PATH and syncs the folder. The last call.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  File file_;
};

}  // namespace ds
