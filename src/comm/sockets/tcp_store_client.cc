#include <algorithm>
#include <thread>

#include "comm/sockets/socket.h"
#include "comm/sockets/tcp_store.h"

namespace ds::comm {
namespace {

using namespace store_wire;  // NOLINT: the words of this protocol
using std::chrono::milliseconds;

class TcpStore : public Store {
 public:
  explicit TcpStore(Socket socket) : socket_(std::move(socket)) {}

  void put(const std::string& key, std::string_view value) override {
    DS_CHECK(key.size() <= kMostKey && value.size() <= kMostValue, Code::kInvalidArgument,
             "a store takes keys of ", kMostKey, " and values of ", kMostValue, " bytes");
    Status status;
    ask(kPut, key, value, milliseconds(0), status);
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
    std::string message(reinterpret_cast<const char*>(&request), sizeof(request));
    message += key;
    message += value;
    constexpr milliseconds kGrace{30000};  // for an answer on its way
    const auto deadline = Clock::now() + milliseconds(ms) + kGrace;
    Reply reply{};
    bool fine = socket_.send_all(message.data(), message.size(), deadline) &&
                socket_.receive_all(&reply, sizeof(reply), deadline) &&
                reply.value_bytes <= kMostValue;
    std::string answer(fine ? reply.value_bytes : 0, '\0');
    fine = fine && socket_.receive_all(answer.data(), answer.size(), deadline);
    DS_CHECK(fine, Code::kComm, "rank 0 ended the rendezvous: its store does not answer any more");
    status = static_cast<Status>(reply.status);
    return answer;
  }

  const Socket socket_;
};

}  // namespace

StorePtr connect_store(const StoreAddress& address, const std::string& job, int rank, int world,
                       milliseconds timeout, std::string* local_address) {
  const auto deadline = Clock::now() + timeout;
  std::string why = "nobody answered";
  while (true) {
    for (int i = 0; i < address.port_count; ++i) {
      const int port = address.port + i;
      // Of several ports, a silent stranger may hold one: not for long.
      const std::chrono::seconds patience(address.port_count > 1 ? 1 : 5);
      const auto attempt_end = std::min(deadline, Clock::now() + patience);
      std::string trouble;
      std::optional<Socket> socket = connect_to(address.host, port, attempt_end, &trouble);
      if (!socket) {
        why = trouble;
        continue;
      }
      const Hello hello{kMagic, job_hash(job), rank, world};
      Welcome welcome{};
      if (!socket->send_all(&hello, sizeof(hello), attempt_end) ||
          !socket->receive_all(&welcome, sizeof(welcome), attempt_end) || welcome.magic != kMagic) {
        // Cut short by our own deadline it says nothing new.
        if (Clock::now() < deadline) {
          why = str_cat("what listens on port ", port, " is no rank 0 of ours");
        }
        continue;
      }
      switch (welcome.status) {
        case kFine:
          *local_address = socket->local_address();
          return std::make_shared<TcpStore>(std::move(*socket));
        case kOtherWorld:
          fail(Code::kComm, "rank 0 expects ", welcome.world, " ranks, rank ", rank, " ", world,
               "; every rank must be given the same number");
        case kTwice:
          why = str_cat("a rank ", rank, " is there already");
          break;
        default:
          why = str_cat("another job meets at port ", port);
      }
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
