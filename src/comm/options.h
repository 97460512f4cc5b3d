// How a group is made: the communicator's configuration document as a struct.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ds {

enum class TransportKind { kAuto, kSelf, kShm, kSockets, kHierarchical, kMpi, kNccl };
std::string_view transport_name(TransportKind kind) noexcept;

struct CommOptions {
  std::chrono::milliseconds deadline{std::chrono::minutes(30)};  // of one collective
  // For all ranks to find each other.
  std::chrono::milliseconds rendezvous_deadline{std::chrono::minutes(10)};
  TransportKind transport = TransportKind::kAuto;
  bool mpi_across = false;  // hierarchical: MPI between nodes instead of sockets
  // The group's ranks by a Fortran handle (MPI_Comm_c2f); nothing: MPI_COMM_WORLD.
  std::optional<int64_t> mpi_communicator;
  std::string mpi_plugin;    // its file; "": DS_MPI_PLUGIN, else beside this library
  std::string nccl_library;  // its file; "": DS_NCCL_LIBRARY, else libnccl.so.2
  int ranks_per_node = 0;    // > 0: pretend that so many consecutive ranks share a host
  bool checked = false;      // labels and shapes of collectives must agree too
  std::string master_addr;   // "": MASTER_ADDR of the environment
  int master_port = 0;       // 0: DS_MASTER_PORT, MASTER_PORT of the environment
  std::string host_address;  // where other hosts reach this one; "": found out
  std::string job_id;        // keeps jobs apart that meet at the same place
  // The secret that the ranks of a job share, or the file with it; "": DS_JOB_TOKEN or
  // DS_JOB_TOKEN_FILE of the environment, or none.
  std::string job_token;
  std::string job_token_file;
};

// Reads a JSON document such as {"timeout_seconds": 1800, "transport": "shm"}. "" and "{}" mean the
// defaults; unknown keys and wrong values throw kConfig. Keys: timeout_seconds,
// rendezvous_timeout_seconds, transport (auto, self, shm, sockets, hierarchical, mpi, nccl), across
// (sockets, mpi), mpi_communicator, mpi_plugin, nccl_library, ranks_per_node, checked, master_addr,
// master_port, host_address, job_id, job_token, job_token_file.
CommOptions parse_comm_options(std::string_view json);

}  // namespace ds
