// The kernel's older asynchronous I/O, through libaio, which is opened at run time. It is
// asynchronous past the page cache only, which is all that a Queue gives it.
#include <linux/aio_abi.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "base/dynamic_library.h"
#include "base/text.h"
#include "io/backend.h"

namespace ds::io {
namespace {

// The second name is that of distributions that have moved to a 64-bit time.
constexpr const char* kLibraryNames[] = {"libaio.so.1", "libaio.so.1t64"};
constexpr LibraryPlaces kPlaces = {"libaio", "DS_LIBAIO_LIBRARY", kLibraryNames};

// The functions of libaio; its structs are those of the kernel. They give negative errnos.
struct Library {
  using Context = void*;
  int (*setup)(int depth, Context* out) = nullptr;
  int (*destroy)(Context) = nullptr;
  int (*submit)(Context, long count, iocb** pieces) = nullptr;
  int (*get_events)(Context, long least, long most, io_event* out, timespec* timeout) = nullptr;
  std::string reason;  // why it cannot be used; "" when it can
};

Library open_library() {
  Library out;
  DynamicLibrary library = DynamicLibrary::open(kPlaces, kPlaces.named());
  library.need(out.setup, "io_setup");
  library.need(out.destroy, "io_destroy");
  library.need(out.submit, "io_submit");
  library.need(out.get_events, "io_getevents");
  out.reason = library.reason();
  return out;
}

const Library& library() {
  static const Library opened = open_library();
  return opened;
}

class LibaioBackend final : public Backend {
 public:
  LibaioBackend(Library::Context context, int depth)
      : context_(context),
        controls_(static_cast<size_t>(depth)),
        pointers_(controls_.size()),
        events_(controls_.size()) {}
  ~LibaioBackend() override { library().destroy(context_); }

  BackendKind kind() const override { return BackendKind::kLibaio; }

  Submitted submit(std::span<const Piece* const> pieces) override {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = *pieces[i];
      iocb& control = controls_[piece.slot];
      control = {};
      control.aio_data = piece.slot;
      control.aio_lio_opcode = piece.write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
      control.aio_fildes = static_cast<uint32_t>(piece.fd);
      control.aio_buf = reinterpret_cast<uintptr_t>(piece.data);
      control.aio_nbytes = piece.bytes;
      control.aio_offset = piece.offset;
      pointers_[i] = &control;
    }
    int taken;
    do {
      taken = library().submit(context_, static_cast<long>(pieces.size()), pointers_.data());
    } while (taken == -EINTR);
    if (taken < 0) return {0, -taken};
    return {static_cast<size_t>(taken), taken == 0 ? EAGAIN : 0};
  }

  size_t reap(bool block, std::span<Completion> out) override {
    const long most = static_cast<long>(std::min(out.size(), events_.size()));
    timespec at_once{};
    int count;
    do {
      count = library().get_events(context_, block ? 1 : 0, most, events_.data(),
                                   block ? nullptr : &at_once);
    } while (count == -EINTR);
    for (int i = 0; i < count; ++i) {
      const io_event& event = events_[static_cast<size_t>(i)];
      out[static_cast<size_t>(i)] = {static_cast<uint32_t>(event.data), event.res};
    }
    return count > 0 ? static_cast<size_t>(count) : 0;
  }

 private:
  const Library::Context context_;
  std::vector<iocb> controls_;  // by slot
  std::vector<iocb*> pointers_;
  std::vector<io_event> events_;
};

}  // namespace

std::unique_ptr<Backend> make_libaio(int depth, std::string& reason) {
  reason = library().reason;
  if (!reason.empty()) return nullptr;
  Library::Context context = nullptr;
  const int error = library().setup(depth, &context);
  if (error != 0) {
    reason = str_cat("io_setup for ", depth, " requests: ", std::strerror(-error));
    if (error == -EAGAIN) reason += "; see /proc/sys/fs/aio-max-nr";
    return nullptr;
  }
  try {
    return std::make_unique<LibaioBackend>(context, depth);
  } catch (...) {
    library().destroy(context);
    throw;
  }
}

}  // namespace ds::io
