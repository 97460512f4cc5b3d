#include <algorithm>
#include <cstring>
#include <thread>

#include "comm/sockets/socket.h"
#include "comm/sockets/tcp_store.h"

namespace ds::comm {
namespace {

using namespace store_wire;  // NOLINT: the words of this protocol
using std::chrono::milliseconds;

class TcpStore : public Store {
 public:
  TcpStore(Socket socket, Session session)
      : socket_(std::move(socket)), session_(std::move(session)) {}

  void put(const std::string& key, std::string_view value) override {
    DS_CHECK(key.size() <= kMostKey && value.size() <= kMostValue, Code::kInvalidArgument,
             "a store takes keys of ", kMostKey, " and values of ", kMostValue, " bytes");
    Status status;
    ask(kPut, key, value, milliseconds(0), status);
    DS_CHECK(status != kNotYours, Code::kComm, "the store of rank 0 refused the key ",
             printable(key), ": it is there already, or not this rank's");
    DS_CHECK(status == kFine, Code::kComm, "the store of rank 0 is full");
  }
  std::optional<std::string> get(const std::string& key, milliseconds timeout) override {
    Status status;
    std::string value = ask(kGet, key, "", timeout, status);
    if (status == kTimeout) return {};
    DS_CHECK(status == kFine, Code::kComm, "the store of rank 0 refused to answer");
    return value;
  }

 private:
  std::string ask(Operation operation, const std::string& key, std::string_view value,
                  milliseconds timeout, Status& status) {
    const auto ms = static_cast<uint32_t>(std::clamp<int64_t>(timeout.count(), 0, INT32_MAX));
    const Request request{operation, static_cast<uint32_t>(key.size()),
                          static_cast<uint32_t>(value.size()), ms};
    std::string message(bytes_of(request));
    message += key;
    message += value;
    const Proof sent = session_.request_proof(message);
    message += bytes_of(sent);
    constexpr milliseconds kGrace{30000};  // for an answer on its way
    const auto deadline = Clock::now() + milliseconds(ms) + kGrace;
    Reply reply{};
    Proof proof{};
    bool fine = socket_.send_all(message.data(), message.size(), deadline) &&
                socket_.receive_all(&reply, sizeof(reply), deadline) &&
                reply.value_bytes <= kMostValue;
    std::string answer(bytes_of(reply));
    answer.resize(sizeof(reply) + (fine ? reply.value_bytes : 0));
    fine = fine &&
           socket_.receive_all(answer.data() + sizeof(reply), reply.value_bytes, deadline) &&
           socket_.receive_all(&proof, sizeof(proof), deadline);
    DS_CHECK(fine, Code::kComm, "rank 0 ended the rendezvous: its store does not answer any more");
    DS_CHECK(same_proof(proof, session_.reply_proof(answer)), Code::kComm,
             "somebody changed what rank 0 said on its way: the reply of its store does not carry "
             "the code of this job");
    status = static_cast<Status>(reply.status);
    return answer.substr(sizeof(reply));
  }

  const Socket socket_;
  Session session_;
};

// One attempt at one port: the store, or nothing with the reason in `why`.
StorePtr attempt(const std::string& host, int port, const StoreJob& job, int rank,
                 Clock::time_point end, std::string* local_address, std::string& why) {
  std::string failure;
  std::optional<Socket> socket = connect_to(host, port, end, &failure);
  if (!socket) {
    why = failure;
    return nullptr;
  }
  const store_wire::Hello hello{store_wire::kMagic, job_hash(job.name), rank, job.world,
                                new_nonce()};
  Challenge challenge{};
  if (!socket->send_all(&hello, sizeof(hello), end) ||
      !socket->receive_all(&challenge, sizeof(challenge), end) ||
      challenge.magic != store_wire::kMagic) {
    why = str_cat("what listens on port ", port, " is no rank 0 of this version of ds");
    return nullptr;
  }
  if (challenge.status != kFine) {
    why = str_cat("another job meets at port ", port);
    return nullptr;
  }
  const Session session(job, hello, challenge);
  const Proof proof = session.client_proof();
  Welcome welcome{};
  if (!socket->send_all(&proof, sizeof(proof), end) ||
      !socket->receive_all(&welcome, sizeof(welcome), end) || welcome.magic != store_wire::kMagic) {
    why = str_cat("what listens on port ", port, " broke off");
    return nullptr;
  }
  if (!same_proof(welcome.proof, session.welcome_proof(welcome.status, welcome.world))) {
    why =
        str_cat("what listens on port ", port,
                " does not know the secret of this job: another job, or ranks that were not given "
                "the same DS_JOB_TOKEN");
    return nullptr;
  }
  switch (welcome.status) {
    case kFine:
      *local_address = socket->local_address();
      return std::make_shared<TcpStore>(std::move(*socket), session);
    case kOtherWorld:
      fail(Code::kComm, "rank 0 expects ", welcome.world, " ranks, rank ", rank, " ", job.world,
           "; every rank must be given the same number");
    case kTwice:
      why = str_cat("a rank ", rank,
                    " is there already; where two jobs meet at one port, give each "
                    "its own MASTER_PORT, job_id or DS_JOB_TOKEN");
      return nullptr;
    default:
      why = str_cat("rank 0 at port ", port, " refused rank ", rank);
      return nullptr;
  }
}

}  // namespace

StorePtr connect_store(const StoreAddress& address, const StoreJob& job, int rank,
                       milliseconds timeout, std::string* local_address) {
  const auto deadline = Clock::now() + timeout;
  std::string why = "nobody answered";
  while (true) {
    for (int i = 0; i < address.port_count; ++i) {
      // Of several ports, a silent stranger may hold one: not for long.
      const std::chrono::seconds limit(address.port_count > 1 ? 1 : 5);
      const auto end = std::min(deadline, Clock::now() + limit);
      std::string reason;
      StorePtr store =
          attempt(address.host, address.port + i, job, rank, end, local_address, reason);
      if (store) return store;
      // An attempt that our own deadline cut short says nothing new. Waits end at whole
      // milliseconds, so it may return a little before the deadline.
      constexpr milliseconds kRounding{2};
      if (Clock::now() + kRounding < deadline || why == "nobody answered") why = reason;
    }
    if (Clock::now() >= deadline) {
      fail(Code::kComm, "rank 0 could not be reached at ", printable(address.host), " port ",
           address.port,
           address.port_count > 1 ? str_cat(" to ", address.port + address.port_count - 1) : "",
           " within ", format_number(static_cast<double>(timeout.count()) / 1000), " s: ", why);
    }
    std::this_thread::sleep_for(milliseconds(30));
  }
}

}  // namespace ds::comm
