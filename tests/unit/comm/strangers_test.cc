// Who does not know the secret of a job at the ports of its ranks: whatever they send, they get
// nothing, and the ranks that belong there are served.
#include <gmock/gmock.h>

#include <random>
#include <thread>

#include "comm/sockets/mesh.h"
#include "comm/sockets/sockets_transport.h"
#include "fresh_seed.h"
#include "unit/base/expect_error.h"
#include "unit/comm/support.h"
#include "unit/comm/wire.h"

namespace ds::testing {
namespace {

using ::testing::HasSubstr;
using namespace comm::store_wire;  // NOLINT: the words of the protocol

const comm::JobSecret kSecret("a secret of this test"), kOther("a secret of another test");
const comm::StoreJob kJob{"job", 2, kSecret};

StorePtr client(int port, int rank, const comm::StoreJob& job = kJob, int ms = 20000) {
  std::string address;
  return comm::connect_store(loopback(port), job, rank, std::chrono::milliseconds(ms), &address);
}

// The ranks meet and are served.
void expect_service(int port) {
  const StorePtr a = client(port, 0), b = client(port, 1);
  const std::string key = str_cat(comm::Clock::now().time_since_epoch().count(), "/0");
  a->put(key, "value");
  EXPECT_EQ(b->get(key, std::chrono::seconds(20)), "value");
}

TEST(Strangers, OneSecretOrNoMeeting) {
  const comm::TcpStoreServer server(loopback(0), kJob);
  for (const comm::JobSecret& secret : {kOther, comm::JobSecret()}) {
    expect_error(Code::kComm, {"does not know the secret of this job", "DS_JOB_TOKEN"}, [&] {
      client(server.port(), 1, {"job", 2, secret}, 300);
    });
  }
  // World and rank of a stranger are no reason to tell it more.
  const StoreWire stranger(server.port(), {"job", 3, kOther}, 1);
  EXPECT_EQ(stranger.welcome.status, kOtherSecret);
  EXPECT_EQ(stranger.welcome.world, 0);
  EXPECT_TRUE(stranger.ended());
  expect_service(server.port());
}

TEST(Strangers, AServerWithoutTheSecretGetsNothing) {
  const comm::TcpStoreServer server(loopback(0), {"job", 2, kOther});
  expect_error(Code::kComm, {"does not know the secret of this job"},
               [&] { client(server.port(), 1, kJob, 300); });
}

// What a rank has said once opens nothing the second time.
TEST(Strangers, ReplayedSessionsAreRefused) {
  const comm::TcpStoreServer server(loopback(0), kJob);
  comm::store_wire::Hello hello;
  comm::Proof proof;
  std::string put;
  {
    StoreWire rank(server.port(), kJob, 1);
    ASSERT_EQ(rank.welcome.status, kFine);
    hello = rank.hello;
    proof = rank.proof;
    put = rank.request(kPut, "replayed/1", "value");
    rank.say(put);
    Reply reply{};
    ASSERT_TRUE(rank.hear(reply));
    EXPECT_EQ(reply.status, kFine);
    comm::Proof answer;
    ASSERT_TRUE(rank.hear(answer));
    EXPECT_EQ(answer, rank.session->reply_proof(comm::bytes_of(reply)));
    rank.say(put);  // the same request again
    EXPECT_TRUE(rank.ended());
  }
  const Wire stranger(server.port());
  stranger.say_value(hello);
  stranger.say_value(proof);
  Challenge challenge{};
  Welcome welcome{};
  ASSERT_TRUE(stranger.hear(challenge));
  ASSERT_TRUE(stranger.hear(welcome));
  EXPECT_EQ(welcome.status, kOtherSecret);
  EXPECT_TRUE(stranger.ended());
  expect_service(server.port());
}

// No code that one side makes is one that it accepts, or that stands for anything else.
TEST(Strangers, ReflectedProofsAreRefused) {
  const comm::StoreJob name = {"jobs", 2, kSecret};
  const Hello hello{kMagic, job_hash("job"), 1, 2, comm::new_nonce()};
  Hello as_0 = hello, again = hello;
  as_0.rank = 0;
  again.nonce = comm::new_nonce();
  const Challenge challenge{kMagic, kFine, 0, comm::new_nonce()};
  Challenge fresh = challenge;
  fresh.nonce = comm::new_nonce();
  Session session(kJob, hello, challenge);
  std::vector<comm::Proof> proofs = {session.client_proof(),
                                     session.welcome_proof(kFine, 2),
                                     session.welcome_proof(kTwice, 2),
                                     session.welcome_proof(kFine, 3),
                                     session.request_proof("x"),
                                     session.request_proof("x"),
                                     session.reply_proof("x"),
                                     session.reply_proof("x"),
                                     Session(name, hello, challenge).client_proof(),
                                     Session(kJob, as_0, challenge).client_proof(),
                                     Session(kJob, again, challenge).client_proof(),
                                     Session(kJob, hello, fresh).client_proof(),
                                     Session({"job", 2, kOther}, hello, challenge).client_proof()};
  for (size_t i = 0; i < proofs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(proofs[i], proofs[j]) << i << " " << j;
  }
}

TEST(Strangers, WhateverTheySendDisturbsNobody) {
  const comm::TcpStoreServer server(loopback(0), kJob);
  std::mt19937_64 random(ds::run_seed());
  const auto text = [](const auto&... values) {
    std::string bytes;
    ((bytes += comm::bytes_of(values)), ...);
    return bytes;
  };
  std::vector<Wire> open;
  for (int i = 0; i < 90; ++i) {
    Wire wire(server.port());
    const Hello hello{kMagic, job_hash("job"), 1, 2, comm::new_nonce()};
    std::string noise(200, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    switch (i % 9) {
      case 0:
        wire.say(noise);
        break;
      case 1:  // nothing
        break;
      case 2:  // half a greeting
        wire.say_value(kMagic);
        break;
      case 3:  // a rank that is none, and no proof
        wire.say_value(Hello{kMagic, job_hash("job"), 77, 2, {}});
        break;
      case 4:  // another job, with a huge request behind
        wire.say(
            text(Hello{kMagic, job_hash("x"), 0, 2, {}}, Request{kPut, 0xFFFFFFFF, 0xFFFFFFFF, 0}));
        break;
      case 5:  // a request instead of a proof
        wire.say(text(hello, Request{kPut, 10, 0x7FFFFFFF, 0}) + noise);
        break;
      case 6:  // half a proof
        wire.say(text(hello) + noise.substr(0, 16));
        break;
      case 7:  // cut short
        wire.say(text(hello).substr(0, 40));
        continue;
      case 8:
        wire.say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        EXPECT_TRUE(wire.ended());
        continue;
    }
    open.push_back(std::move(wire));
  }
  expect_service(server.port());
}

// More of them than there are places: those who say nothing go, the ranks come in.
TEST(Strangers, CrowdsKeepNobodyOut) {
  const comm::TcpStoreServer server(loopback(0), kJob);
  std::vector<Wire> idle, greeting;
  for (int i = 0; i < 200; ++i) idle.emplace_back(server.port());
  for (int i = 0; i < 100; ++i) {
    greeting.emplace_back(server.port());
    greeting.back().say_value(Hello{kMagic, job_hash("job"), 1, 2, {}});
  }
  expect_service(server.port());
  EXPECT_TRUE(idle.front().ended());
  EXPECT_TRUE(greeting.front().ended());
}

TEST(Strangers, ARankWritesItsOwnKeysOnceAndNotWithoutEnd) {
  const comm::TcpStoreServer server(loopback(0), kJob);
  const StorePtr a = client(server.port(), 0), b = client(server.port(), 1);
  for (const char* key : {"round/0", "round", "round/11", "1"}) {
    expect_error(Code::kComm, {"refused the key", key}, [&] { b->put(key, "x"); });
  }
  b->put("round/1", "mine");
  expect_error(Code::kComm, {"refused the key"}, [&] { b->put("round/1", "again"); });
  expect_error(Code::kComm, {"refused the key"}, [&] { a->put("round/1", "not mine"); });
  EXPECT_EQ(a->get("round/1", std::chrono::seconds(20)), "mine");
  expect_error(Code::kComm, {"is full"}, [&] {
    for (int i = 0; i < 1000; ++i) b->put(str_cat(i, "/1"), std::string(1000, 'x'));
  });
  a->put("round/0", "rank 0 is served");
  EXPECT_EQ(b->get("round/0", std::chrono::seconds(20)), "rank 0 is served");
}

TEST(Strangers, RequestsThatLieEndTheConnection) {
  const comm::TcpStoreServer server(loopback(0), kJob);
  for (const Request& request : {Request{kPut, 10, 0x7FFFFFFF, 0}, Request{kPut, 0xFFFFFFFF, 1, 0},
                                 Request{kGet, 10, 1, 0}, Request{7, 1, 1, 0}}) {
    const StoreWire rank(server.port(), kJob, 1);
    EXPECT_EQ(rank.welcome.status, kFine);
    rank.say_value(request);
    EXPECT_TRUE(rank.ended());
  }
  StoreWire rank(server.port(), kJob, 1);
  std::string changed = rank.request(kPut, "key/1", "value");
  changed[sizeof(Request)] = 'K';
  rank.say(changed);
  EXPECT_TRUE(rank.ended());
  expect_service(server.port());
}

// ---- the mesh ----

struct MeshOfThree {
  std::vector<comm::Socket> listeners;
  std::vector<comm::MeshEntry> entries;
  MeshOfThree() {
    for (int rank = 0; rank < 3; ++rank) {
      listeners.push_back(comm::listen_on("127.0.0.1", 0));
      entries.push_back({"127.0.0.1", listeners.back().local_port(), rank == 0 ? 42u : 7u});
    }
  }
  // The errors of the ranks, whose connections are kept.
  std::vector<Outcome> connect(const std::vector<comm::JobSecret>& secrets, int ms) {
    std::vector<Outcome> outcomes(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const auto i = static_cast<size_t>(rank);
        outcomes[i] = outcome_of([&] {
          meshes[i] = comm::connect_mesh(rank, listeners[i], entries, secrets[i],
                                         comm::Clock::now() + std::chrono::milliseconds(ms));
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }
  std::vector<comm::Mesh> meshes = std::vector<comm::Mesh>(3);
};

TEST(StrangersOfTheMesh, WhateverTheySendTheRanksConnect) {
  namespace wire = comm::mesh_wire;
  MeshOfThree three;
  const auto hello = [](uint32_t rank, uint32_t channel) {
    return wire::Hello{wire::kMagic, rank, channel, comm::new_nonce()};
  };
  std::vector<std::thread> strangers;
  for (const comm::MeshEntry& entry : three.entries) {
    for (uint32_t i = 0; i < 8; ++i) {
      strangers.emplace_back([&, i] {
        // The ranks may have met before a stranger comes.
        const Wire stranger(entry.port, true);
        if (i == 0) return stranger.say(std::string(500, 'x'));
        if (i == 1) return;
        stranger.say_value(hello(i == 2 ? 99 : 2, i == 3 ? 99 : i % comm::kChannels));
        wire::Answer answer{};
        if (i < 4 || !stranger.hear(answer)) return;
        stranger.say_value(answer.proof);  // its own code back
        EXPECT_TRUE(stranger.ended());
      });
    }
  }
  for (const Outcome& outcome : three.connect({kSecret, kSecret, kSecret}, 20000)) {
    EXPECT_EQ(outcome.code, Code::kOk) << outcome.text;
  }
  three.listeners.clear();
  for (std::thread& stranger : strangers) stranger.join();
  // Each connection ends where it should.
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      for (uint32_t channel = 0; channel < comm::kChannels && from != to; ++channel) {
        const auto link = [&](int a, int b) -> const comm::Socket& {
          return three.meshes[static_cast<size_t>(a)].links[channel][static_cast<size_t>(b)];
        };
        const int said = 100 * from + 10 * to + static_cast<int>(channel);
        int heard = 0;
        ASSERT_TRUE(link(from, to).send_all(&said, sizeof(said), soon()));
        ASSERT_TRUE(link(to, from).receive_all(&heard, sizeof(heard), soon()));
        EXPECT_EQ(heard, said);
      }
    }
  }
}

TEST(StrangersOfTheMesh, ARankWithoutTheSecretIsNamed) {
  MeshOfThree three;
  const auto outcomes = three.connect({kSecret, kSecret, kOther}, 500);
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 2 did not connect to rank 0"));
  EXPECT_THAT(outcomes[1].text, HasSubstr("rank 2 did not connect to rank 1"));
  EXPECT_THAT(outcomes[2].text, HasSubstr("does not know the secret of this job"));
}

// Whole groups, over both transports.
TEST(StrangersOfTheMesh, GroupsWithASecretWork) {
  for (const TransportKind kind : {TransportKind::kSockets, TransportKind::kAuto}) {
    CommOptions options = quick_options();
    options.transport = kind;
    options.job_token = "0123456789abcdef";
    options.master_addr = "127.0.0.1";
    options.master_port = comm::listen_on("127.0.0.1", 0).local_port();
    World world(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const Outcome outcome = outcome_of([&] {
          world[static_cast<size_t>(rank)] = make_communicator(rank, 3, options, nullptr, {});
        });
        EXPECT_EQ(outcome.code, Code::kOk) << outcome.text;
      });
    }
    for (std::thread& thread : threads) thread.join();
    expect_ok(run_ranks(world, [](Communicator& comm) {
      const CommPtr part = comm.split(comm.rank() % 2, 0);
      part->barrier();
      comm.barrier();
    }));
  }
}

}  // namespace
}  // namespace ds::testing
