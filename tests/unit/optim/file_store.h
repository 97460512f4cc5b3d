// Arrays in temporary files, read and written with plain pread and pwrite: what a store has to do,
// and nothing more. It counts what is mapped, and writes fail where a test wants them to.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "ops/stored_array.h"
#include "optim/array_factory.h"

namespace ds::testing {

// All of an array's bytes.
inline std::string bytes_of(const StoredArray& array) {
  std::string out;
  array.for_parts(0, array.elements(), Access::kRead, [&](const Tensor& part, int64_t) {
    out.append(static_cast<const char*>(part.raw()), static_cast<size_t>(part.bytes()));
  });
  return out;
}

// What all files of a factory share.
struct FileCounts {
  int64_t mapped = 0;         // bytes of open leases
  int64_t most_mapped = 0;    // at any time
  int64_t most_elements = 0;  // of one lease
  int64_t reads = 0, writes = 0;
  int64_t dropped_writes = 0;                    // leases for writing that gave up
  int64_t prefetched = 0, found_prefetched = 0;  // ranges
  bool late = false;                             // writes stay on their way for a while
  int64_t on_the_way = 0;                        // of them, now
  // How many bytes of the next write arrive, and what then happens: 0 is a short write that makes
  // no progress. None: all arrive.
  std::function<std::pair<int64_t, int>(const std::string& file, int64_t bytes)> fault;
  // Whether the next read of a file fails. None: no read does.
  std::function<bool(const std::string& file)> read_fault;
};

class FileStore : public ArrayStore {
 public:
  FileStore(std::filesystem::path path, const optim::ArrayRequest& request, int64_t part,
            std::shared_ptr<FileCounts> counts)
      : ArrayStore(request.dtype, request.elements),
        path_(std::move(path)),
        part_(part),
        counts_(std::move(counts)),
        device_(make_cpu_device()),
        fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    if (fd_ < 0) fail_errno("cannot create", path_);
    if (::ftruncate(fd_, elements() * item()) != 0) fail_errno("cannot size", path_);
  }
  ~FileStore() override {
    EXPECT_TRUE(open_.empty()) << "leases of " << path_ << " are open";
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  int64_t part_elements() const override { return part_; }

  // Remembers only that somebody asked.
  void prefetch(int64_t begin, int64_t end) override {
    EXPECT_LT(begin, end);
    EXPECT_LE(end, elements());
    counts_->prefetched += expected_.insert({begin, end}).second ? 1 : 0;
  }

  void flush() override {
    EXPECT_TRUE(open_.empty()) << path_;
    while (!on_the_way_.empty()) write_first();
  }

 protected:
  Tensor open(int64_t begin, int64_t end, Access access) override {
    EXPECT_GE(begin, 0);
    EXPECT_LT(begin, end);
    EXPECT_LE(end, elements());
    for (const auto& [memory, range] : open_) {
      const bool apart = end <= range.begin || range.end <= begin;
      EXPECT_TRUE(apart || (access == Access::kRead && range.access == Access::kRead))
          << path_ << " " << begin << " to " << end << " is mapped already";
    }
    while (std::ranges::any_of(on_the_way_, [&](const Write& write) {
      return write.begin < end && begin < write.begin + write.memory.elements();
    })) {
      write_first();
    }
    Tensor memory = Tensor::empty(device_, dtype(), {end - begin}, MemoryTag::kWorkspace);
    if (access == Access::kWrite) {
      std::memset(memory.raw(), 0x5a, static_cast<size_t>(memory.bytes()));
    } else {
      counts_->found_prefetched += static_cast<int64_t>(expected_.erase({begin, end}));
      read(memory, begin);
    }
    open_[memory.raw()] = {begin, end, access};
    counts_->mapped += memory.bytes();
    counts_->most_mapped = std::max(counts_->most_mapped, counts_->mapped);
    counts_->most_elements = std::max(counts_->most_elements, end - begin);
    return memory;
  }

  void write_back(Tensor memory, int64_t begin) override {
    take(memory);
    on_the_way_.push_back({std::move(memory), begin});
    ++counts_->on_the_way;
    const size_t most = counts_->late ? 2 : 0;
    while (on_the_way_.size() > most) write_first();
  }

  void drop(Tensor memory) noexcept override {
    if (take(memory).access != Access::kRead) ++counts_->dropped_writes;
  }

 private:
  struct Range {
    int64_t begin, end;
    Access access;
  };
  struct Write {
    Tensor memory;
    int64_t begin;
  };

  int64_t item() const { return dtype_size(dtype()); }

  // One that fails is not tried again.
  void write_first() {
    const Write write = std::move(on_the_way_.front());
    on_the_way_.pop_front();
    --counts_->on_the_way;
    ++counts_->writes;
    const Tensor& memory = write.memory;
    const auto* bytes = static_cast<const std::byte*>(memory.raw());
    const int64_t size = memory.bytes(), offset = write.begin * item();
    int64_t allowed = size;
    int error = 0;
    if (counts_->fault) std::tie(allowed, error) = counts_->fault(path_.filename(), size);
    for (int64_t done = 0; done < size;) {
      const int64_t next = std::min(size, allowed) - done;
      ssize_t n = next > 0 ? ::pwrite(fd_, bytes + done, static_cast<size_t>(next), offset + done)
                           : ssize_t{0};
      if (next <= 0 && error != 0) {
        n = -1;
        errno = error;
      }
      if (n < 0) fail_errno("cannot write", path_, str_cat("at byte ", offset + done));
      DS_CHECK(n > 0, Code::kIo, "cannot write ", path_.string(), " at byte ", offset + done,
               ": a short write of ", done, " of ", size, " bytes");
      done += n;
    }
  }

  void read(const Tensor& memory, int64_t begin) {
    ++counts_->reads;
    if (counts_->read_fault && counts_->read_fault(path_.filename())) {
      errno = EIO;
      fail_errno("cannot read", path_, str_cat("at byte ", begin * item()));
    }
    auto* const bytes = static_cast<std::byte*>(memory.raw());
    for (int64_t done = 0; done < memory.bytes();) {
      const int64_t offset = begin * item() + done;
      const ssize_t n =
          ::pread(fd_, bytes + done, static_cast<size_t>(memory.bytes() - done), offset);
      if (n < 0) fail_errno("cannot read", path_, str_cat("at byte ", offset));
      DS_CHECK(n > 0, Code::kCorrupt, path_.string(), " ends at byte ", offset);
      done += n;
    }
  }

  Range take(const Tensor& memory) noexcept {
    const auto found = open_.find(memory.raw());
    EXPECT_NE(found, open_.end());
    const Range range = found->second;
    open_.erase(found);
    counts_->mapped -= memory.bytes();
    return range;
  }

  const std::filesystem::path path_;
  const int64_t part_;
  const std::shared_ptr<FileCounts> counts_;
  const std::shared_ptr<Device> device_;
  const int fd_;
  std::map<const void*, Range> open_;  // by memory
  std::deque<Write> on_the_way_;
  std::set<std::pair<int64_t, int64_t>> expected_;
};

// Makes files in a folder of its own, for all roles or some.
class FileFactory : public optim::ArrayFactory {
 public:
  using Roles = std::set<optim::ArrayRole>;
  static Roles all_roles() {
    using enum optim::ArrayRole;
    return {kWeights, kMasters, kLowHalves, kGradients, kStates, kScales};
  }

