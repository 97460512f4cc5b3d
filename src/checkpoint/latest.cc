// Which checkpoint of a folder is taken when nobody names one.
#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/listing.h"
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
      CheckpointReader reader = CheckpointReader::open(save_dir_, named_);
      mention_newer(reader.manifest());
      return reader;
    } catch (const Error& error) {
      if (error.code() != Code::kNotFound || !named_.empty()) pass_over(named_, error.message());
    }
  }
  if (!listed_) list();
  while (!rest_.empty()) {
    const std::string tag = std::move(rest_.back());
    rest_.pop_back();
    try {
      return CheckpointReader::open(save_dir_, tag);
    } catch (const Error& error) {
      pass_over(tag, error.message());
    }
  }
  return std::nullopt;
}

// What `latest` names is taken, but whoever went back by accident should learn it.
void CheckpointSearch::mention_newer(const Manifest& taken) const {
  std::vector<std::string> newer;
  for (const ListedCheckpoint& entry : list_checkpoints(save_dir_)) {
    if (!entry.valid() || entry.steps <= taken.counters.global_steps) continue;
    newer.push_back(str_cat(entry.tag, " (step ", entry.steps, ")"));
  }
  if (newer.empty()) return;
  log_warning("checkpoint", printable((save_dir_ / kLatestFile).string(), 300), " names ",
              printable(taken.tag), " of step ", taken.counters.global_steps,
              ", which is taken; there are newer checkpoints: ", printable(join(newer, ", "), 300),
              "; ask for one by its tag");
}

void CheckpointSearch::list() {
  listed_ = true;
  std::vector<ListedCheckpoint> all = list_checkpoints(save_dir_);
  // Of equal steps the first in the list comes first.
  std::reverse(all.begin(), all.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.steps < b.steps; });
  for (const ListedCheckpoint& entry : all) {
    if (entry.tag == named_) continue;
    if (entry.valid()) {
      rest_.push_back(entry.tag);
    } else {
      pass_over(entry.tag, entry.problem);
    }
  }
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
