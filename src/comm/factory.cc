#include "comm/factory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/log.h"
#include "comm/group.h"
#include "comm/hierarchical.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/nccl/nccl_communicator.h"
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
                 options.mpi_across ? " over MPI" : "", ", ranks_per_node ", options.ranks_per_node,
                 ", checked ", options.checked, "\n", host_identity());
}

std::vector<int> read_introductions(const std::vector<std::string>& texts) {
  std::vector<std::string> hosts;
  std::vector<int> nodes;
  const auto options_of = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    DS_CHECK(options_of(texts[rank]) == options_of(texts[0]), Code::kComm, "rank 0 was made with ",
             peer_text(options_of(texts[0])), " and rank ", rank, " with ",
             peer_text(options_of(texts[rank])), "; they must agree");
    const std::string host =
        texts[rank].substr(std::min(texts[rank].find('\n'), texts[rank].size()));
    const auto found = std::ranges::find(hosts, host);
    nodes.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(host);
  }
  return nodes;
}

// `members` are the ranks of the group that share memory; `gather` is theirs.
std::unique_ptr<ShmTransport> make_shm(int rank, const std::vector<int>& members,
                                       const GatherTexts& gather) {
  const auto self = std::ranges::find(members, rank) - members.begin();
  return ShmTransport::make(static_cast<int>(self), static_cast<int>(std::ssize(members)),
                            make_process_segments(), std::make_shared<RegionTable>(rank), members,
                            gather);
}

using MakeAcross = std::function<std::unique_ptr<Transport>()>;

// Shared memory within nodes, another transport between them; that one alone where a node shares no
// memory after all.
std::unique_ptr<Transport> make_hierarchical(int rank, const CommOptions& options,
                                             const std::vector<int>& nodes,
                                             const MakeAcross& make_across,
                                             const GatherTexts& gather) {
  const auto world = static_cast<int>(std::ssize(nodes));
  std::vector<int> members;
  for (int peer = 0; peer < world; ++peer) {
    if (nodes[static_cast<size_t>(peer)] == nodes[static_cast<size_t>(rank)]) {
      members.push_back(peer);
    }
  }
  std::unique_ptr<ShmTransport> local;
  std::string failure;
  try {
    local = make_shm(rank, members, gather_of_node(gather, members));
    local->call_ranks(members);
  } catch (const Error& error) {
    failure = error.message();
  }
  const std::vector<std::string> failures = gather(failure.substr(0, 1000));
  std::unique_ptr<Transport> all = make_across();
  for (const std::string& text : failures) {
    if (text.empty()) continue;
    DS_CHECK(options.transport == TransportKind::kAuto, Code::kComm, peer_text(text));
    log_info("comm", "no shared memory between the ranks of a host: ", peer_text(text));
    return all;
  }
  return std::make_unique<HierarchicalTransport>(std::move(local), std::move(all), nodes);
}

std::unique_ptr<Transport> make_transport(int rank, const CommOptions& options,
                                          const std::vector<int>& hosts, const std::string& address,
                                          const JobSecret& secret, const GatherTexts& gather) {
  const auto world = static_cast<int>(std::ssize(hosts));
  const int host_count = std::ranges::max(hosts) + 1;
  const MakeAcross sockets = [&] {
    return make_sockets_transport(rank, world, address, secret, gather,
                                  Clock::now() + options.rendezvous_deadline);
  };
  std::vector<int> everybody;
  for (int peer = 0; peer < world; ++peer) everybody.push_back(peer);
  switch (options.transport) {
    case TransportKind::kSelf:
      fail(Code::kConfig, "transport \"self\" is for one rank, not ", world);
    case TransportKind::kShm:
      DS_CHECK(host_count == 1, Code::kComm, "the ranks are on ", host_count,
               " hosts, and transport \"shm\" is for one; use \"auto\"");
      return make_shm(rank, everybody, gather);
    case TransportKind::kHierarchical:
      return make_hierarchical(rank, options, pretended_nodes(options, hosts), sockets, gather);
    case TransportKind::kAuto:
      if (host_count == 1) {
        try {
          return make_shm(rank, everybody, gather);
        } catch (const Error& error) {  // on every rank alike
          log_info("comm", "no shared memory between the ranks of this host: ", error.message());
        }
      } else if (host_count < world) {
        return make_hierarchical(rank, options, hosts, sockets, gather);
      }
      break;
    case TransportKind::kMpi:   // has no store to meet at
    case TransportKind::kNccl:  // is built on another
    case TransportKind::kSockets:
      break;
  }
  return sockets();
}

bool by_mpi(const CommOptions& options) {
  return options.transport == TransportKind::kMpi || options.mpi_across;
}

