// ds/io.hpp - Files read and written beside the program, and memory that stays in place. Part of
// ds.hpp.
#ifndef DS_IO_HPP
#define DS_IO_HPP

#include <cstdint>
#include <memory>
#include <string>

#include "base.hpp"
#include "io.h"
#include "tensor.hpp"

namespace libds {

// Reads and writes of files that go on beside the program; see ds_io_create. Any thread may use
// one.
class Io : public detail::Handle<ds_io, ds_io_destroy> {
 public:
  using Handle::Handle;

  explicit Io(const std::string& options_json = "{}") {
    ds_io* out = nullptr;
    check(ds_io_create(options_json.c_str(), &out));
    reset(out);
  }

  ds_io_info info() const {
    ds_io_info out = DS_IO_INFO_INIT;
    check(ds_io_describe(get(), &out));
    return out;
  }

  // A tensor at an offset of a file.
  void read(const std::string& path, const Tensor& tensor, int64_t offset = 0) const {
    run(transfer_of(path, tensor, offset));
  }
  void write(const std::string& path, const Tensor& tensor, int64_t offset = 0) const {
    ds_io_transfer transfer = transfer_of(path, tensor, offset);
    transfer.write = 1;
    run(transfer);
  }
  // A tensor that is all of a file.
  void read_file(const std::string& path, const Tensor& tensor) const {
    ds_io_transfer transfer = transfer_of(path, tensor, 0);
    transfer.whole_file = 1;
    run(transfer);
  }
  void write_file(const std::string& path, const Tensor& tensor) const {
    ds_io_transfer transfer = transfer_of(path, tensor, 0);
    transfer.write = transfer.whole_file = 1;
    run(transfer);
  }
  // They go on beside the program; the memory is free when a wait for the ticket has returned.
  int64_t start_read(const std::string& path, const Tensor& tensor, int64_t offset = 0) const {
    return start(transfer_of(path, tensor, offset));
  }
  int64_t start_write(const std::string& path, const Tensor& tensor, int64_t offset = 0) const {
    ds_io_transfer transfer = transfer_of(path, tensor, offset);
    transfer.write = 1;
    return start(transfer);
  }

  void run(const ds_io_transfer& transfer) const { check(ds_io_run(get(), &transfer)); }
  int64_t start(const ds_io_transfer& transfer) const {
    int64_t ticket = 0;
    check(ds_io_start(get(), &transfer, &ticket));
    return ticket;
  }
  bool done(int64_t ticket) const {
    ds_bool out = 0;
    check(ds_io_test(get(), ticket, &out));
    return out != 0;
  }
  // Of one ticket, or of all; how many have ended.
  int64_t wait(int64_t ticket = 0) const {
    int64_t out = 0;
    check(ds_io_wait(get(), ticket, &out));
    return out;
  }
  // How many were given up.
  int64_t cancel() const {
    int64_t out = 0;
    check(ds_io_cancel(get(), &out));
    return out;
  }

  static ds_io_transfer transfer_of(const std::string& path, const Tensor& tensor, int64_t offset) {
    ds_io_transfer transfer = DS_IO_TRANSFER_INIT;
    transfer.path = path.c_str();
    transfer.tensor = tensor.get();
    transfer.offset = offset;
    return transfer;
  }
};

// Memory that stays in place; see ds_pinned_allocate.
class PinnedMemory {
 public:
  explicit PinnedMemory(int64_t size) : size_(size) {
    void* memory = nullptr;
    check(ds_pinned_allocate(size, &memory));
    memory_.reset(memory);
  }
  void* data() const noexcept { return memory_.get(); }
  int64_t size() const noexcept { return size_; }

  // Whether `size` bytes at an address lie in any such memory, a tensor's too.
  static bool contains(const void* memory, int64_t size) {
    ds_bool out = 0;
    check(ds_pinned_contains(memory, size, &out));
    return out != 0;
  }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { ds_pinned_free(memory, nullptr); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_;
};

}  // namespace libds

#endif  // DS_IO_HPP
