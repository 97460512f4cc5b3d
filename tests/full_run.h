// Whether tests run all they have, as scripts/nightly asks for with DS_TEST_FULL=1. Otherwise the
// slow ones among them take a sample, which each of them describes. Sanitizers make everything
// several times as slow: tests that repeat one thing for long do it less often.
#pragma once

#include <cstdlib>

namespace ds::testing {

// Linked into programs that run a GPU's kernels on the CPU (tests/cuda/emulation/stand_in.cc).
[[gnu::weak, gnu::visibility("default")]] void gpus_are_emulated();

inline bool emulated() { return gpus_are_emulated != nullptr; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline bool full_run() { return std::getenv("DS_TEST_FULL") != nullptr; }

// Half of the combinations of three or more choices, for kernels that are emulated: those whose sum
// of positions is even. Every pair of values of two choices is among them.
inline bool in_sample(int sum_of_positions) {
  return !emulated() || full_run() || sum_of_positions % 2 == 0;
}

}  // namespace ds::testing
