#include "comm/factory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/log.h"
#include "comm/group.h"
#include "comm/shm/shm_transport.h"
#include "comm/sockets/sockets_transport.h"
#include "comm/sockets/tcp_store.h"

namespace ds {
namespace {

using namespace comm;  // NOLINT: everything here is made of its parts

// The same for processes that can share memory: host, boot and the space of process numbers.
std::string host_identity() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat space {};
  const bool known = ::stat("/proc/self/ns/pid", &space) == 0;
  return str_cat(name, " ", boot, " ", known ? space.st_ino : 0);
}

// What all ranks must be given alike, and what differs.
std::string introduction(int world, const CommOptions& options) {
  return str_cat(world, " ranks, transport ", transport_name(options.transport),
                 ", ranks_per_node ", options.ranks_per_node, ", checked ", options.checked, "\n",
                 host_identity());
}

std::vector<int> read_introductions(const std::vector<std::string>& texts) {
  std::vector<std::string> hosts;
  std::vector<int> nodes;
  const auto options_of = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    DS_CHECK(options_of(texts[rank]) == options_of(texts[0]), Code::kComm, "rank 0 was made with ",
             options_of(texts[0]), " and rank ", rank, " with ", options_of(texts[rank]),
             "; they must agree");
    const std::string host =
        texts[rank].substr(std::min(texts[rank].find('\n'), texts[rank].size()));
    const auto found = std::ranges::find(hosts, host);
    nodes.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(host);
  }
  return nodes;
}

std::unique_ptr<Transport> make_shm(int rank, int world, const GatherTexts& gather) {
  std::vector<int> identity;
  for (int i = 0; i < world; ++i) identity.push_back(i);
  return ShmTransport::make(rank, world, make_process_segments(),
                            std::make_shared<RegionTable>(rank), std::move(identity), gather);
}

std::unique_ptr<Transport> make_transport(int rank, int world, const CommOptions& options,
                                          const std::vector<int>& nodes, const std::string& address,
                                          const GatherTexts& gather) {
  const bool one_host = std::ranges::count(nodes, nodes[0]) == world;
  switch (options.transport) {
    case TransportKind::kShm:
      DS_CHECK(one_host, Code::kComm, "the ranks are on ", std::ranges::max(nodes) + 1,
               " hosts, and transport \"shm\" is for one; use \"auto\"");
      return make_shm(rank, world, gather);
    case TransportKind::kAuto:
      if (one_host) {
        try {
          return make_shm(rank, world, gather);
        } catch (const Error& error) {  // on every rank alike
          log_info("comm", "no shared memory between the ranks of this host: ", error.message());
        }
      }
      break;
    case TransportKind::kSelf:
      fail(Code::kConfig, "transport \"self\" is for one rank, not ", world);
    default:
      break;
  }
  return make_sockets_transport(rank, world, address, gather,
                                Clock::now() + options.rendezvous_deadline);
}

struct Meeting {
  std::unique_ptr<TcpStoreServer> server;
  StorePtr store;
  std::string address;  // of this host
};

Meeting meet_at_port(int rank, int world, const CommOptions& options, const ProcessPlace& place,
                     const std::string& job) {
  StoreAddress at;
  at.host = !options.master_addr.empty() ? options.master_addr : place.master_addr;
  at.port = options.master_port != 0 ? options.master_port : place.master_port;
  at.port_count = options.master_port != 0 ? 1 : place.port_count;
  DS_CHECK(!at.host.empty() && at.port != 0, Code::kConfig, "a group of ", world,
           " ranks needs a place to meet: set MASTER_ADDR and MASTER_PORT, or master_addr and "
           "master_port of the communicator's configuration, or give a store");
  Meeting meeting;
  if (rank == 0) meeting.server = std::make_unique<TcpStoreServer>(at, job, world);
  meeting.store =
      connect_store(at, job, rank, world, options.rendezvous_deadline, &meeting.address);
  return meeting;
}

}  // namespace

std::shared_ptr<Communicator> make_communicator(int rank, int world, const CommOptions& options,
                                                StorePtr store) {
  return make_communicator(rank, world, options, std::move(store), process_environment());
}

std::shared_ptr<Communicator> make_communicator(int rank, int world, const CommOptions& options,
                                                StorePtr store, const Environment& environment) {
  DS_CHECK((rank < 0) == (world < 0), Code::kInvalidArgument, "rank ", rank, " and world size ",
           world, ": give both, or -1 for both");
  // What launchers say matters only where the caller leaves something open.
  ProcessPlace place;
  const bool place_known = !options.master_addr.empty() && options.master_port != 0;
  if (rank < 0) {
    place = discover_process(environment);
    rank = place.rank;
    world = place.world;
  } else if (world > 1 && store == nullptr && !place_known) {
    place.source = "the caller";
    find_master(environment, place);
  }
  DS_CHECK(world >= 1 && rank >= 0 && rank < world, Code::kInvalidArgument, "rank ", rank,
           " is not in a group of ", world);
  if (world == 1) return make_single_communicator(options);

  const std::string job = !options.job_id.empty() ? options.job_id : place.job_id;
  Meeting meeting;
  if (store) {
    meeting.store = std::move(store);
  } else {
    meeting = meet_at_port(rank, world, options, place, job);
  }
  if (!options.host_address.empty()) meeting.address = options.host_address;
  const GatherTexts gather =
      gather_over_store(meeting.store, "ds/" + job, rank, world, options.rendezvous_deadline);
  const std::vector<int> nodes = read_introductions(gather(introduction(world, options)));
  auto transport = make_transport(rank, world, options, nodes, meeting.address, gather);
  auto group =
      std::make_shared<Group>(std::move(transport), options, pretended_nodes(options, nodes));
  group->barrier({.label = "rendezvous", .deadline = options.rendezvous_deadline});
  return group;
}

std::vector<std::shared_ptr<Communicator>> make_local_group(int size, const CommOptions& options) {
  DS_CHECK(size >= 1, Code::kInvalidArgument, "a group of ", size, " ranks is none");
  std::vector<std::shared_ptr<Communicator>> group;
  const std::vector<int> nodes =
      pretended_nodes(options, std::vector<int>(static_cast<size_t>(size), 0));
  for (auto& transport : ShmTransport::make_local(size)) {
    group.push_back(std::make_shared<Group>(std::move(transport), options, nodes));
  }
  return group;
}

}  // namespace ds
