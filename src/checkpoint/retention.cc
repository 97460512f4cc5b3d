#include "checkpoint/retention.h"

#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/listing.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save_folder.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

std::string named_by_latest(const fs::path& save_dir) {
  try {
    return read_latest(save_dir);
  } catch (const Error&) {
    return {};  // nothing that can be relied on
  }
}

// Durable before the checkpoint goes, so that `latest` never names one that is not there.
void move_latest_off(const fs::path& save_dir, std::string_view tag) {
  std::string next;
  for (const ListedCheckpoint& entry : list_checkpoints(save_dir)) {
    if (entry.valid() && entry.tag != tag) next = entry.tag;
  }
  const fs::path latest = save_dir / kLatestFile;
  if (!next.empty()) {
    write_file_durably(latest, latest_text(next));
    return;
  }
  if (::unlink(latest.c_str()) != 0 && errno != ENOENT) fail_errno("cannot remove", latest);
  sync_folder(save_dir);
}

}  // namespace

void delete_checkpoint(const fs::path& save_dir, std::string_view tag) {
  const fs::path folder = find_tag_folder(save_dir, tag);
  std::error_code error;
  DS_CHECK(fs::exists(fs::symlink_status(folder / kManifestFile, error)), Code::kNotFound,
           printable(folder.string(), 300), " holds no ", kManifestFile, ": it is no checkpoint");
  if (named_by_latest(save_dir) == tag) move_latest_off(save_dir, tag);
  DS_CHECK(remove_checkpoint_folder(folder), Code::kIo, "the checkpoint ",
           printable(folder.string(), 300),
           " is deleted, but its folder holds files that are not a checkpoint's, or cannot be "
           "removed");
  sync_folder(save_dir);
}

void keep_newest(const fs::path& save_dir, const std::string& run, const std::string& newest,
                 int64_t keep) noexcept {
  try {
    if (keep <= 0 || run.empty()) return;
    const std::vector<ListedCheckpoint> all = list_checkpoints(save_dir);
    int64_t kept = 1;
    for (auto it = all.rbegin(); it != all.rend(); ++it) {
      if (it->run != run || it->tag == newest || !it->valid()) continue;
      if (++kept <= keep) continue;
      try {
        delete_checkpoint(save_dir, it->tag);
        log_info("checkpoint", "deleted the checkpoint ", printable(it->path.string(), 300),
                 ": checkpoint.keep is ", keep);
      } catch (const Error& error) {
        log_warning("checkpoint", "cannot delete an old checkpoint: ", error.message());
      }
    }
  } catch (const std::exception& error) {
    log_warning("checkpoint", "cannot delete old checkpoints: ", error.what());
  }
}

}  // namespace ds
