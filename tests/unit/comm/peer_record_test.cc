// A rank that is let in and then sends what no rank sends: the others say so and read nothing that
// is not there.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <thread>

#include "comm/group.h"
#include "comm/sockets/sockets_transport.h"
#include "unit/comm/support.h"

namespace ds::testing {
namespace {

using comm::Record;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two ranks over sockets: a group, and the bare transport of a rogue.
class Rogue : public ::testing::Test {
 protected:
  Rogue() {
    const StorePtr store = make_memory_store();
    std::unique_ptr<comm::Transport> transports[2];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        transports[rank] = comm::make_sockets_transport(
            rank, 2, "127.0.0.1", {},
            comm::gather_over_store(store, "rogue", rank, 2, std::chrono::seconds(20)),
            comm::Clock::now() + std::chrono::seconds(20));
      });
    }
    for (std::thread& thread : threads) thread.join();
    group_ = std::make_shared<comm::Group>(std::move(transports[0]), quick_options(),
                                           std::vector<int>{0, 0});
    rogue_ = std::move(transports[1]);
  }
  // What rank 0 throws when the rogue answers its call with this record and payload.
  Outcome answer(const Record& record, size_t payload,
                 const std::function<void(Communicator&)>& call) {
    Outcome outcome;
    std::thread other([&] {
      outcome_of([&] {
        comm::Deadline deadline = comm::Deadline::in(std::chrono::seconds(20));
        const std::vector<std::byte> bytes(payload, std::byte{1});
        rogue_->exchange(record, bytes, {record, deadline, std::chrono::seconds(20)});
      });
    });
    outcome = outcome_of([&] { call(*group_); });
    other.join();
    return outcome;
  }

  std::shared_ptr<comm::Group> group_;
  std::unique_ptr<comm::Transport> rogue_;
};

Record record_of(Collective kind, int64_t count, int root = -1) {
  Record record;
  record.sequence = 1;
  record.kind = kind;
  record.dtype = static_cast<uint8_t>(DType::kFloat32);
  record.count = count;
  record.root = root;
  record.flags = Record::kInline;
  return record;
}

void all_reduce(Communicator& comm) {
  comm.all_reduce(make_tensor(DType::kFloat32, 100), ReduceOp::kSum)->wait();
}

struct PayloadCase {
  const char* name;
  Record record;
  size_t payload;
  std::function<void(Communicator&)> call;
};

const std::vector<PayloadCase>& payload_cases() {
  static const auto f32 = [](int64_t n) { return make_tensor(DType::kFloat32, n); };
  static const std::vector<PayloadCase> cases = {
      {"none", record_of(Collective::kAllReduce, 100), 0, all_reduce},
      {"short", record_of(Collective::kAllReduce, 100), 399, all_reduce},
      {"long", record_of(Collective::kAllReduce, 100), 4096, all_reduce},
      {"all_gather", record_of(Collective::kAllGather, 100), 0,
       [](Communicator& c) { c.all_gather(f32(200), f32(100))->wait(); }},
      {"reduce_scatter", record_of(Collective::kReduceScatter, 100), 400,
       [](Communicator& c) { c.reduce_scatter(f32(100), f32(200), ReduceOp::kSum)->wait(); }},
      {"broadcast", record_of(Collective::kBroadcast, 100, 1), 4,
       [](Communicator& c) { c.broadcast(f32(100), 1)->wait(); }},
      {"no_root", record_of(Collective::kBroadcast, 100, 0), 400,
       [](Communicator& c) { c.broadcast(f32(100), 0)->wait(); }},
      {"scatter", record_of(Collective::kScatter, 100, 1), 400,
       [](Communicator& c) { c.scatter(f32(100), Tensor(), 1)->wait(); }},
      {"gather", record_of(Collective::kGather, 100, 0), 0,
       [](Communicator& c) { c.gather(f32(200), f32(100), 0)->wait(); }},
      {"all_to_all", record_of(Collective::kAllToAll, 50), 200,
       [](Communicator& c) { c.all_to_all(f32(100), f32(100))->wait(); }},
      {"all_to_all_v",
       [] {
         Record record = record_of(Collective::kAllToAllV, 0);
         record.flags = 0;
         return record;
       }(),
       8,
       [](Communicator& c) {
         const std::vector<int64_t> counts = {1, 1};
         c.all_to_all_v(f32(2), f32(2), counts, counts)->wait();
       }},
      {"large",
       [] {
         Record record = record_of(Collective::kAllReduce, 10000);
         record.flags = 0;
         return record;
       }(),
       16, [](Communicator& c) { c.all_reduce(f32(10000), ReduceOp::kSum)->wait(); }},
      {"barrier",
       [] {
         Record record = record_of(Collective::kBarrier, 0);
         record.flags = record.dtype = 0;
         return record;
       }(),
       16, [](Communicator& c) { c.barrier(); }},
  };
  return cases;
}

