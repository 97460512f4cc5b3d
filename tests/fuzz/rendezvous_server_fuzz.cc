// Fuzzes the store of rank 0 with what clients send: strangers, and ranks that send requests of any
// kind, with and without the right codes. A rank that belongs there is served after every input.
#include "comm/sockets/socket.h"
#include "comm/sockets/tcp_store.h"
#include "fuzz/fuzz_support.h"

namespace {

using namespace ds;                // NOLINT: a target is about one part
using namespace comm::store_wire;  // NOLINT
using fuzz::claim;

const comm::StoreJob& job() {
  static const comm::StoreJob job{"job", 2, comm::JobSecret("the secret of the target")};
  return job;
}

comm::Clock::time_point soon() { return comm::Clock::now() + std::chrono::seconds(20); }

comm::Socket connection(int port) {
  std::string why;
  std::optional<comm::Socket> socket = comm::connect_to("127.0.0.1", port, soon(), &why);
  claim(socket.has_value(), "the server can be reached", why);
  return std::move(*socket);
}

// As rank 1, once the server has noticed that the last one has gone.
std::pair<comm::Socket, Session> admitted(int port) {
  for (const auto end = soon(); comm::Clock::now() < end;) {
    comm::Socket socket = connection(port);
    const Hello hello{kMagic, job_hash(job().name), 1, 2, comm::new_nonce()};
    Challenge challenge{};
    Welcome welcome{};
    socket.send_all(&hello, sizeof(hello), soon());
    claim(socket.receive_all(&challenge, sizeof(challenge), soon()), "a greeting is answered");
    Session session(job(), hello, challenge);
    const comm::Proof proof = session.client_proof();
    socket.send_all(&proof, sizeof(proof), soon());
    claim(socket.receive_all(&welcome, sizeof(welcome), soon()), "a proof is answered");
    if (welcome.status == kFine) return {std::move(socket), session};
    claim(welcome.status == kTwice, "a rank that knows the secret is let in");
  }
  fuzz::violated("a rank that has gone makes room for another", "");
}

// Requests of the input, with the right codes.
void ask(comm::Socket& socket, Session& session, fuzz::Input& input) {
  while (!input.empty()) {
    const Request head{input.take<uint8_t>() % 4u, input.take<uint8_t>(), input.take<uint16_t>(),
                       input.take<uint8_t>() % 4u};
    std::string message(comm::bytes_of(head));
    std::string key(input.take_text(head.key_bytes));
    key.resize(head.key_bytes, '/');
    if (input.take<bool>() && key.size() > 2) key.replace(key.size() - 2, 2, "/1");
    message += key;
    std::string value(input.take_text(head.value_bytes));
    value.resize(head.value_bytes);
    message += value;
    const comm::Proof proof = session.request_proof(message);
    message += comm::bytes_of(proof);
    if (!socket.send_all(message.data(), message.size(), soon())) return;
    Reply reply{};
    if (!socket.receive_all(&reply, sizeof(reply), soon())) return;
    claim(reply.value_bytes <= Store::kMostValue, "values are no longer than they may be");
    std::string said(comm::bytes_of(reply));
    said.resize(sizeof(reply) + reply.value_bytes);
    comm::Proof code{};
    claim(socket.receive_all(said.data() + sizeof(reply), reply.value_bytes, soon()) &&
              socket.receive_all(&code, sizeof(code), soon()) &&
              comm::same_proof(code, session.reply_proof(said)),
          "replies are whole and carry their code");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::be_quiet();
  static const comm::TcpStoreServer server({.host = "127.0.0.1", .port = 0}, job());
  fuzz::Input input(data, size);
  const uint8_t kind = input.take<uint8_t>() % 3;
  if (kind == 2) {
    auto [socket, session] = admitted(server.port());
    ask(socket, session, input);
  } else {
    const comm::Socket socket =
        kind == 1 ? admitted(server.port()).first : connection(server.port());
    socket.send_all(input.rest().data(), input.rest().size(), soon());
  }
  std::string address;
  fuzz::must_succeed("a rank that belongs there is served", [&] {
    const StorePtr store = comm::connect_store({.host = "127.0.0.1", .port = server.port()}, job(),
                                               0, std::chrono::seconds(20), &address);
    claim(!store->get("missing/0", std::chrono::milliseconds(0)), "no key came of itself");
  });
  return 0;
}
