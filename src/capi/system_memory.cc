#include "capi/system_memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ds::capi {
namespace {

// One number from a one-line file of the kernel; -1 when there is none.
int64_t number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return -1;
}

// A line such as "VmRSS:  1234 kB" in bytes; -1 when there is none.
int64_t bytes_in_status(const std::string& wanted) {
  std::ifstream file("/proc/self/status");
  std::string key, rest;
  while (file >> key) {
    int64_t kib = 0;
    if (key == wanted && file >> kib) return kib * 1024;
    std::getline(file, rest);
  }
  return -1;
}

}  // namespace

Json system_memory() {
  Json memory = Json::object();
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  memory["total_bytes"] = pages > 0 && page > 0 ? pages * page : -1;
  memory["available_bytes"] = available_memory();
  // The limit of the container, when there is one.
  int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  if (limit < 0) limit = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  if (limit > 0 && limit < int64_t{1} << 60) memory["limit_bytes"] = limit;
  memory["page_bytes"] = page;
  return memory;
}

Json process_memory() {
  return {{"resident_bytes", bytes_in_status("VmRSS:")},
          {"peak_resident_bytes", bytes_in_status("VmHWM:")}};
}

}  // namespace ds::capi
