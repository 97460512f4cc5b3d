// How groups come about.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/discovery.h"
#include "comm/store.h"

namespace ds {

// Joins the group of `world` processes; collective. Without a store the ranks meet at a port of
// rank 0 (CommOptions, or MASTER_ADDR and MASTER_PORT of the environment); a given store serves one
// group, or several with different job_id. rank and world of -1: from the environment. The
// transport is that of the options, else shared memory where all ranks share a host and sockets
// where they do not; "nccl" is built on such a group. Every rank throws kComm, naming who did not
// come, when some are missing.
std::shared_ptr<Communicator> make_communicator(int rank, int world, const CommOptions& options,
                                                StorePtr store = nullptr);
// The same with variables other than the process's own.
std::shared_ptr<Communicator> make_communicator(int rank, int world, const CommOptions& options,
                                                StorePtr store, const Environment& environment);

// Ranks that are threads of this process: one communicator for each, over shared memory, or over
// NCCL when the options say so.
std::vector<std::shared_ptr<Communicator>> make_local_group(int size,
                                                            const CommOptions& options = {});

}  // namespace ds
