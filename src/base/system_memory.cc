#include "base/system_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

namespace ds {
namespace {

namespace fs = std::filesystem;

// Version 1 says "no limit" by a number near the largest.
constexpr int64_t kNoLimit = int64_t{1} << 60;

// One number from a one-line file of the kernel; -1 when there is none, as for "max".
int64_t number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value && value >= 0 && value < kNoLimit ? value : -1;
}

// Lines "key number ...", such as those of meminfo and memory.stat.
std::map<std::string, int64_t> numbers_in(const fs::path& path) {
  std::map<std::string, int64_t> out;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    int64_t value = 0;
    if (words >> key >> value) out[key] = value;
  }
  return out;
}

int64_t value_of(const std::map<std::string, int64_t>& numbers, const char* key, int64_t unit,
                 int64_t otherwise) {
  const auto found = numbers.find(key);
  return found == numbers.end() ? otherwise : found->second * unit;
}

void cap(int64_t& least, int64_t value) {
  if (value >= 0 && (least < 0 || value < least)) least = value;
}

// The path of the process's group: of version 2, or of the controller "memory" of version 1.
std::string group_path(const fs::path& root, bool second) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':'), last = line.find(':', first + 1);
    if (last == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, last - first - 1) + ",";
    const bool wanted =
        second ? line.starts_with("0::") : controllers.find(",memory,") != std::string::npos;
    if (wanted) return line.substr(last + 1);
  }
  return "/";
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive;  // in memory.stat
  const char* active;
};
constexpr GroupFiles kFirst{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                            "total_active_file"};
constexpr GroupFiles kSecond{"memory.max", "memory.current", "inactive_file", "active_file"};

void read_group(const fs::path& folder, bool second, SystemMemory& out) {
  const GroupFiles& files = second ? kSecond : kFirst;
  const int64_t limit = number_in(folder / files.limit);
  if (limit < 0) return;
  cap(out.group_limit, limit);
  // Without a limit of its own, swap is all that the machine has.
  int64_t with_swap = limit + out.swap_total;
  if (second) {
    if (const int64_t swap = number_in(folder / "memory.swap.max"); swap >= 0) {
      with_swap = limit + std::min(swap, out.swap_total);
    }
  } else {
    cap(with_swap, number_in(folder / "memory.memsw.limit_in_bytes"));
  }
  cap(out.group_limit_with_swap, with_swap);
  const int64_t usage = number_in(folder / files.usage);
  if (usage < 0) return;
  const auto stat = numbers_in(folder / "memory.stat");
  const int64_t caches = value_of(stat, files.inactive, 1, 0) + value_of(stat, files.active, 1, 0);
  cap(out.group_available, std::clamp<int64_t>(limit - usage + caches, 0, limit));
}

// A limit of any group above counts too. Inside a container the path may be that outside, and what
// is mounted is the container's own group.
void read_groups(const fs::path& root, bool second, SystemMemory& out) {
  const fs::path mount = root / (second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
  fs::path group = fs::path(group_path(root, second)).relative_path();
  while (!group.empty()) {
    read_group(mount / group, second, out);
    group = group.parent_path();
  }
  read_group(mount, second, out);
}

int64_t limit_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kNoLimit));
}

}  // namespace

SystemMemory read_system_memory(const fs::path& root) {
  SystemMemory out;
  constexpr int64_t kKib = 1024;
  const auto numbers = numbers_in(root / "proc/meminfo");
  out.total = value_of(numbers, "MemTotal:", kKib, -1);
  out.available = value_of(numbers, "MemAvailable:", kKib, -1);
  out.swap_total = value_of(numbers, "SwapTotal:", kKib, 0);
  out.swap_free = value_of(numbers, "SwapFree:", kKib, 0);
  read_groups(root, true, out);
  read_groups(root, false, out);
  out.address_space_limit = limit_of(RLIMIT_AS);
  out.data_limit = limit_of(RLIMIT_DATA);
  return out;
}

std::vector<MemoryCeiling> memory_ceilings(const SystemMemory& memory) {
  std::vector<MemoryCeiling> out;
  const auto add = [&out](const char* what, int64_t bytes, bool of_machine) {
    if (bytes >= 0) out.push_back({what, bytes, of_machine});
  };
  const int64_t swap = memory.total < 0 ? 0 : memory.swap_total;
  add(swap > 0 ? "memory and swap of the machine" : "the memory of the machine",
      memory.total < 0 ? -1 : memory.total + swap, true);
  add(swap > 0 ? "the limit of the control group, with swap" : "the limit of the control group",
      memory.group_limit_with_swap, false);
  add("the limit of the address space (RLIMIT_AS)", memory.address_space_limit, false);
  add("the limit of data (RLIMIT_DATA)", memory.data_limit, false);
  return out;
}

int64_t free_memory(const SystemMemory& memory) {
  int64_t least = -1;
  if (memory.available >= 0) cap(least, memory.available + memory.swap_free);
  cap(least, memory.group_available);
  return least;
}

int64_t process_status_bytes(const std::string& key) {
  return value_of(numbers_in("/proc/self/status"), key.c_str(), 1024, -1);
}

}  // namespace ds