  explicit FileFactory(int64_t most, Roles roles = all_roles())
      : counts(std::make_shared<FileCounts>()), most_(most), roles_(std::move(roles)) {
    std::string pattern = (std::filesystem::temp_directory_path() / "ds-arrays-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileFactory() override {
    EXPECT_EQ(counts->mapped, 0);
    std::filesystem::remove_all(folder_);
  }

  bool makes(optim::ArrayRole role) const override { return roles_.contains(role); }
  std::shared_ptr<ArrayStore> make(const optim::ArrayRequest& request) override {
    DS_CHECK(static_cast<int64_t>(made.size()) != refused, Code::kIo, "no room for ", request.name);
    EXPECT_TRUE(makes(request.role)) << request.name;
    EXPECT_GT(request.elements, 0) << request.name;
    made.push_back(request);
    return std::make_shared<FileStore>(folder_ / str_cat(request.name, ".", made.size()), request,
                                       most_, counts);
  }
  int64_t most_elements() const override { return most_; }

  const std::filesystem::path& folder() const { return folder_; }

  const std::shared_ptr<FileCounts> counts;
  std::vector<optim::ArrayRequest> made;
  int64_t refused = -1;  // the number of the array that cannot be made

 private:
  const int64_t most_;
  const Roles roles_;
  std::filesystem::path folder_;
};

}  // namespace ds::testing
