#include "checkpoint/save_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/rank_parts.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

constexpr const char* kComponent = "checkpoint";
constexpr const char* kNextLatest = "latest.next";
constexpr int kAttempts = 1000;

std::string shown(const fs::path& path) { return printable(path.string(), 300); }

enum class Leftover { kTemporary, kReplaced };
struct LeftoverName {
  std::string tag;
  Leftover kind;
};

bool all_digits(std::string_view text) {
  return !text.empty() && text.size() <= 20 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// ".TAG.tmp.PID.N" and ".TAG.old.PID.N".
fs::path leftover_path(const fs::path& save_dir, std::string_view tag, Leftover kind, int n) {
  return save_dir /
         str_cat(".", tag, kind == Leftover::kTemporary ? ".tmp." : ".old.", ::getpid(), ".", n);
}

std::optional<LeftoverName> parse_leftover(std::string_view name) {
  if (name.size() < 2 || name[0] != '.') return std::nullopt;
  std::array<std::string_view, 3> tail;  // N, PID, tmp or old
  for (std::string_view& part : tail) {
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || dot == 0) return std::nullopt;
    part = name.substr(dot + 1);
    name = name.substr(0, dot);
  }
  const std::string_view tag = name.substr(1);
  if (!all_digits(tail[0]) || !all_digits(tail[1]) || !is_plain_name(tag)) return std::nullopt;
  if (tail[2] == "tmp") return LeftoverName{std::string(tag), Leftover::kTemporary};
  if (tail[2] == "old") return LeftoverName{std::string(tag), Leftover::kReplaced};
  return std::nullopt;
}

bool is_checkpoint_file(std::string_view name) {
  if (name == kManifestFile || name == kNextLatest || is_handover_file(name)) return true;
  return name.size() > 9 && name.substr(0, 5) == "data-" &&
         name.substr(name.size() - 4) == ".bin" && all_digits(name.substr(5, name.size() - 9));
}

bool has_manifest(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kManifestFile, error);
}

// Opens and locks a folder that nobody else has locked; -1 otherwise. The lock dies with its
// process, so a free lock means that the folder's writer is gone.
int lock_folder(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat here, there;
  int error = 0;
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 || ::fstat(fd, &here) != 0 ||
      ::stat(path.c_str(), &there) != 0) {
    error = errno;
  } else if (here.st_ino != there.st_ino || here.st_dev != there.st_dev) {
    error = EAGAIN;  // removed and made anew meanwhile
  }
  if (error == 0) return fd;
  ::close(fd);
  errno = error;
  return -1;
}

// Whether the last lock_folder failed because the file system has no such locks.
bool locks_unsupported() {
  return errno == EBADF || errno == ENOLCK || errno == ENOTSUP || errno == ENOSYS;
}

void unlock_folder(int fd) {
  ::flock(fd, LOCK_UN);  // a forked child may hold a copy of the descriptor
  ::close(fd);
}

// Removes what a publication replaced. Under its lock, because another process may have cleaned it
// away by now and a third may be using the name again.
void remove_replaced(const fs::path& path) {
  const int lock = lock_folder(path);
  if (lock < 0 && !locks_unsupported()) return;
  std::string why;
  const bool gone = remove_checkpoint_folder(path, &why);
  if (lock >= 0) unlock_folder(lock);
  if (!gone) {
    log_warning(kComponent, "the replaced checkpoint stays in ", shown(path), ": ", why);
  }
}

}  // namespace

void check_tag(std::string_view tag) {
  DS_CHECK(is_plain_name(tag) && tag.size() <= 128 && tag != kLatestFile, Code::kInvalidArgument,
           "the checkpoint tag '", printable(tag, 140),
           "' cannot name a folder: use 1 to 128 bytes of UTF-8 without slashes or control "
           "characters, not beginning with a dot, and not 'latest'");
}

std::string latest_text(std::string_view tag) {
  std::array<char, 32> sum;
  std::snprintf(sum.data(), sum.size(), "%016llx",
                static_cast<unsigned long long>(xxh3_64(std::as_bytes(std::span(tag)))));
  return str_cat(tag, "\nxxh3-64 ", sum.data(), "\n");
}

std::string read_latest(const fs::path& save_dir) {
  const fs::path path = save_dir / kLatestFile;
  std::error_code error;
  const auto status = fs::status(path, error);
  DS_CHECK(status.type() != fs::file_type::not_found, Code::kNotFound, shown(path),
           " does not exist: no checkpoint was saved here");
  DS_CHECK(fs::is_regular_file(status) && fs::file_size(path, error) <= 1024, Code::kCorrupt,
           shown(path), " is not a file that names a checkpoint");
  const std::string text = read_text_file(path, 1024);
  const size_t end = text.find('\n');
  std::string tag = text.substr(0, end);
  // A file that was cut short may spell another tag that exists.
  DS_CHECK(end != std::string::npos || text.empty(), Code::kCorrupt, shown(path), " (bytes 0-",
           text.size() - 1, ") is cut short: no line feed ends the tag '", printable(tag),
           "', which may be the beginning of another one");
  const bool one_line = text.size() <= tag.size() + 1;
  if (one_line && !tag.empty() && tag.back() == '\r') tag.pop_back();
  DS_CHECK(is_plain_name(tag) && (one_line || text == latest_text(tag)), Code::kCorrupt,
           shown(path), " (bytes 0-", text.empty() ? 0 : text.size() - 1, ") is damaged: the tag '",
           printable(tag),
           "' does not match the check line; to choose a checkpoint by hand, write its tag alone");
  return tag;
}