class RoguePayload : public Rogue, public ::testing::WithParamInterface<size_t> {};

TEST_P(RoguePayload, MustBeWhatTheCallSays) {
  const PayloadCase& c = payload_cases()[GetParam()];
  const Outcome outcome = answer(c.record, c.payload, c.call);
  EXPECT_EQ(outcome.code, Code::kComm);
  EXPECT_THAT(outcome.text,
              HasSubstr(str_cat("rank 1 sent ", c.payload, " bytes with its record")));
}
INSTANTIATE_TEST_SUITE_P(Sizes, RoguePayload, ::testing::Range(size_t{0}, payload_cases().size()),
                         [](const auto& param) { return payload_cases()[param.param].name; });

struct FieldCase {
  const char* name;
  void (*change)(Record&);
};
constexpr FieldCase kFields[] = {
    {"kind", [](Record& r) { r.kind = static_cast<Collective>(200); }},
    {"send", [](Record& r) { r.kind = Collective::kSend; }},
    {"op", [](Record& r) { r.op = static_cast<ReduceOp>(77); }},
    {"dtype", [](Record& r) { r.dtype = 200; }},
    {"no_dtype", [](Record& r) { r.dtype = 0; }},
    {"flags", [](Record& r) { r.flags = 0xF0; }},
    {"joined", [](Record& r) { r.flags |= Record::kJoined; }},
    {"root", [](Record& r) { r.root = 1 << 30; }},
    {"negative_root", [](Record& r) { r.root = -2; }},
    {"root_of_none", [](Record& r) { r.kind = Collective::kBroadcast; }},
    {"root_beyond",
     [](Record& r) {
       r.kind = Collective::kBroadcast;
       r.root = 2;
     }},
    {"count", [](Record& r) { r.count = -1; }},
    {"large_count", [](Record& r) { r.count = INT64_MAX / 2; }},
    {"largest", [](Record& r) { r.largest = -1; }},
    {"dims", [](Record& r) { r.dims = 100; }},
};

class RogueField : public Rogue, public ::testing::WithParamInterface<FieldCase> {};

// Rank 0 compares calls in one case, and follows that of the rogue in the other.
TEST_P(RogueField, IsChecked) {
  Record record = record_of(Collective::kAllReduce, 100);
  GetParam().change(record);
  const Outcome outcome = answer(record, 400, all_reduce);
  EXPECT_EQ(outcome.code, Code::kComm);
  EXPECT_THAT(outcome.text, HasSubstr("rank 1 sent a record that is none"));
}
TEST_P(RogueField, IsCheckedByWhoHasJoined) {
  Record record = record_of(Collective::kAllReduce, 100);
  GetParam().change(record);
  const Outcome outcome = answer(record, 400, [](Communicator& comm) { comm.join(); });
  EXPECT_EQ(outcome.code, Code::kComm);
  EXPECT_THAT(outcome.text, HasSubstr("rank 1 sent a record that is none"));
}
INSTANTIATE_TEST_SUITE_P(Fields, RogueField, ::testing::ValuesIn(kFields),
                         [](const auto& param) { return param.param.name; });

