#include "device/device.h"

#include "base/text.h"

namespace ds {

std::string format_memory_report(const Device& device) {
  std::string out = str_cat("memory of ", device.describe(), " (now / peak):\n");
  const MemoryAccount& account = device.account();
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    if (account.peak(tag) == 0) continue;
    out += str_cat("  ", memory_tag_name(tag), ": ", format_bytes(account.now(tag)), " / ",
                   format_bytes(account.peak(tag)), "\n");
  }
  out += str_cat("  total: ", format_bytes(account.total_now()), " / ",
                 format_bytes(account.total_peak()), ", reserved ",
                 format_bytes(device.reserved_bytes()), "\n");
  return out;
}

}  // namespace ds
