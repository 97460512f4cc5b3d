// libds_mpi: the functions of MPI that ranks need, for a library that does not link MPI.
#include "comm/mpi/plugin.h"

#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

struct ds::comm::MpiComm {
  MPI_Comm comm;
};

namespace {

using namespace ds::comm;  // NOLINT: this file is the other side of that border

static_assert(sizeof(MPI_Request) <= sizeof(MpiFunctions::Request));

// MPI is one per process, and so is what is known of it.
struct Process {
  std::mutex mutex;  // held within MPI
  pid_t began = 0;   // the process that must end MPI; 0: the program does
  int attached = 0;  // communicators in use
  bool orderly = true;
};
Process& process() {
  static Process one;
  return one;
}

MPI_Request load(const MpiFunctions::Request* request) {
  MPI_Request loaded;
  std::memcpy(&loaded, request, sizeof(loaded));  // NOLINT(bugprone-sizeof-expression): the handle
  return loaded;
}
void store(MpiFunctions::Request* request, MPI_Request value) {
  std::memcpy(request, &value, sizeof(value));  // NOLINT(bugprone-sizeof-expression): the handle
}

void end_at_exit() {
  int ended = 0;
  MPI_Finalized(&ended);
  // A forked child has its parent's MPI, which it must not touch. After a failure, or out of the
  // middle of a job, the launcher sees a process that did not end MPI and ends the others.
  const bool peace = process().orderly && process().attached == 0;
  if (process().began == ::getpid() && peace && !ended) MPI_Finalize();
}

int begin(char* failure, int capacity) {
  const std::lock_guard lock(process().mutex);
  const auto size = static_cast<size_t>(capacity);
  int begun = 0, ended = 0, level = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  if (ended) {
    std::snprintf(failure, size, "MPI has been finalized in this process and cannot begin again");
    return 1;
  }
  if (begun) {
    MPI_Query_thread(&level);
    if (level >= MPI_THREAD_SERIALIZED) return 0;
    std::snprintf(failure, size,
                  "MPI was initialised with thread level %s, and this library calls it from "
                  "threads of its own; call MPI_Init_thread with MPI_THREAD_SERIALIZED or "
                  "MPI_THREAD_MULTIPLE",
                  level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED");
    return 1;
  }
  const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  if (error != MPI_SUCCESS) {
    std::snprintf(failure, size, "MPI_Init_thread failed with %d", error);
    return 1;
  }
  process().began = ::getpid();
  std::atexit(end_at_exit);
  if (level >= MPI_THREAD_SERIALIZED) return 0;
  std::snprintf(failure, size,
                "this MPI provides thread level %d, and at least "
                "MPI_THREAD_SERIALIZED is needed",
                level);
  return 1;
}

int attach(int64_t handle, bool (*poll)(void*), void* data, MpiFunctions::Comm* comm, int* rank,
           int* size, int* largest_tag) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(process().mutex);
    const MPI_Comm given = handle == MpiFunctions::kWorld
                               ? MPI_COMM_WORLD
                               : MPI_Comm_f2c(static_cast<MPI_Fint>(handle));
    if (given == MPI_COMM_NULL || given == MPI_Comm{}) return MPI_ERR_COMM;  // no such handle
    if (const int error = MPI_Comm_idup(given, &copy, &request)) return error;
  }
  const auto give_up = [](int error) {
    const std::lock_guard lock(process().mutex);
    process().orderly = false;
    return error;
  };
  for (int done = 0; !done;) {
    int error = 0;
    {
      const std::lock_guard lock(process().mutex);
      error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    if (error != MPI_SUCCESS) return give_up(error);
    if (!done && !poll(data)) return give_up(MPI_ERR_PENDING);
  }
  const std::lock_guard lock(process().mutex);
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  MPI_Comm_rank(copy, rank);
  MPI_Comm_size(copy, size);
  int* bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(copy, MPI_TAG_UB, &bound, &found);
  *largest_tag = found ? *bound : 32767;
  *comm = new MpiComm{copy};
  ++process().attached;
  return 0;
}

void detach(MpiFunctions::Comm comm, bool orderly) {
  const std::lock_guard lock(process().mutex);
  if (!orderly) process().orderly = false;
  --process().attached;
  // The communicator stays with MPI: what peers say last may still be on its way to it, and MPI
  // would give that to the next one with its number.
  delete comm;
}

int send(MpiFunctions::Comm comm, const void* data, int bytes, int peer, int tag,
         MpiFunctions::Request* request) {
  const std::lock_guard lock(process().mutex);
  MPI_Request started = MPI_REQUEST_NULL;
  const int error = MPI_Isend(data, bytes, MPI_BYTE, peer, tag, comm->comm, &started);
  store(request, started);
  return error;
}

int receive(MpiFunctions::Comm comm, void* data, int bytes, int peer, int tag,
            MpiFunctions::Request* request) {
  const std::lock_guard lock(process().mutex);
  MPI_Request started = MPI_REQUEST_NULL;
  const int error = MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, comm->comm, &started);
  store(request, started);
  return error;
}

int test(MpiFunctions::Request* request, bool* done, int* bytes) {
  const std::lock_guard lock(process().mutex);
  int ended = 0, flag = 0, count = 0;
  MPI_Finalized(&ended);
  if (ended) return MPI_ERR_OTHER;
  MPI_Request tested = load(request);
  MPI_Status status;
  const int error = MPI_Test(&tested, &flag, &status);
  store(request, tested);
  *done = flag != 0;
  if (error == MPI_SUCCESS && flag) {
    MPI_Get_count(&status, MPI_BYTE, &count);
    *bytes = count;
  }
  return error;
}

int cancel(MpiFunctions::Request* request) {
  const std::lock_guard lock(process().mutex);
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended) return MPI_ERR_OTHER;
  MPI_Request cancelled = load(request);
  return MPI_Cancel(&cancelled);
}

void describe(int error, char* text, int capacity) {
  const std::lock_guard lock(process().mutex);
  char buffer[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(error, buffer, &length);
  std::snprintf(text, static_cast<size_t>(capacity), "%s", buffer);
}

constexpr MpiFunctions kFunctions = {
    MpiFunctions::kVersion, begin, attach, detach, send, receive, test, cancel, describe};

}  // namespace

extern "C" __attribute__((visibility("default"))) const MpiFunctions* ds_mpi_plugin() {
  return &kFunctions;
}
