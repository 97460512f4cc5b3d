// The border between libds and its MPI plug-in, the only file that knows MPI: plain functions over
// plain types, so that libds neither links nor mentions MPI and the plug-in nothing of libds.
#pragma once

#include <cstdint>

namespace ds::comm {

// Functions return 0 or an error number of MPI, for describe(). None waits for other ranks but
// begin() and attach(). Any thread may call them: the plug-in lets one into MPI at a time.
struct MpiFunctions {
  static constexpr uint32_t kVersion = 1;
  static constexpr int64_t kWorld = INT64_MIN;  // instead of a handle: MPI_COMM_WORLD
  using Comm = struct MpiComm*;
  using Request = uint64_t;  // an MPI_Request's bytes

  uint32_t version;
  // Begins MPI unless the program has; it then also ends MPI when the process exits. Nonzero with
  // what is wrong in `failure` when that cannot be or MPI lets one thread only call it.
  int (*begin)(char* failure, int capacity);
  // A private copy of the communicator with this Fortran handle (MPI_Comm_c2f). `poll` is called
  // between tests; when it returns false, attaching fails.
  int (*attach)(int64_t handle, bool (*poll)(void*), void* data, Comm* comm, int* rank, int* size,
                int* largest_tag);
  // `orderly`: nothing has failed. MPI is ended when the process exits only if all communicators
  // were left so: ending it waits for all ranks, some of which may be gone or wait for this one.
  void (*detach)(Comm comm, bool orderly);
  int (*send)(Comm comm, const void* data, int bytes, int peer, int tag, Request* request);
  int (*receive)(Comm comm, void* data, int bytes, int peer, int tag, Request* request);
  int (*test)(Request* request, bool* done, int* bytes);  // bytes received
  int (*cancel)(Request* request);                        // of a receive; test() follows
  void (*describe)(int error, char* text, int capacity);
};

// What the plug-in exports.
inline constexpr char kMpiPluginSymbol[] = "ds_mpi_plugin";
using MpiPluginEntry = const MpiFunctions*();

}  // namespace ds::comm
