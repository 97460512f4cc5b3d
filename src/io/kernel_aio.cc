// The kernel's asynchronous I/O through its system calls: they are five, so no library is needed.
// Measured beside io_uring (with and without registered buffers) it moves the same bytes per second
// at these request sizes, and sandboxes that forbid io_uring allow it.
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "io/backend.h"

namespace ds::io {
namespace {

class KernelAio : public Backend {
 public:
  KernelAio(aio_context_t context, int depth) : context_(context), blocks_(size_t(depth)) {}
  ~KernelAio() override { ::syscall(SYS_io_destroy, context_); }

  int submit(const Piece& piece, uint32_t slot) override {
    iocb& block = blocks_[slot];
    block = {};
    block.aio_data = slot;
    block.aio_lio_opcode = piece.write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
    block.aio_fildes = static_cast<uint32_t>(piece.fd);
    block.aio_buf = reinterpret_cast<uintptr_t>(piece.data);
    block.aio_nbytes = piece.bytes;
    block.aio_offset = piece.offset;
    iocb* list[] = {&block};
    long result;
    do {
      result = ::syscall(SYS_io_submit, context_, 1L, list);
    } while (result < 0 && errno == EINTR);
    return result == 1 ? 0 : result < 0 ? errno : EAGAIN;
  }

  size_t reap(bool block, std::span<Completion> out) override {
    std::array<io_event, 64> events;
    const auto most = static_cast<long>(std::min(events.size(), out.size()));
    timespec now{};
    long n;
    do {
      n = ::syscall(SYS_io_getevents, context_, block ? 1L : 0L, most, events.data(),
                    block ? nullptr : &now);
    } while (n < 0 && errno == EINTR);
    for (long i = 0; i < n; ++i) {
      out[static_cast<size_t>(i)] = {static_cast<uint32_t>(events[static_cast<size_t>(i)].data),
                                     events[static_cast<size_t>(i)].res};
    }
    return static_cast<size_t>(std::max(0L, n));
  }

 private:
  aio_context_t context_;
  std::vector<iocb> blocks_;
};

}  // namespace

std::unique_ptr<Backend> make_kernel_aio(int depth) {
  aio_context_t context = 0;
  if (::syscall(SYS_io_setup, static_cast<unsigned>(depth), &context) != 0) return nullptr;
  return std::make_unique<KernelAio>(context, depth);
}

}  // namespace ds::io
