// Which checkpoint of a folder is taken when nobody names one.
#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "checkpoint/save_folder.h"

namespace ds {

void CheckpointSearch::pass_over(const std::string& tag, const std::string& reason) {
  log_warning("checkpoint", "passing over ", tag.empty() ? "latest" : printable(tag), ": ", reason);
  skipped_.push_back({tag, reason});
}

std::optional<CheckpointReader> CheckpointSearch::next() {
  if (!asked_latest_) {
    asked_latest_ = true;
    try {
      named_ = read_latest(save_dir_);
      return CheckpointReader::open(save_dir_, named_);
    } catch (const Error& error) {
      if (error.code() != Code::kNotFound || !named_.empty()) pass_over(named_, error.message());
    }
  }
  if (!listed_) list();
  while (!rest_.empty()) {
    const std::string tag = std::move(rest_.back().second);
    rest_.pop_back();
    try {
      return CheckpointReader::open(save_dir_, tag);
    } catch (const Error& error) {
      pass_over(tag, error.message());
    }
  }
  return std::nullopt;
}

void CheckpointSearch::list() {
  listed_ = true;
  for (const TagFolder& folder : list_tag_folders(save_dir_)) {
    if (folder.tag == named_) continue;
    try {
      const CheckpointReader reader = CheckpointReader::open(save_dir_, folder.tag);
      rest_.emplace_back(reader.manifest().counters.global_steps, folder.tag);
    } catch (const Error& error) {
      pass_over(folder.tag, error.message());
    }
  }
  // Of equal steps the first in the list comes first.
  std::reverse(rest_.begin(), rest_.end());
  std::stable_sort(rest_.begin(), rest_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
}

void CheckpointSearch::fail() const {
  std::string reasons;
  for (const SkippedCheckpoint& s : skipped_) reasons += str_cat("; ", s.tag, ": ", s.reason);
  ds::fail(skipped_.empty() ? Code::kNotFound : Code::kCorrupt, "no valid checkpoint in ",
           printable(save_dir_.string(), 300), printable(reasons, 2000));
}

LatestCheckpoint open_latest_valid(const std::filesystem::path& save_dir, bool verify_data) {
  CheckpointSearch search(save_dir);
  while (std::optional<CheckpointReader> reader = search.next()) {
    if (verify_data) {
      if (const std::vector<Damage> damage = reader->verify_all(); !damage.empty()) {
        search.pass_over(reader->tag(), damage.front().text());
        continue;
      }
    }
    return {std::move(*reader), std::move(search.skipped())};
  }
  search.fail();
}

}  // namespace ds
