// Finding the plug-in, and what a process has once for all groups over one MPI communicator.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "base/dynamic_library.h"
#include "base/text.h"
#include "comm/mpi/mpi_transport.h"

namespace ds::comm {
namespace {

constexpr char kPluginFile[] = "libds_mpi.so";

// Where this library's code lies: the plug-in is installed beside it.
std::string own_folder() {
  Dl_info info;
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return {};
  const std::string file = info.dli_fname == nullptr ? "" : info.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

const MpiFunctions* load_plugin(const CommOptions& options) {
  const std::string beside = own_folder() + kPluginFile;
  const char* const names[] = {beside.c_str(), kPluginFile};
  // MPI loads parts of its own, which look for its symbols among the global ones. It is never
  // unloaded: it cannot begin twice in a process.
  const LibraryPlaces places = {"the plug-in for MPI", "DS_MPI_PLUGIN", names, /*global=*/true};
  DynamicLibrary library = DynamicLibrary::open(
      places, options.mpi_plugin.empty() ? places.named() : options.mpi_plugin);
  DS_CHECK(library, Code::kUnsupported, "MPI needs the plug-in ", kPluginFile,
           ", which is built when MPI is found (Debian: libopenmpi-dev) and lies beside this "
           "library, or where mpi_plugin of the communicator's configuration says: ",
           library.reason());
  MpiPluginEntry* entry = nullptr;
  library.need(entry, kMpiPluginSymbol);
  DS_CHECK(entry != nullptr, Code::kUnsupported, "MPI: ", library.name(),
           " is no plug-in of this library: it has no ", kMpiPluginSymbol);
  const MpiFunctions* const functions = entry();
  DS_CHECK(functions->version == MpiFunctions::kVersion, Code::kUnsupported,
           "MPI: ", library.name(), " has version ", functions->version,
           ", and this library needs version ", MpiFunctions::kVersion,
           "; install the one that was built with it");
  return functions;
}

}  // namespace

MpiWorld::MpiWorld(const CommOptions& options) : functions_(load_plugin(options)) {
  std::array<char, 512> failure{};
  DS_CHECK(functions_->begin(failure.data(), static_cast<int>(failure.size())) == 0,
           Code::kUnsupported, "MPI: ", failure.data());
  struct Wait {
    Clock::time_point deadline;
    bool late = false;
  } wait{Clock::now() + options.rendezvous_deadline};
  const auto poll = [](void* data) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    auto& waiting = *static_cast<Wait*>(data);
    waiting.late = Clock::now() > waiting.deadline;
    return !waiting.late;
  };
  const int64_t handle = options.mpi_communicator.value_or(MpiFunctions::kWorld);
  const int error = functions_->attach(handle, poll, &wait, &comm_, &rank_, &size_, &largest_tag_);
  DS_CHECK(!wait.late, Code::kComm,
           "MPI: not all ranks of the communicator came to make this group within ",
           format_number(static_cast<double>(options.rendezvous_deadline.count()) / 1000), " s");
  if (error != 0) fail_with(error, "copying the communicator");
}

MpiWorld::~MpiWorld() { functions_->detach(comm_, orderly_); }

void MpiWorld::fail_with(int error, std::string_view what) const {
  std::array<char, 512> text{};
  functions_->describe(error, text.data(), static_cast<int>(text.size()));
  fail(Code::kComm, "MPI: ", what, " failed: ", text.data());
}

int MpiWorld::tag_of(int64_t group, Channel channel) const {
  const int64_t tag = group * kChannels + static_cast<int64_t>(channel);
  DS_CHECK(tag <= largest_tag_, Code::kUnsupported,
           "MPI has no more tags: too many groups have been split from one communicator");
  return static_cast<int>(tag);
}

GatherTexts gather_over(Transport& transport, std::chrono::milliseconds allowed) {
  return [&transport, allowed, sequence = uint64_t{0}](const std::string& text) mutable {
    Record record;
    record.kind = Collective::kSplit;
    record.sequence = ++sequence;
    std::strncpy(record.label, "rendezvous", sizeof(record.label) - 1);
    Deadline deadline = Deadline::in(allowed);
    const Watch watch{record, deadline, allowed};
    DS_CHECK(std::ssize(text) <= kMaxPayload, Code::kInternal, "a text of ", text.size(),
             " bytes is too long for a record");
    transport.exchange(record, std::as_bytes(std::span(text)), watch);
    std::vector<std::string> texts;
    for (int peer = 0; peer < transport.size(); ++peer) {
      texts.emplace_back(reinterpret_cast<const char*>(transport.payload(peer)),
                         static_cast<size_t>(transport.record(peer).payload));
    }
    return texts;
  };
}

}  // namespace ds::comm
