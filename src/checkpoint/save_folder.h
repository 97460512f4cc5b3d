// The save folder: tags, the `latest` file, temporary folders and their publication. Whatever
// moment a process dies at, a complete checkpoint stays reachable.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ds {

inline constexpr const char* kLatestFile = "latest";

// Throws kInvalidArgument unless the tag can name a checkpoint folder.
void check_tag(std::string_view tag);

// The content of `latest`: the tag, and a line that checks it.
std::string latest_text(std::string_view tag);
// The tag in SAVE_DIR/latest. A file with only the tag (written by hand) is accepted; anything
// else that is not exactly what latest_text gives is kCorrupt. No file: kNotFound.
std::string read_latest(const std::filesystem::path& save_dir);

struct TagFolder {
  std::string tag;
  std::filesystem::path path;
};
// Folders with a manifest, by tag. A checkpoint that a crash left moved aside in the middle of its
// replacement counts under its tag.
std::vector<TagFolder> list_tag_folders(const std::filesystem::path& save_dir);
// The folder of one tag; kNotFound names what there is instead.
std::filesystem::path find_tag_folder(const std::filesystem::path& save_dir, std::string_view tag);

// Deletes the checkpoint files in `folder` and then the folder; files that are not a checkpoint's
// keep it alive, and links are not followed. Returns whether the folder is gone; if not, `why` says
// what keeps it.
bool remove_checkpoint_folder(const std::filesystem::path& folder,
                              std::string* why = nullptr) noexcept;

// Throws kIo when SAVE_DIR/TAG is something that a checkpoint must not replace: a file, or a
// folder with files but without a manifest.
void check_replaceable(const std::filesystem::path& save_dir, std::string_view tag);

// Removes temporary folders whose writer is gone (its lock is free) and brings back a checkpoint
// that a crash left moved aside. Touches nothing else.
void clean_save_folder(const std::filesystem::path& save_dir) noexcept;

// A locked folder SAVE_DIR/.TAG.tmp.PID.N, removed unless it is published.
class TemporaryFolder {
 public:
  TemporaryFolder(const std::filesystem::path& save_dir, const std::string& tag);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

  // Makes the folder SAVE_DIR/TAG, replacing one that exists, and then (if asked) `latest` name
  // it; everything is durable on return. `exchange` allows the atomic swap of two folders; without
  // it, as on file systems that lack it, the old folder is moved aside first.
  void publish(bool update_latest, bool exchange);
  // Removes the folder now.
  void discard() noexcept;

 private:
  bool rename_into_place(bool exchange, std::filesystem::path* replaced);
  void unlock() noexcept;

  std::filesystem::path save_dir_;
  std::string tag_;
  std::filesystem::path path_;
  int lock_ = -1;
  bool live_ = false;
};

}  // namespace ds
