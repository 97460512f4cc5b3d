// What tests of GPUs ask of the stand-ins of CUDA and NCCL where their program has them. They ask
// what they are linked with, not a macro, so that the emulated program and that of a GPU build
// share their objects.
#pragma once

#include <cstdint>

namespace ds::testing {

struct StandIns {
  const char* nccl_library;
  // Forgets everything and shows `gpus` GPUs of so many bytes each.
  void (*begin)(int gpus, int64_t bytes_each);
  // Fails where a test left something or misused a call.
  void (*expect_nothing_left)();
  int64_t (*graph_launches)();
};

// Defined by emulation/nccl_on.cc; null in a program without it.
[[gnu::weak, gnu::visibility("default")]] const StandIns& stand_ins();

inline const StandIns* stand_ins_or_null() { return stand_ins != nullptr ? &stand_ins() : nullptr; }

}  // namespace ds::testing
