#include "comm/discovery.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <vector>

#include "base/error.h"

namespace ds {
namespace {

// A launcher's variables; "" where it has none.
struct Source {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Source kSources[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
};
constexpr const char* kOthers[] = {
    "LOCAL_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "DS_MASTER_PORT",
    "DS_MASTER_FD",
    "DS_JOB_TOKEN",
    "DS_JOB_TOKEN_FILE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "DEEPSPEED_TIMEOUT",
};

const std::string* find(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return *name == '\0' || found == environment.end() ? nullptr : &found->second;
}

int64_t number_of(const Environment& environment, const char* name, int64_t least, int64_t most) {
  const std::string& text = environment.at(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  DS_CHECK(
      error == std::errc() && end == text.data() + text.size() && value >= least && value <= most,
      Code::kConfig, name, " is \"", printable(text), "\"; a number from ", least, " to ", most,
      " is needed");
  return value;
}

// Slurm's variables stand for a rank in a step of srun only: a batch or interactive shell has rank
// 0 and the tasks of the whole allocation.
bool in_slurm_step(const Environment& environment) {
  const char* const name = find(environment, "SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID";
  const std::string* const text = find(environment, name);
  if (text == nullptr || find(environment, "SLURM_STEP_NUM_TASKS") == nullptr) return false;
  constexpr uint64_t kFirstSpecial = 4294967290;  // batch, external and interactive steps
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), step);
  return error == std::errc() && end == text->data() + text->size() && step < kFirstSpecial;
}

// The port of a job whose launcher names none: one of many, chosen by what only this job has.
int port_for(const std::string& job) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  constexpr int kFirst = 20000, kMany = 12000;  // below the ports that systems give out
  return kFirst + static_cast<int>(hash % kMany);
}

}  // namespace

void find_master(const Environment& environment, ProcessPlace& place) {
  constexpr int kDefaultPort = 29500, kRange = 16;
  const auto text = [&](const char* name) {
    const std::string* const value = find(environment, name);
    return value == nullptr ? std::string() : *value;
  };
  const std::string slurm_job =
      !text("SLURM_JOB_ID").empty() ? text("SLURM_JOB_ID") : text("SLURM_JOBID");
  const std::string slurm_step =
      !text("SLURM_STEP_ID").empty() ? text("SLURM_STEP_ID") : text("SLURM_STEPID");
  if (!text("TORCHELASTIC_RUN_ID").empty()) {
    place.job_id =
        str_cat("torch ", text("TORCHELASTIC_RUN_ID"), " ", text("TORCHELASTIC_RESTART_COUNT"));
  } else if (place.source == "Open MPI") {
    place.job_id = text("PMIX_NAMESPACE") + text("OMPI_MCA_ess_base_jobid");
  } else if (!slurm_job.empty()) {
    place.job_id = str_cat("slurm ", slurm_job, ".", slurm_step);
  }

  place.master_addr = text("MASTER_ADDR");
  if (place.master_addr.empty() && place.source == "Slurm") {
    const std::string list = !text("SLURM_STEP_NODELIST").empty() ? text("SLURM_STEP_NODELIST")
                                                                  : text("SLURM_JOB_NODELIST");
    place.master_addr = first_host(list);
  }
  if (place.master_addr.empty() && place.local_size == place.world) {
    place.master_addr = "127.0.0.1";
  }

  if (find(environment, "DS_MASTER_PORT") != nullptr) {
    place.master_port = static_cast<int>(number_of(environment, "DS_MASTER_PORT", 1, 65535));
    if (find(environment, "DS_MASTER_FD") != nullptr) {
      place.master_file = static_cast<int>(number_of(environment, "DS_MASTER_FD", 3, 1 << 20));
    }
  } else if (find(environment, "MASTER_PORT") != nullptr) {
    place.master_port = static_cast<int>(number_of(environment, "MASTER_PORT", 1, 65535));
    if (text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
      // The launcher itself listens there: one of the next ports.
      DS_CHECK(place.master_port + kRange <= 65535, Code::kConfig, "MASTER_PORT ",
               place.master_port,
               " belongs to torchrun and few ports follow it; set DS_MASTER_PORT");
      ++place.master_port;
      place.port_count = kRange;
    }
  } else if (place.source == "torchrun") {
    place.master_port = kDefaultPort;
  } else if (!place.job_id.empty()) {
    place.master_port = port_for(place.job_id);
    place.port_count = kRange;
  }
}

Environment process_environment() {
  Environment environment;
  const auto add = [&](const char* name) {
    if (*name == '\0') return;
    if (const char* const value = std::getenv(name)) environment[name] = value;
  };
  for (const Source& source : kSources) {
    for (const char* name : {source.rank, source.size, source.local_rank, source.local_size}) {
      add(name);
    }
  }
  for (const char* name : kOthers) add(name);
  return environment;
}

std::optional<std::chrono::minutes> collective_deadline(const Environment& environment) {
  constexpr const char* kName = "DEEPSPEED_TIMEOUT";
  if (find(environment, kName) == nullptr) return std::nullopt;
  constexpr int64_t kMostMinutes = 10'000'000;  // nineteen years; far from overflow
  return std::chrono::minutes(number_of(environment, kName, 1, kMostMinutes));
}

std::string first_host(const std::string& list) {
  const size_t open = list.find_first_of("[,");
  if (open == std::string::npos || list[open] == ',') return list.substr(0, open);
  const size_t end = list.find_first_of(",-]", open);
  if (end == std::string::npos) return list;
  // What follows the brackets belongs to the name, too.
  const size_t close = list.find(']', open);
  const size_t after = close == std::string::npos ? std::string::npos : close + 1;
  std::string tail = after == std::string::npos ? "" : list.substr(after);
  tail = tail.substr(0, tail.find(','));
  return list.substr(0, open) + list.substr(open + 1, end - open - 1) + tail;
}

ProcessPlace discover_process(const Environment& environment) {
  ProcessPlace place;
  for (const Source& source : kSources) {
    const bool slurm = std::string_view(source.name) == "Slurm";
    if (slurm && !in_slurm_step(environment)) continue;
    const char* const size = slurm ? "SLURM_STEP_NUM_TASKS" : source.size;
    std::vector<std::string> seen, missing;
    for (const char* name : {source.rank, size, source.local_rank}) {
      if (const std::string* const value = find(environment, name)) {
        seen.push_back(str_cat(name, "=", printable(*value)));
      } else {
        missing.emplace_back(name);
      }
    }
    if (seen.empty()) continue;
    DS_CHECK(missing.empty(), Code::kConfig, "the environment looks like that of ", source.name,
             " but is not complete: ", join(seen, ", "), " set, ", join(missing, ", "),
             " missing; set all or none of them, or give rank and world size explicitly");
    constexpr int64_t kMostRanks = int64_t{1} << 20;
    place.source = source.name;
    place.world = static_cast<int>(number_of(environment, size, 1, kMostRanks));
    place.rank = static_cast<int>(number_of(environment, source.rank, 0, place.world - 1));
    place.local_rank =
        static_cast<int>(number_of(environment, source.local_rank, 0, place.world - 1));
    const char* local_size = source.local_size;
    if (find(environment, local_size) == nullptr && place.source == "torchrun") {
      local_size = "LOCAL_SIZE";
    }
    if (find(environment, local_size) != nullptr) {
      place.local_size =
          static_cast<int>(number_of(environment, local_size, place.local_rank + 1, place.world));
    }
    break;
  }
  if (place.source != "none") find_master(environment, place);
  return place;
}

}  // namespace ds
