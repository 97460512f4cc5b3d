// How much memory a process may have: what the machine has, what the control groups of the process
// allow (versions 1 and 2), and its own limits. What the system does not say is -1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ds {

// Bytes.
struct SystemMemory {
  int64_t total = -1;
  int64_t available = -1;  // without swapping, caches given up
  int64_t swap_total = 0, swap_free = 0;
  // Of the control group that allows least: its limit, without swap and with it, and what of the
  // limit nobody uses but caches.
  int64_t group_limit = -1, group_limit_with_swap = -1, group_available = -1;
  int64_t address_space_limit = -1;  // RLIMIT_AS
  int64_t data_limit = -1;           // RLIMIT_DATA
};
// `root` is that of the file system, for tests.
SystemMemory read_system_memory(const std::filesystem::path& root = "/");

// What a process cannot go beyond. What other processes hold does not count: they may end.
struct MemoryCeiling {
  std::string what;  // "the limit of the address space (RLIMIT_AS)"
  int64_t bytes = 0;
  bool of_machine = false;  // processes of the machine have it together
};
std::vector<MemoryCeiling> memory_ceilings(const SystemMemory& memory);
// What is free of all that at present; -1 where nothing is known.
int64_t free_memory(const SystemMemory& memory);

// A line such as "VmHWM:  1234 kB" of /proc/self/status, in bytes.
int64_t process_status_bytes(const std::string& key);

}  // namespace ds
