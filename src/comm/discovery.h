// Who this process is among the processes of its job, from what launchers put into the environment.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

namespace ds {

// Variables by name. A copy: the process's environment is only read, never changed.
using Environment = std::map<std::string, std::string>;
Environment process_environment();

struct ProcessPlace {
  std::string source = "none";  // torchrun, Open MPI, ...
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  int local_size = -1;  // -1: not told
  // Where rank 0 is; "" and 0 when nobody told.
  std::string master_addr;
  int master_port = 0;
  int port_count = 1;    // more: rank 0 takes the first free port of so many
  int master_file = -1;  // of rank 0: a listener for this port that its launcher has opened
  std::string job_id;    // what tells jobs apart that use one port
};

// The first launcher that tells rank, size and local rank wins: torchrun, Open MPI, MPICH and
// Intel, MVAPICH, Slurm; without any, one process alone. MASTER_ADDR, MASTER_PORT, DS_MASTER_PORT
// and DS_MASTER_FD may complete any. Throws kConfig for a launcher that tells a part only, listing
// what was seen, and for values that are no numbers or do not fit each other.
ProcessPlace discover_process(const Environment& environment);

// Fills in where rank 0 is, for a place whose rank is known.
void find_master(const Environment& environment, ProcessPlace& place);

// What DEEPSPEED_TIMEOUT, whole minutes, says of the deadline of a collective. Throws kConfig for
// what is no number.
std::optional<std::chrono::minutes> collective_deadline(const Environment& environment);

// The first host of a list such as "gnode[10,20,25-27],other".
std::string first_host(const std::string& compact_list);

}  // namespace ds
