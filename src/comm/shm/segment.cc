#include "comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace ds::comm {
namespace {

std::byte* map(int file, size_t bytes) {
  const int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (data == MAP_FAILED) return nullptr;
  constexpr size_t kLarge = size_t{1} << 21;
  if (bytes >= kLarge) ::madvise(data, bytes, MADV_HUGEPAGE);  // where the system grants it
  return static_cast<std::byte*>(data);
}

[[noreturn]] void out_of_memory(size_t bytes) {
  fail(Code::kOutOfMemory, "no shared memory of ", format_bytes(static_cast<int64_t>(bytes)),
       " for communication: ", std::strerror(errno));
}

class ProcessSegments : public SegmentSource {
 public:
  std::shared_ptr<Segment> create(size_t bytes, std::string& ticket) override {
    const int file = ::memfd_create("ds-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) out_of_memory(bytes);
    // Nobody can take away what others have mapped.
    std::byte* const data =
        ::ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
                ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0
            ? map(file, bytes)
            : nullptr;
    if (data == nullptr) {
      ::close(file);
      out_of_memory(bytes);
    }
    auto segment = std::make_shared<Segment>(data, bytes, file);
    const uint64_t nonce = random_nonce();
    std::memcpy(data, &nonce, sizeof(nonce));
    char text[96];
    std::snprintf(text, sizeof(text), "%ld:%d:%016llx:%zu", static_cast<long>(::getpid()), file,
                  static_cast<unsigned long long>(nonce), bytes);
    ticket = text;
    return segment;
  }

  std::shared_ptr<Segment> open(const std::string& ticket, size_t agreed) override {
    long pid = 0;
    int number = 0;
    unsigned long long nonce = 0;
    size_t bytes = 0;
    DS_CHECK(std::sscanf(ticket.c_str(), "%ld:%d:%16llx:%zu", &pid, &number, &nonce, &bytes) == 4,
             Code::kComm, "a peer's shared memory has no readable ticket");
    DS_CHECK(bytes == agreed, Code::kComm, "a peer's shared memory has ", bytes, " bytes, not ",
             agreed);
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%ld/fd/%d", pid, number);
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    DS_CHECK(file >= 0, Code::kComm, "the shared memory of process ", pid,
             " cannot be opened from here (", std::strerror(errno),
             "): another host, container or user");
    // Another process may have that number here: the file must be the one that was meant.
    struct stat status {};
    uint64_t found = 0;
    const bool meant = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                       status.st_size == static_cast<off_t>(bytes) &&
                       (::fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK) != 0 &&
                       ::pread(file, &found, sizeof(found), 0) == sizeof(found) && found == nonce;
    std::byte* const data = meant ? map(file, bytes) : nullptr;
    const int error = errno;
    ::close(file);
    DS_CHECK(meant, Code::kComm, "process ", pid,
             " of this host is not the peer: another host or "
             "container");
    errno = error;
    if (data == nullptr) out_of_memory(bytes);
    return std::make_shared<Segment>(data, bytes, -1);
  }
};

class ThreadSegments : public SegmentSource {
 public:
  std::shared_ptr<Segment> create(size_t bytes, std::string& ticket) override {
    std::byte* const data = map(-1, bytes);
    if (data == nullptr) out_of_memory(bytes);
    auto segment = std::make_shared<Segment>(data, bytes, -1);
    const std::lock_guard lock(mutex_);
    ticket = std::to_string(++last_);
    std::memcpy(data, &last_, sizeof(last_));
    std::erase_if(segments_, [](const auto& entry) { return entry.second.expired(); });
    segments_[ticket] = segment;
    return segment;
  }

  std::shared_ptr<Segment> open(const std::string& ticket, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const auto found = segments_.find(ticket);
    auto segment = found == segments_.end() ? nullptr : found->second.lock();
    DS_CHECK(segment != nullptr && segment->bytes() == bytes, Code::kComm, "no shared memory \"",
             printable(ticket), "\"");
    return segment;
  }

 private:
  std::mutex mutex_;
  uint64_t last_ = 0;
  std::map<std::string, std::weak_ptr<Segment>> segments_;
};

}  // namespace

Segment::~Segment() {
  close_file();
  ::munmap(data_, bytes_);
}

void Segment::close_file() noexcept {
  if (file_ < 0) return;
  ::close(file_);
  file_ = -1;
}

uint64_t random_nonce() {
  uint64_t value = 0;
  for (size_t got = 0; got < sizeof(value);) {
    const ssize_t n = ::getrandom(reinterpret_cast<char*>(&value) + got, sizeof(value) - got, 0);
    DS_CHECK(n > 0 || errno == EINTR, Code::kInternal,
             "the system gives no random numbers: ", std::strerror(errno));
    if (n > 0) got += static_cast<size_t>(n);
  }
  return value == 0 ? 1 : value;
}

std::shared_ptr<SegmentSource> make_process_segments() {
  return std::make_shared<ProcessSegments>();
}
std::shared_ptr<SegmentSource> make_thread_segments() { return std::make_shared<ThreadSegments>(); }

}  // namespace ds::comm