std::vector<TagFolder> list_tag_folders(const fs::path& save_dir) {
  std::vector<TagFolder> out;
  std::vector<TagFolder> replaced;
  for (const std::string& name : entry_names(save_dir)) {
    const fs::path path = save_dir / name;
    if (!has_manifest(path)) continue;
    if (is_plain_name(name)) {
      out.push_back({name, path});
    } else if (const auto left = parse_leftover(name); left && left->kind == Leftover::kReplaced) {
      replaced.push_back({left->tag, path});
    }
  }
  for (TagFolder& old : replaced) {
    const bool known = std::any_of(out.begin(), out.end(),
                                   [&](const TagFolder& folder) { return folder.tag == old.tag; });
    if (!known) out.push_back(std::move(old));
  }
  std::sort(out.begin(), out.end(),
            [](const TagFolder& a, const TagFolder& b) { return a.tag < b.tag; });
  return out;
}

fs::path find_tag_folder(const fs::path& save_dir, std::string_view tag) {
  check_tag(tag);
  std::error_code error;
  fs::path path = save_dir / tag;
  if (fs::is_directory(path, error)) return path;
  std::vector<std::string> known;
  for (const TagFolder& folder : list_tag_folders(save_dir)) {
    if (folder.tag == tag) return folder.path;
    known.push_back(folder.tag);
  }
  const std::string nearest = nearest_name(tag, known);
  fail(Code::kNotFound, "there is no checkpoint '", printable(tag), "' in ", shown(save_dir),
       known.empty()     ? std::string(", nor any other")
       : nearest.empty() ? str_cat("; there is ", printable(join(known, ", "), 300))
                         : str_cat("; did you mean '", printable(nearest), "'?"));
}

bool remove_checkpoint_folder(const fs::path& folder, std::string* why) noexcept {
  try {
    const auto kept = [&](std::string_view what, int error) {
      if (why != nullptr) *why = str_cat(what, std::generic_category().message(error));
      return false;
    };
    // Relative to the opened folder, so that nobody can put another one in its place meanwhile.
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || kept("it cannot be opened: ", errno);
    std::string stuck;
    int stuck_error = 0;
    const auto remove = [&](const std::string& name) {
      if (::unlinkat(fd, name.c_str(), 0) == 0 || errno == ENOENT || stuck_error != 0) return;
      stuck_error = errno;
      stuck = name;
    };
    try {
      // The manifest goes first: what is left is then no checkpoint.
      remove(kManifestFile);
      for (const std::string& name : entry_names(folder)) {
        if (is_checkpoint_file(name)) remove(name);
      }
    } catch (...) {
      ::close(fd);
      throw;
    }
    ::close(fd);
    if (stuck_error != 0)
      return kept(str_cat("cannot remove ", printable(stuck), ": "), stuck_error);
    if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return true;
    if (errno != ENOTEMPTY && errno != EEXIST) return kept("cannot remove the folder: ", errno);
    if (why != nullptr) *why = "it holds files that are not a checkpoint's";
    return false;
  } catch (...) {
    return false;
  }
}

void check_replaceable(const fs::path& save_dir, std::string_view tag) {
  const fs::path target = save_dir / tag;
  struct stat info;
  if (::lstat(target.c_str(), &info) != 0) return;  // free, or the save itself will tell
  DS_CHECK(S_ISDIR(info.st_mode), Code::kIo, "cannot save as ", shown(target),
           ": a file or a link of that name is there; choose another tag or move it away");
  if (has_manifest(target)) return;
  const std::vector<std::string> files = entry_names(target);
  DS_CHECK(files.empty(), Code::kIo, "cannot save as ", shown(target),
           ": a folder of that name is there that is no checkpoint (it holds ",
           printable(files.front()), files.size() > 1 ? " and more" : "", ", but no ",
           kManifestFile, "); choose another tag or move it away");
}

