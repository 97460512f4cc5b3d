// Waiting for streams, messages, and how failures are sent over byte streams.
#include "comm/stream_transport.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace ds::comm {
namespace {

struct FailureFrame {
  int32_t code;
  uint32_t bytes;
};
constexpr size_t kMostFailure = 2048;

}  // namespace

StreamTransport::StreamTransport(int rank, int size)
    : Transport(rank, size),
      heard_(static_cast<size_t>(size)),
      blocked_(static_cast<size_t>(size)),
      control_closed_(static_cast<size_t>(size)),
      control_in_(static_cast<size_t>(size)) {}

Tensor StreamTransport::shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                      const Shape& shape, MemoryTag tag, const GatherTexts&) {
  return Tensor::zeros(device, dtype, shape, tag);
}

// ---- waiting ----

void StreamTransport::await(std::span<const int> readable, std::span<const int> writable,
                            Channel channel, const Watch& watch) {
  const bool ready = wait_for_links(readable, writable, channel, watch.end());
  watch.slept();
  hear_control();
  check_raised();
  if (ready || Clock::now() < watch.end()) return;
  std::vector<int> late(readable.begin(), readable.end());
  if (late.empty()) late.assign(writable.begin(), writable.end());
  std::ranges::sort(late);
  fail(Code::kComm, watch.what(), ": ", rank_list(late), " did not arrive within ",
       format_number(static_cast<double>(watch.allowed.count()) / 1000), " s; ", rank_states());
}

void StreamTransport::fail_lost(int peer, const Watch& watch) {
  hear_control();
  check_raised();  // it may have said why
  fail(Code::kComm, watch.what(), ": rank ", peer,
       " has closed its connection: its process ended or its communicator is gone; ",
       rank_states());
}

// What was last heard of each rank.
std::string StreamTransport::rank_states() const {
  std::vector<std::string> parts;
  constexpr int kMost = 16;
  for (int peer = 0; peer < size() && peer < kMost; ++peer) {
    if (peer == rank()) continue;
    const Heard& heard = heard_[static_cast<size_t>(peer)];
    const Record& last =
        heard.records[0].sequence > heard.records[1].sequence ? heard.records[0] : heard.records[1];
    parts.push_back(last.sequence == 0 ? str_cat("rank ", peer, " has not been heard yet")
                                       : str_cat("rank ", peer, " was last heard in operation ",
                                                 last.sequence, ", ", describe(last)));
  }
  if (size() > kMost) parts.push_back(str_cat("and ", size() - kMost, " more ranks"));
  return join(parts, "; ");
}

// ---- streams ----

int64_t StreamTransport::write_some(int peer, const std::byte* data, int64_t bytes) {
  if (bytes == 0) return 0;
  const int64_t n = send_some(kStream, peer, data, bytes);
  blocked_[static_cast<size_t>(peer)] = n < bytes ? 1 : 0;
  if (n < 0) {
    hear_control();
    check_raised();
    fail(Code::kComm, "a message to rank ", peer,
         ": it has closed its connection: its process ended or its communicator is gone");
  }
  return n;
}

int64_t StreamTransport::read_some(int peer, std::byte* data, int64_t bytes) {
  if (bytes == 0) return 0;
  const int64_t n = receive_some(kStream, peer, data, bytes);
  if (n < 0) {
    hear_control();
    check_raised();
    fail(Code::kComm, "a message from rank ", peer,
         ": it has closed its connection: its process ended or its communicator is gone");
  }
  return n;
}

void StreamTransport::wait_for_streams(std::span<const int> peers, const Watch& watch) {
  std::vector<int> writable;
  for (const int peer : peers) {
    if (blocked_[static_cast<size_t>(peer)]) writable.push_back(peer);
  }
  await(peers, writable, kStream, watch);
}

// ---- failures ----

void StreamTransport::raise_here(Code code, std::string text) noexcept {
  {
    const std::lock_guard lock(raised_mutex_);
    if (raised_) return;
    raised_code_ = code;
    raised_text_ = std::move(text);
    raised_ = true;
  }
  wake();
}

void StreamTransport::raise(Code code, std::string_view text) noexcept {
  if (raised_) return;
  try {
    const std::string_view cut = text.substr(0, kMostFailure - 100);
    const std::string told = code == Code::kAborted ? str_cat("rank ", rank(), " aborted the group",
                                                              cut.empty() ? "" : ": ", cut)
                                                    : str_cat(cut, " (found by rank ", rank(), ")");
    const FailureFrame frame{static_cast<int32_t>(code), static_cast<uint32_t>(told.size())};
    std::string bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
    bytes += told;
    raise_here(code, std::string(text));
    const std::lock_guard lock(control_mutex_);
    for (int peer = 0; peer < size(); ++peer) {
      // The connection carries nothing else: so little always fits.
      if (peer != rank()) {
        send_some(kControl, peer, bytes.data(), static_cast<int64_t>(bytes.size()));
      }
    }
  } catch (...) {  // no memory for the text: peers see the connections close
    raise_here(code, {});
  }
}

void StreamTransport::check_raised() const {
  if (!raised_) return;
  const std::lock_guard lock(raised_mutex_);
  throw Error(raised_code_, raised_text_);
}

void StreamTransport::hear_control() {
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    if (peer == rank() || control_closed_[i]) continue;
    std::string& in = control_in_[i];
    char buffer[512];
    while (true) {
      const int64_t n = receive_some(kControl, peer, buffer, sizeof(buffer));
      if (n < 0) control_closed_[i] = 1;
      if (n <= 0) break;
      in.append(buffer, static_cast<size_t>(n));
      if (in.size() > sizeof(FailureFrame) + kMostFailure) {
        control_closed_[i] = 1;
        break;
      }
    }
    FailureFrame frame;
    if (in.size() < sizeof(frame)) continue;
    std::memcpy(&frame, in.data(), sizeof(frame));
    if (frame.bytes > kMostFailure || in.size() < sizeof(frame) + frame.bytes) continue;
    const auto code = static_cast<Code>(frame.code);
    raise_here(code == Code::kAborted ? code : Code::kComm,
               peer_text(in.substr(sizeof(frame), frame.bytes)));
    return;
  }
}

}  // namespace ds::comm
