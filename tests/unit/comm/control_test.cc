// What arrives on the control connections of a rank that waits: whole frames, pieces of them,
// several at once, and what is no frame.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "comm/stream_transport.h"
#include "unit/comm/support.h"

namespace ds::testing {
namespace {

using comm::Channel;
using ::testing::HasSubstr;

std::string frame(int32_t code, const std::string& bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  std::string text(sizeof(code) + sizeof(size), '\0');
  std::memcpy(text.data(), &code, sizeof(code));
  std::memcpy(text.data() + sizeof(code), &size, sizeof(size));
  return text + bytes;
}
std::string number(uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
constexpr int32_t kQuestion = -1, kAnswer = -2;

// Rank 0 of four. Nothing comes but what a test puts on the control connections.
class Lonely : public comm::StreamTransport {
 public:
  Lonely() : StreamTransport(0, 4) {}
  const char* name() const noexcept override { return "lonely"; }
  void wake() noexcept override {}
  std::unique_ptr<Transport> split(const std::vector<int>&, const comm::GatherTexts&,
                                   const comm::Watch&) override {
    return nullptr;
  }

  std::map<int, std::string> comes, sent;   // on control connections, by peer
  std::function<std::string(int)> answers;  // of a peer that was asked
  size_t piece = 512;

 protected:
  int64_t send_some(Channel channel, int peer, const void* data, int64_t bytes) override {
    if (channel != comm::kControl) return 0;
    sent[peer].append(static_cast<const char*>(data), static_cast<size_t>(bytes));
    if (answers) comes[peer] += answers(peer);
    return bytes;
  }
  int64_t receive_some(Channel channel, int peer, void* data, int64_t bytes) override {
    if (channel != comm::kControl) return 0;
    std::string& text = comes[peer];
    const size_t n = std::min({text.size(), piece, static_cast<size_t>(bytes)});
    std::memcpy(data, text.data(), n);
    text.erase(0, n);
    return static_cast<int64_t>(n);
  }
  bool wait_for_links(std::span<const int>, std::span<const int>, Channel,
                      comm::Clock::time_point) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  }
};

// What rank 0 throws that waits for these ranks.
Outcome waits_for(Lonely& rank, const std::vector<int>& awaited) {
  return outcome_of([&] {
    comm::Record record;
    record.sequence = 7;
    constexpr std::chrono::milliseconds kAllowed{30};
    comm::Deadline deadline = comm::Deadline::in(kAllowed);
    while (true) rank.wait_for_streams(awaited, {record, deadline, kAllowed});
  });
}

TEST(Control, TheRankThatOthersWaitForIsNamed) {
  Lonely rank;
  // Rank 1 waits for rank 2, and rank 3 for both; whichever question this is.
  rank.answers = [](int peer) {
    const std::string bits(1, static_cast<char>(peer == 1 ? 0b100 : 0b110));
    return peer == 2 ? std::string() : frame(kAnswer, number(1) + bits);
  };
  const Outcome outcome = waits_for(rank, {1, 3});
  EXPECT_EQ(outcome.code, Code::kComm);
  EXPECT_THAT(outcome.text, HasSubstr(": rank 2 did not arrive within 0.03 s"));
  for (const int peer : {1, 2, 3}) EXPECT_EQ(rank.sent[peer], frame(kQuestion, number(1)));
}

TEST(Control, ARankThatWaitsAnswers) {
  Lonely rank;
  rank.comes[3] = frame(kQuestion, number(5));
  waits_for(rank, {1, 2});
  EXPECT_EQ(rank.sent[3],
            frame(kAnswer, number(5) + std::string(1, 0b110)) + frame(kQuestion, number(1)));
  EXPECT_EQ(rank.sent[1], frame(kQuestion, number(1)));
}

TEST(Control, FramesComeInPiecesAndTogether) {
  const std::string frames = frame(kQuestion, number(5)) + frame(kAnswer, number(1) + '\0') +
                             frame(static_cast<int32_t>(Code::kAborted), "enough");
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{512}}) {
    Lonely rank;
    rank.piece = piece;
    rank.comes[2] = frames;
    const Outcome outcome = waits_for(rank, {1});
    EXPECT_EQ(outcome.code, Code::kAborted);
    EXPECT_EQ(outcome.text, "enough");
  }
}

TEST(Control, WhatIsNoFrameEndsThatConnectionAlone) {
  for (const std::string& bad :
       {frame(kAnswer, std::string(2049, 'x')), std::string(600, '\xff'), frame(kAnswer, "short"),
        frame(kQuestion, ""), std::string("abc")}) {
    Lonely rank;
    rank.comes[1] = bad;
    const Outcome outcome = waits_for(rank, {1, 2});
    EXPECT_EQ(outcome.code, Code::kComm);
    EXPECT_THAT(outcome.text, HasSubstr(": ranks 1, 2 did not arrive"));
  }
  Lonely rank;
  rank.comes[1] = std::string(600, '\xff');
  rank.comes[2] = frame(static_cast<int32_t>(Code::kComm), "rank 3 is gone");
  EXPECT_EQ(waits_for(rank, {1}).text, "rank 3 is gone");
}

}  // namespace
}  // namespace ds::testing
