// What the devices whose memory the host reads share: work runs at once on the calling thread.
#pragma once

#include <cstring>

#include "device/device.h"

namespace ds {

class HostEvent : public Event {
 public:
  bool ready() const override { return true; }
  void synchronize() override {}
};

class HostStream : public Stream {
 public:
  void* native() const noexcept override { return nullptr; }
  void synchronize() override {}
  std::unique_ptr<Event> record() override { return std::make_unique<HostEvent>(); }
  void wait(const Event&) override {}
};

class HostDevice : public Device {
 public:
  // `there`: its memory is the process's, and counted as that.
  explicit HostDevice(bool there = true) {
    if (there) account_.count_in(process_account(/*gpu=*/false));
  }
  DeviceKind kind() const noexcept override { return DeviceKind::kCpu; }
  int index() const noexcept override { return 0; }

  Stream& default_stream() override { return stream_; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<HostStream>(); }
  void copy(void* target, const void* source, int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
  }
  void clear(void* target, int64_t bytes, Stream&) override {
    if (bytes > 0) std::memset(target, 0, static_cast<size_t>(bytes));
  }

 private:
  HostStream stream_;
};

}  // namespace ds