void clean_save_folder(const fs::path& save_dir) noexcept {
  try {
    for (const std::string& name : entry_names(save_dir)) {
      const auto left = parse_leftover(name);
      if (!left) continue;
      const fs::path path = save_dir / name;
      const int lock = lock_folder(path);
      if (lock < 0) continue;
      if (left->kind == Leftover::kReplaced && has_manifest(path)) {
        // rename fails if the tag exists by now; then the old copy is not needed.
        if (::rename(path.c_str(), (save_dir / left->tag).c_str()) == 0) {
          unlock_folder(lock);
          log_warning(kComponent, "brought back the checkpoint ", shown(save_dir / left->tag),
                      " whose replacement was interrupted");
          continue;
        }
      }
      std::string why;
      const bool gone = remove_checkpoint_folder(path, &why);
      unlock_folder(lock);
      log_info(kComponent, gone ? "removed the leftover folder " : "kept the leftover folder ",
               shown(path), gone ? "" : ": ", why);
    }
  } catch (const std::exception& error) {
    log_warning(kComponent, "cannot clean ", shown(save_dir), ": ", error.what());
  } catch (...) {
    log_warning(kComponent, "cannot clean ", shown(save_dir));
  }
}

TemporaryFolder::TemporaryFolder(const fs::path& save_dir, const std::string& tag)
    : save_dir_(save_dir), tag_(tag) {
  check_tag(tag);
  check_replaceable(save_dir, tag);
  for (int n = 0; n < kAttempts; ++n) {
    path_ = leftover_path(save_dir, tag, Leftover::kTemporary, n);
    if (::mkdir(path_.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      fail_errno("cannot create the folder", path_);
    }
    // Until it is locked, a cleaning process may take the folder for a leftover and remove it.
    lock_ = lock_folder(path_);
    if (lock_ >= 0 || locks_unsupported()) {
      live_ = true;  // without locks in the file system nobody cleans either
      return;
    }
  }
  fail(Code::kIo, "cannot make a temporary folder for '", printable(tag), "' in ", shown(save_dir));
}

TemporaryFolder::~TemporaryFolder() { discard(); }

void TemporaryFolder::discard() noexcept {
  if (live_) remove_checkpoint_folder(path_);
  live_ = false;
  unlock();
}

void TemporaryFolder::unlock() noexcept {
  if (lock_ >= 0) unlock_folder(lock_);
  lock_ = -1;
}

// One attempt; false when another process changed the tag's folder meanwhile.
bool TemporaryFolder::rename_into_place(bool exchange, fs::path* replaced) {
  const fs::path target = save_dir_ / tag_;
  if (::rename(path_.c_str(), target.c_str()) == 0) return true;
  if (errno != ENOTEMPTY && errno != EEXIST) fail_errno("cannot put the checkpoint at", target);
  if (exchange) {
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      *replaced = path_;
      return true;
    }
    if (errno == ENOENT) return false;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP && errno != EPERM) {
      fail_errno("cannot replace", target);
    }
  }
  fs::path aside;
  std::error_code error;
  for (int n = 0; n < kAttempts; ++n) {
    aside = leftover_path(save_dir_, tag_, Leftover::kReplaced, n);
    if (!fs::exists(aside, error)) break;
  }
  if (::rename(target.c_str(), aside.c_str()) != 0) {
    if (errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST) return false;
    fail_errno("cannot move aside", target);
  }
  if (::rename(path_.c_str(), target.c_str()) != 0) {
    const int failure = errno;
    // Another one's checkpoint under the name takes the old one's place. After any other failure
    // the old one stays where it is until a save brings it back.
    if (::rename(aside.c_str(), target.c_str()) != 0 && (errno == ENOTEMPTY || errno == EEXIST)) {
      remove_replaced(aside);
    }
    if (failure == ENOTEMPTY || failure == EEXIST) return false;
    errno = failure;
    fail_errno("cannot put the checkpoint at", target);
  }
  *replaced = aside;
  return true;
}

void TemporaryFolder::publish(bool update_latest, bool exchange) {
  DS_CHECK(live_, Code::kState, "the checkpoint folder was already published or discarded");
  const std::string text = latest_text(tag_);
  if (update_latest) {  // prepared inside, so that a crash leaves nothing beside the checkpoints
    File next(path_ / kNextLatest, File::Mode::kNew);
    next.append(text);
    next.sync();
    next.close();
  }
  sync_folder(path_);
  check_replaceable(save_dir_, tag_);
  fs::path replaced;
  for (int n = 0; !rename_into_place(exchange, &replaced); ++n) {
    DS_CHECK(n < kAttempts, Code::kIo, "other processes keep replacing ", shown(save_dir_ / tag_));
  }
  live_ = false;  // from here on the checkpoint is complete and must stay
  sync_folder(save_dir_);
  if (update_latest) {
    const fs::path latest = save_dir_ / kLatestFile;
    if (::rename((save_dir_ / tag_ / kNextLatest).c_str(), latest.c_str()) != 0) {
      if (errno != ENOENT) fail_errno("the checkpoint is complete, but cannot replace", latest);
      write_file_durably(latest, text);  // another writer of the same tag took the folder over
    }
    sync_folder(save_dir_);
  }
  unlock();
  if (!replaced.empty()) remove_replaced(replaced);
}

}  // namespace ds
