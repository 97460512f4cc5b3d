// Fuzzes what a rank hears while it meets the others: the texts of a store, the addresses of peers,
// and the bytes of whatever listens where rank 0 should.
#include <poll.h>

#include <thread>

#include "comm/sockets/mesh.h"
#include "comm/sockets/tcp_store.h"
#include "fuzz/fuzz_support.h"

namespace {

using namespace ds;  // NOLINT: a target is about one part
using fuzz::claim;
using std::chrono::milliseconds;

// Says the same to everything that is asked.
class OneText : public Store {
 public:
  explicit OneText(std::string_view text) : text_(text) {}
  void put(const std::string&, std::string_view) override {}
  std::optional<std::string> get(const std::string&, milliseconds) override { return text_; }

 private:
  const std::string text_;
};

void try_texts(fuzz::Input& input) {
  const int rank = input.take<uint8_t>() % 3;
  const auto gather = comm::gather_over_store(std::make_shared<OneText>(input.rest()), "fuzz", rank,
                                              3, milliseconds(100));
  fuzz::accepts([&] { claim(gather("mine").size() == 3, "there is a text of every rank"); });
}

void try_entry(fuzz::Input& input) {
  const std::string text(input.rest());
  comm::MeshEntry entry;
  if (!fuzz::accepts([&] { entry = comm::read_entry(text); })) return;
  claim(entry.port > 0 && entry.port < 65536 && !entry.address.empty(), "an entry is a place");
  const comm::MeshEntry again = comm::read_entry(comm::write_entry(entry));
  claim(again.port == entry.port && again.token == entry.token && again.address == entry.address,
        "an entry that is written reads back");
}

// A server that knows the secret as long as the input wants, and then says what the input says.
void serve(const comm::Socket& listener, const comm::StoreJob& job, bool greets,
           std::string_view says) {
  namespace wire = comm::store_wire;
  const auto end = comm::Clock::now() + std::chrono::seconds(5);
  pollfd caller{listener.file(), POLLIN, 0};
  ::poll(&caller, 1, 5000);
  const std::optional<comm::Socket> socket = listener.accept();
  if (!socket) return;
  wire::Hello hello{};
  comm::Proof proof{};
  if (greets && socket->receive_all(&hello, sizeof(hello), end)) {
    const wire::Challenge challenge{wire::kMagic, wire::kFine, 0, comm::new_nonce()};
    wire::Session session(job, hello, challenge);
    const wire::Welcome welcome{wire::kMagic, wire::kFine, job.world,
                                session.welcome_proof(wire::kFine, job.world)};
    socket->send_all(&challenge, sizeof(challenge), end);
    socket->receive_all(&proof, sizeof(proof), end);
    socket->send_all(&welcome, sizeof(welcome), end);
    // A reply with the right code around anything.
    wire::Reply reply{};
    std::memcpy(&reply, says.data(), std::min(says.size(), sizeof(reply)));
    says.remove_prefix(std::min(says.size(), sizeof(reply)));
    std::string message(comm::bytes_of(reply));
    message += says;
    const comm::Proof code = session.reply_proof(message);
    message += comm::bytes_of(code);
    socket->send_all(message.data(), message.size(), end);
    return;
  }
  socket->send_all(says.data(), says.size(), end);
}

void try_server(fuzz::Input& input) {
  const comm::StoreJob job{"job", 2, comm::JobSecret("the secret of the target")};
  const bool greets = input.take<bool>();
  comm::Socket listener = comm::listen_on("127.0.0.1", 0);
  const int port = listener.local_port();
  std::thread server([&, says = input.rest()] {
    serve(listener, job, greets, says);
    listener = comm::Socket();
  });
  StorePtr store;
  fuzz::accepts([&] {
    std::string address;
    store = comm::connect_store({.host = "127.0.0.1", .port = port}, job, 1,
                                greets ? milliseconds(5000) : milliseconds(20), &address);
  });
  server.join();
  claim(greets == (store != nullptr), "who knows the secret is rank 0, and nobody else");
  if (store) fuzz::accepts([&] { store->get("key/0", milliseconds(10)); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::be_quiet();
  fuzz::Input input(data, size);
  switch (input.take<uint8_t>() % 8) {  // connections take their time
    case 0:
      try_server(input);
      break;
    case 1:
      try_entry(input);
      break;
    default:
      try_texts(input);
  }
  return 0;
}
