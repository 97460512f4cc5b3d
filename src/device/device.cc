#include "device/device.h"

#include "base/error.h"
#include "base/text.h"

namespace ds {
namespace {

// A table of the account: one line per tag that was used.
std::string format_memory_report(const Device& device) {
  const MemoryAccount& account = device.account();
  int64_t all = 0;
  for (int i = 0; i < kMemoryTags; ++i) all += account.planned(static_cast<MemoryTag>(i));
  std::string out = str_cat("memory of ", device.describe(),
                            all > 0 ? " (now / peak / planned):\n" : " (now / peak):\n");
  const auto row = [&](std::string_view name, int64_t now, int64_t peak, int64_t planned) {
    out += str_cat("  ", name, ": ", format_bytes(now), " / ", format_bytes(peak));
    if (all > 0) out += str_cat(" / ", format_bytes(planned));
  };
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    if (account.peak(tag) == 0 && account.planned(tag) == 0) continue;
    row(memory_tag_name(tag), account.now(tag), account.peak(tag), account.planned(tag));
    out += "\n";
  }
  row("total", account.total_now(), account.total_peak(), all);
  out += str_cat(", reserved ", format_bytes(device.reserved_bytes()), "\n");
  return out;
}

}  // namespace

void check_request(int64_t bytes, MemoryTag tag) {
  DS_CHECK(bytes > 0 && bytes < int64_t{1} << 50, Code::kOutOfMemory, "cannot allocate ", bytes,
           " bytes for ", memory_tag_name(tag));
}

void fail_out_of_memory(const Device& device, const std::string& place, int64_t bytes,
                        MemoryTag tag, int64_t limit) {
  const std::string within =
      limit > 0 ? str_cat(" within the limit of ", format_bytes(limit)) : std::string();
  fail(Code::kOutOfMemory, "out of memory on ", place, ": ", format_bytes(bytes), " for ",
       memory_tag_name(tag), " could not be had", within, ".\n", format_memory_report(device),
       "What helps: a smaller train_micro_batch_size_per_gpu, activation_checkpointing, a "
       "shorter sequence, bf16.");
}

}  // namespace ds
