// The communicator's configuration document: every key is known or refused by name.
#include "comm/options.h"

#include <cmath>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "comm/discovery.h"

namespace ds {
namespace {

constexpr char kWhat[] = "communicator configuration";
constexpr double kMaxTimeoutSeconds = 1e9;  // some thirty years; far from overflow

std::chrono::milliseconds parse_timeout(const std::string& key, const Json& value) {
  DS_CHECK(value.is_number(), Code::kConfig, kWhat, ": /", key, " must be a number, not ",
           value.type_name());
  const double seconds = value.get<double>();
  DS_CHECK(std::isfinite(seconds) && seconds >= 0.001 && seconds <= kMaxTimeoutSeconds,
           Code::kConfig, kWhat, ": /", key, " must be between 0.001 and ",
           format_number(kMaxTimeoutSeconds), ", not ", format_number(seconds));
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

int parse_whole(const std::string& key, const Json& value, int64_t least, int64_t most) {
  DS_CHECK(value.is_number_integer(), Code::kConfig, kWhat, ": /", key,
           " must be a whole number, not ", value.type_name());
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX);
  const int64_t number = huge ? INT64_MAX : value.get<int64_t>();
  DS_CHECK(number >= least && number <= most, Code::kConfig, kWhat, ": /", key, " must be between ",
           least, " and ", most, ", not ", number);
  return static_cast<int>(number);
}

std::string parse_text(const std::string& key, const Json& value, size_t longest) {
  DS_CHECK(value.is_string(), Code::kConfig, kWhat, ": /", key, " must be text, not ",
           value.type_name());
  std::string text = value.get<std::string>();
  DS_CHECK(text.size() <= longest && text.find('\0') == std::string::npos, Code::kConfig, kWhat,
           ": /", key, " must be at most ", longest, " characters without zero bytes");
  return text;
}

TransportKind parse_transport(const Json& value) {
  const std::string name = parse_text("transport", value, 40);
  std::vector<std::string> known;
  for (const TransportKind kind :
       {TransportKind::kAuto, TransportKind::kSelf, TransportKind::kShm, TransportKind::kSockets,
        TransportKind::kHierarchical, TransportKind::kMpi, TransportKind::kNccl}) {
    if (name == transport_name(kind)) return kind;
    known.emplace_back(transport_name(kind));
  }
  fail(Code::kConfig, kWhat, ": /transport is \"", printable(name),
       "\"; known are: ", join(known, ", "));
}

}  // namespace

CommOptions parse_comm_options(std::string_view json) {
  CommOptions options;
  if (const auto minutes = collective_deadline(process_environment())) options.deadline = *minutes;
  if (json.empty()) return options;
  const Json document = parse_json(json, kWhat, Code::kConfig);
  DS_CHECK(document.is_object(), Code::kConfig, kWhat, ": an object is needed, not ",
           document.type_name());
  static const std::vector<std::string> kKeys = {"timeout_seconds",  "rendezvous_timeout_seconds",
                                                 "transport",        "across",
                                                 "mpi_communicator", "mpi_plugin",
                                                 "nccl_library",     "ranks_per_node",
                                                 "checked",          "master_addr",
                                                 "master_port",      "host_address",
                                                 "job_id",           "job_token",
                                                 "job_token_file"};
  for (const auto& [key, value] : document.items()) {
    if (key == "timeout_seconds") {
      options.deadline = parse_timeout(key, value);
    } else if (key == "rendezvous_timeout_seconds") {
      options.rendezvous_deadline = parse_timeout(key, value);
    } else if (key == "transport") {
      options.transport = parse_transport(value);
    } else if (key == "across") {
      const std::string name = parse_text(key, value, 40);
      DS_CHECK(name == "sockets" || name == "mpi", Code::kConfig, kWhat, ": /across is \"",
               printable(name), "\"; known are: sockets, mpi");
      options.mpi_across = name == "mpi";
    } else if (key == "mpi_communicator") {
      options.mpi_communicator = parse_whole(key, value, INT32_MIN, INT32_MAX);
    } else if (key == "mpi_plugin") {
      options.mpi_plugin = parse_text(key, value, 4000);
    } else if (key == "nccl_library") {
      options.nccl_library = parse_text(key, value, 4000);
    } else if (key == "ranks_per_node") {
      options.ranks_per_node = parse_whole(key, value, 0, 1 << 20);
    } else if (key == "checked") {
      DS_CHECK(value.is_boolean(), Code::kConfig, kWhat, ": /checked must be true or false, not ",
               value.type_name());
      options.checked = value.get<bool>();
    } else if (key == "master_addr") {
      options.master_addr = parse_text(key, value, 255);
    } else if (key == "master_port") {
      options.master_port = parse_whole(key, value, 0, 65535);
    } else if (key == "host_address") {
      options.host_address = parse_text(key, value, 255);
    } else if (key == "job_id") {
      options.job_id = parse_text(key, value, 128);
    } else if (key == "job_token") {
      options.job_token = parse_text(key, value, 4096);
    } else if (key == "job_token_file") {
      options.job_token_file = parse_text(key, value, 4000);
    } else {
      const std::string nearest = nearest_name(key, kKeys);
      fail(Code::kConfig, kWhat, ": unknown key /", printable(key),
           nearest.empty() ? str_cat("; known are: ", join(kKeys, ", "))
                           : str_cat("; did you mean \"", nearest, "\"?"));
    }
  }
  const bool by_mpi = options.transport == TransportKind::kMpi;
  DS_CHECK(!options.mpi_across || options.transport == TransportKind::kHierarchical, Code::kConfig,
           kWhat,
           ": /across \"mpi\" says what lies between the nodes of transport "
           "\"hierarchical\", and /transport is \"",
           transport_name(options.transport), "\"");
  DS_CHECK(
      by_mpi || options.mpi_across || (!options.mpi_communicator && options.mpi_plugin.empty()),
      Code::kConfig, kWhat,
      ": /mpi_communicator and /mpi_plugin need /transport \"mpi\", or "
      "\"hierarchical\" with /across \"mpi\"");
  DS_CHECK(options.transport == TransportKind::kNccl || options.nccl_library.empty(), Code::kConfig,
           kWhat, ": /nccl_library needs /transport \"nccl\"");
  return options;
}

}  // namespace ds
