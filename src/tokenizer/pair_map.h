// A hash table from pairs of token ids to a value: open addressing in one array, because a table
// look-up per adjacent pair is what byte-pair encoding spends its time on.
#pragma once

#include <cstdint>
#include <vector>

namespace ds {

template <class Value>
class PairMap {
 public:
  static constexpr uint64_t key(uint32_t a, uint32_t b) { return (uint64_t{a} << 32) | b; }

  explicit PairMap(size_t expected = 0) {
    size_t slots = 16;
    while (slots < expected * 2) slots *= 2;
    slots_.resize(slots);
  }

  size_t size() const noexcept { return used_; }

  const Value* find(uint64_t wanted) const {
    for (size_t i = slot_of(wanted);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == wanted) return &slots_[i].value;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }

  // The value of `wanted`, created if new. A later insertion moves it.
  Value& operator[](uint64_t wanted) {
    if ((used_ + 1) * 2 > slots_.size()) grow();
    for (size_t i = slot_of(wanted);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == wanted) return slots_[i].value;
      if (slots_[i].key == kEmpty) {
        slots_[i].key = wanted;
        ++used_;
        return slots_[i].value;
      }
    }
  }

  template <class Fn>
  void for_each(const Fn& fn) {
    for (Slot& slot : slots_) {
      if (slot.key != kEmpty) fn(slot.key, slot.value);
    }
  }

 private:
  // Both halves all ones: ids stay below 2^31, so no pair has this key.
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };

  size_t slot_of(uint64_t k) const {
    k ^= k >> 32;
    k *= 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio spreads neighbouring ids
    return static_cast<size_t>(k ^ (k >> 29)) & (slots_.size() - 1);
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.key == kEmpty) continue;
      size_t i = slot_of(slot.key);
      while (slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace ds
