#include "device/memory.h"

namespace ds {

std::string_view memory_tag_name(MemoryTag tag) {
  static constexpr std::array<std::string_view, kMemoryTags> kNames = {
      "parameters",    "gradients", "optimizer", "activations", "workspace",
      "communication", "kv_cache",  "io",        "other"};
  return kNames[static_cast<size_t>(tag)];
}

void MemoryAccount::Slot::add(int64_t bytes) noexcept {
  const int64_t value = now.fetch_add(bytes) + bytes;
  int64_t seen = peak.load();
  while (value > seen && !peak.compare_exchange_weak(seen, value)) {
  }
}

void MemoryAccount::add(MemoryTag tag, int64_t bytes) noexcept {
  slots_[static_cast<size_t>(tag)].add(bytes);
  total_.add(bytes);
  if (sum_ != nullptr) sum_->add(tag, bytes);
}

void MemoryAccount::remove(MemoryTag tag, int64_t bytes) noexcept {
  slots_[static_cast<size_t>(tag)].now.fetch_sub(bytes);
  total_.now.fetch_sub(bytes);
  if (sum_ != nullptr) sum_->remove(tag, bytes);
}

void MemoryAccount::set_planned(const ByTag& bytes) noexcept {
  for (size_t i = 0; i < bytes.size(); ++i) planned_[i].store(bytes[i]);
}

void MemoryAccount::reset_peaks() noexcept {
  for (Slot& s : slots_) s.peak.store(s.now.load());
  total_.peak.store(total_.now.load());
}

MemoryAccount& process_account(bool gpu) noexcept {
  static MemoryAccount host, gpus;
  return gpu ? gpus : host;
}

}  // namespace ds