// MPI knows who is there; the ranks meet over it.
std::shared_ptr<Communicator> make_over_mpi(int rank, int size, const std::string& source,
                                            const CommOptions& options) {
  const auto world = std::make_shared<MpiWorld>(options);
  DS_CHECK(rank < 0 || (rank == world->rank() && size == world->size()), Code::kConfig, source,
           " says rank ", rank, " of ", size, ", and MPI rank ", world->rank(), " of ",
           world->size(), options.mpi_communicator ? " in the communicator given" : "",
           "; start the ranks with mpirun or an MPI-aware srun, and give no rank of your own");
  if (world->size() == 1) return make_single_communicator(options);
  std::vector<int> everybody;
  for (int peer = 0; peer < world->size(); ++peer) everybody.push_back(peer);
  auto whole = std::make_unique<MpiTransport>(world, world->rank(), everybody, 0);
  Transport& meeting = *whole;
  const GatherTexts gather = gather_over(meeting, options.rendezvous_deadline);
  const std::vector<int> hosts = read_introductions(gather(introduction(world->size(), options)));
  const std::vector<int> nodes = pretended_nodes(options, hosts);
  std::unique_ptr<Transport> transport;
  if (options.mpi_across) {
    const MakeAcross across = [&] { return std::move(whole); };
    transport = make_hierarchical(world->rank(), options, nodes, across, gather);
  } else {
    transport = std::move(whole);
  }
  auto group = std::make_shared<Group>(std::move(transport), options, nodes);
  group->barrier({.label = "rendezvous", .deadline = options.rendezvous_deadline});
  return group;
}

void warn_of_strangers(const StoreAddress& at) {
  log_warning("comm", "ranks meet at ", printable(at.host), " port ", at.port,
              " without a secret: whoever reaches this port can join the job, read its data and "
              "change what it computes; give all ranks the same DS_JOB_TOKEN, or DS_JOB_TOKEN_FILE "
              "(docs/communication.md)");
}

struct Meeting {
  std::unique_ptr<TcpStoreServer> server;
  StorePtr store;
  std::string address;  // of this host
};

Meeting meet_at_port(int rank, const CommOptions& options, const ProcessPlace& place,
                     const StoreJob& job) {
  StoreAddress at;
  at.host = !options.master_addr.empty() ? options.master_addr : place.master_addr;
  at.port = options.master_port != 0 ? options.master_port : place.master_port;
  at.port_count = options.master_port != 0 ? 1 : place.port_count;
  DS_CHECK(!at.host.empty() && at.port != 0, Code::kConfig, "a group of ", job.world,
           " ranks needs a place to meet: set MASTER_ADDR and MASTER_PORT, or master_addr and "
           "master_port of the communicator's configuration, or give a store");
  Meeting meeting;
  if (rank == 0) {
    if (options.master_port == 0) at.file = place.master_file;
    meeting.server = std::make_unique<TcpStoreServer>(at, job);
    if (!job.secret.given() && !is_loopback(meeting.server->address())) warn_of_strangers(at);
  }
  meeting.store = connect_store(at, job, rank, options.rendezvous_deadline, &meeting.address);
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
  if (by_mpi(options)) {
    DS_CHECK(store == nullptr, Code::kInvalidArgument,
             "ranks of MPI meet over MPI: a store has no use with transport \"",
             transport_name(options.transport), "\"", options.mpi_across ? " across \"mpi\"" : "");
    place.source = "the caller";
    // A launcher's numbers hold for the world, not for the caller's communicator.
    if (rank < 0 && !options.mpi_communicator) place = discover_process(environment);
    if (rank < 0 && place.source == "none") return make_over_mpi(-1, -1, place.source, options);
    const bool given = rank >= 0 || options.mpi_communicator;
    return given ? make_over_mpi(rank, world, place.source, options)
                 : make_over_mpi(place.rank, place.world, place.source, options);
  }
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
  const bool on_gpus = options.transport == TransportKind::kNccl;
  if (world == 1) return make_single_communicator(options);  // which copies GPU memory, too

  const JobSecret secret = find_job_secret(options, environment);
  const std::string job = !options.job_id.empty() ? options.job_id : place.job_id;
  Meeting meeting;
  if (store) {
    meeting.store = std::move(store);
  } else {
    meeting = meet_at_port(rank, options, place, {job, world, secret});
  }
  if (!options.host_address.empty()) meeting.address = options.host_address;
  const GatherTexts gather =
      gather_over_store(meeting.store, "ds/" + job, rank, world, options.rendezvous_deadline);
  const std::vector<int> nodes = read_introductions(gather(introduction(world, options)));
  CommOptions below = options;
  if (on_gpus) below.transport = TransportKind::kAuto;
  auto transport = make_transport(rank, below, nodes, meeting.address, secret, gather);
  auto group =
      std::make_shared<Group>(std::move(transport), options, pretended_nodes(options, nodes));
  group->barrier({.label = "rendezvous", .deadline = options.rendezvous_deadline});
  if (on_gpus) return make_nccl_communicator(std::move(group), options);
  return group;
}

std::vector<std::shared_ptr<Communicator>> make_local_group(int size, const CommOptions& options) {
  DS_CHECK(size >= 1, Code::kInvalidArgument, "a group of ", size, " ranks is none");
  std::vector<std::shared_ptr<Group>> group;
  const std::vector<int> nodes =
      pretended_nodes(options, std::vector<int>(static_cast<size_t>(size), 0));
  for (auto& transport : ShmTransport::make_local(size)) {
    group.push_back(std::make_shared<Group>(std::move(transport), options, nodes));
  }
  if (options.transport == TransportKind::kNccl) return make_local_nccl(group, options);
  return {group.begin(), group.end()};
}

}  // namespace ds
