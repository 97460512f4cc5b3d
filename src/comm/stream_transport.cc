// Waiting for streams, messages, and how failures are sent over byte streams.
#include "comm/stream_transport.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace ds::comm {
namespace {

// What control connections carry: frames of a code and that many bytes. The code of a failure is
// that of its error.
struct Frame {
  int32_t code;
  uint32_t bytes;
};
constexpr size_t kMostBytes = 2048;
constexpr int32_t kQuestion = -1, kAnswer = -2;  // see WaitingRanks
// Two ranks know whom each waits for, and answers must fit into a frame.
constexpr int kFewestRanksAsked = 3;
constexpr int kMostRanksAsked = 8 * (static_cast<int>(kMostBytes) - 64);

std::string frame_of(int32_t code, std::string_view bytes) {
  const Frame frame{code, static_cast<uint32_t>(bytes.size())};
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)) + std::string(bytes);
}

// How long answers are waited for beyond a deadline.
std::chrono::milliseconds time_for_answers(const Watch& watch) {
  return std::clamp<std::chrono::milliseconds>(watch.allowed / 8, std::chrono::milliseconds(100),
                                               std::chrono::seconds(1));
}

}  // namespace

StreamTransport::StreamTransport(int rank, int size)
    : Transport(rank, size),
      heard_(static_cast<size_t>(size)),
      blocked_(static_cast<size_t>(size)),
      control_closed_(static_cast<size_t>(size)),
      control_in_(static_cast<size_t>(size)),
      waiting_(rank, size) {}

Tensor StreamTransport::shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                      const Shape& shape, MemoryTag tag, const GatherTexts&) {
  return Tensor::zeros(device, dtype, shape, tag);
}

// ---- waiting ----

void StreamTransport::await(std::span<const int> readable, std::span<const int> writable,
                            Channel channel, const Watch& watch) {
  const auto end = waiting_.asking() ? waiting_.until() : watch.end();
  const bool ready = wait_for_links(readable, writable, channel, end);
  watch.slept();
  const std::span<const int> late = readable.empty() ? writable : readable;
  hear_peers(late);
  const auto now = Clock::now();
  if (now < watch.end()) waiting_.stop_asking();
  if (ready || now < watch.end()) return;
  const bool can_ask = size() >= kFewestRanksAsked && size() <= kMostRanksAsked;
  if (can_ask && !waiting_.asking()) {
    const std::string question = waiting_.ask(now + time_for_answers(watch));
    for (int peer = 0; peer < size(); ++peer) send_control(peer, kQuestion, question);
  }
  if (waiting_.asking() && now < waiting_.until()) return;
  fail(Code::kComm, watch.what(), ": ", rank_list(waiting_.to_blame(late)),
       " did not arrive within ", format_number(static_cast<double>(watch.allowed.count()) / 1000),
       " s; ", rank_states());
}

void StreamTransport::hear_peers(std::span<const int> awaited) {
  hear_control();
  check_raised();
  if (!waiting_.asked()) return;
  for (const auto& [peer, bytes] : waiting_.answer(awaited)) send_control(peer, kAnswer, bytes);
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
    const std::string_view cut = text.substr(0, kMostBytes - 100);
    const std::string told = code == Code::kAborted ? str_cat("rank ", rank(), " aborted the group",
                                                              cut.empty() ? "" : ": ", cut)
                                                    : str_cat(cut, " (found by rank ", rank(), ")");
    raise_here(code, std::string(text));
    for (int peer = 0; peer < size(); ++peer) send_control(peer, static_cast<int32_t>(code), told);
  } catch (...) {  // no memory for the text: peers see the connections close
    raise_here(code, {});
  }
}

void StreamTransport::send_control(int peer, int32_t code, std::string_view bytes) {
  if (peer == rank()) return;
  const std::string frame = frame_of(code, bytes);
  const std::lock_guard lock(control_mutex_);
  // The connection carries little else: so little always fits.
  send_some(kControl, peer, frame.data(), static_cast<int64_t>(frame.size()));
}

void StreamTransport::check_raised() const {
  if (!raised_) return;
  const std::lock_guard lock(raised_mutex_);
  throw Error(raised_code_, raised_text_);
}

void StreamTransport::hear_control() {
  for (int peer = 0; peer < size() && !raised_; ++peer) {
    const auto i = static_cast<size_t>(peer);
    if (peer == rank() || control_closed_[i]) continue;
    std::string& in = control_in_[i];
    char buffer[512];
    while (!control_closed_[i]) {
      const int64_t n = receive_some(kControl, peer, buffer, sizeof(buffer));
      if (n < 0) control_closed_[i] = 1;
      if (n <= 0) break;
      in.append(buffer, static_cast<size_t>(n));
      hear_frames(peer);
    }
  }
}

// Takes the frames that are complete.
void StreamTransport::hear_frames(int peer) {
  const auto i = static_cast<size_t>(peer);
  std::string& in = control_in_[i];
  Frame frame;
  while (in.size() >= sizeof(frame)) {
    std::memcpy(&frame, in.data(), sizeof(frame));
    if (frame.bytes > kMostBytes) {  // no frame of ours
      control_closed_[i] = 1;
      return;
    }
    if (in.size() < sizeof(frame) + frame.bytes) return;
    const std::string bytes = in.substr(sizeof(frame), frame.bytes);
    in.erase(0, sizeof(frame) + frame.bytes);
    if (frame.code == kQuestion) {
      waiting_.hear_question(peer, bytes);
    } else if (frame.code == kAnswer) {
      waiting_.hear_answer(peer, bytes);
    } else {
      const auto code = static_cast<Code>(frame.code);
      return raise_here(code == Code::kAborted ? code : Code::kComm, peer_text(bytes));
    }
  }
}

}  // namespace ds::comm
