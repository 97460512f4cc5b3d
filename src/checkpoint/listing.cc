#include "checkpoint/listing.h"

#include <algorithm>

#include "checkpoint/reader.h"
#include "checkpoint/save_folder.h"

namespace ds {

std::vector<ListedCheckpoint> list_checkpoints(const std::filesystem::path& save_dir) {
  std::vector<ListedCheckpoint> out;
  for (TagFolder& folder : list_tag_folders(save_dir)) {
    ListedCheckpoint entry{std::move(folder.tag), std::move(folder.path), {}, -1, {}};
    try {
      const CheckpointReader reader = CheckpointReader::open(save_dir, entry.tag);
      entry.run = reader.manifest().run;
      entry.steps = reader.manifest().counters.global_steps;
    } catch (const Error& error) {
      entry.problem = error.message();
    }
    out.push_back(std::move(entry));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.steps < b.steps; });
  return out;
}

}  // namespace ds
