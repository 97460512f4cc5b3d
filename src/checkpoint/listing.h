// The checkpoints of a save folder, in the order of their training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ds {

struct ListedCheckpoint {
  std::string tag;
  std::filesystem::path path;
  std::string run;      // "" when the checkpoint does not say
  int64_t steps = 0;    // -1 when it cannot be opened, and then why
  std::string problem;  // "" for a valid one

  bool valid() const { return problem.empty(); }
};

// By rising number of steps, those of equal steps by tag; what cannot be opened comes first.
// "Valid" means that manifest and file sizes are right.
std::vector<ListedCheckpoint> list_checkpoints(const std::filesystem::path& save_dir);

}  // namespace ds
