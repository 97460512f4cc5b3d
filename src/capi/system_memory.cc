#include "capi/system_memory.h"

#include <unistd.h>

#include "base/system_memory.h"

namespace ds::capi {

Json system_memory() {
  const SystemMemory read = read_system_memory();
  Json memory = Json::object();
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  memory["total_bytes"] = pages > 0 && page > 0 ? pages * page : -1;
  memory["available_bytes"] = read.available;
  if (read.group_limit > 0) memory["limit_bytes"] = read.group_limit;
  memory["page_bytes"] = page;
  return memory;
}

Json process_memory() {
  return {{"resident_bytes", process_status_bytes("VmRSS:")},
          {"peak_resident_bytes", process_status_bytes("VmHWM:")}};
}

}  // namespace ds::capi