// ---- messages ----

struct MessageHeader {
  uint64_t magic = 0x6D657373616765ull;
  int64_t tag;
  int64_t bytes;
};

void write_all(comm::Transport& transport, const void* data, int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const int64_t n = transport.write_some(0, at, bytes);
    at += n;
    bytes -= n;
  }
}

int64_t peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Memory for a message that nobody has asked for yet is taken as it arrives.
TEST_F(Rogue, AMessageThatIsOnlyAnnouncedTakesNoMemory) {
  const int64_t before = peak_kib();
  const MessageHeader header{.tag = 2, .bytes = int64_t{3} << 30};
  const std::vector<std::byte> some(1000);
  write_all(*rogue_, &header, sizeof(header));
  write_all(*rogue_, some.data(), std::ssize(some));
  const Tensor t = make_tensor(DType::kFloat32, 10);
  const Outcome outcome = outcome_of(
      [&] { group_->recv(t, 1, 1, {.deadline = std::chrono::milliseconds(300)})->wait(); });
  EXPECT_THAT(outcome.text, HasSubstr("rank 1 did not arrive"));
  EXPECT_LT(peak_kib() - before, 256 << 10);
}

TEST_F(Rogue, ALargeMessageThatComesEarlyIsKeptWhole) {
  std::vector<int32_t> sent((5 << 20) + 3);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<int32_t>(i * 2654435761u);
  const auto bytes = static_cast<int64_t>(sent.size() * sizeof(int32_t));
  std::thread other([&] {
    const MessageHeader early{.tag = 2, .bytes = bytes}, wanted{.tag = 1, .bytes = 4};
    write_all(*rogue_, &early, sizeof(early));
    write_all(*rogue_, sent.data(), bytes);
    write_all(*rogue_, &wanted, sizeof(wanted));
    write_all(*rogue_, sent.data(), 4);
  });
  const Tensor first = make_tensor(DType::kInt32, 1);
  const Tensor second = make_tensor(DType::kInt32, std::ssize(sent));
  const Outcome outcome = outcome_of([&] {
    group_->recv(first, 1, 1)->wait();
    group_->recv(second, 1, 2)->wait();
  });
  other.join();
  EXPECT_EQ(outcome.code, Code::kOk) << outcome.text;
  EXPECT_EQ(std::memcmp(second.raw(), sent.data(), static_cast<size_t>(bytes)), 0);
}

// What a peer says reaches no terminal as it is.
TEST_F(Rogue, TextsOfPeersAreMadeSafe) {
  rogue_->raise(Code::kComm, "\x1B]0;title\x07\x1B[2J first\nsecond \xFF");
  const Outcome outcome = outcome_of([&] { all_reduce(*group_); });
  EXPECT_EQ(outcome.code, Code::kComm);
  EXPECT_THAT(outcome.text, HasSubstr("\\x1b]0;title\\x07\\x1b[2J first\nsecond \\xff"));
  EXPECT_THAT(outcome.text, Not(AnyOf(HasSubstr("\x1B"), HasSubstr("\x07"))));
}

// ---- time in which this process was stopped ----

TEST(Deadline, TimeOfAStoppedProcessDoesNotCount) {
  using std::chrono::seconds;
  const auto now = comm::Clock::now();
  comm::Deadline stopped{now + seconds(1), now - seconds(30)};
  stopped.look();
  EXPECT_GE(stopped.at, now + seconds(31));
  const auto once = stopped.at;
  stopped.look();  // it is noticed once
  EXPECT_EQ(stopped.at, once);
  comm::Deadline slept{now + seconds(1), now - std::chrono::milliseconds(500)};
  slept.look();
  EXPECT_EQ(slept.at, now + seconds(1));
}

}  // namespace
}  // namespace ds::testing
