// Programs whose main thread has an alternate signal stack of the old size, 8 KiB, use the tiles of
// AMX as all others do.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <vector>

#include "kernels/cpu.h"

namespace ds::kernels {
namespace {

int tiles() { return cpu_features().amx_bf16 ? 1 : 0; }

// In a process of its own, which has not asked for tiles before.
[[noreturn]] void end_with_tiles(size_t stack_bytes) {
  std::vector<char> memory(stack_bytes);
  stack_t stack = {};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  if (stack_bytes > 0 && sigaltstack(&stack, nullptr) != 0) std::_Exit(9);
  std::_Exit(tiles());
}

TEST(SignalStackDeathTest, ASmallOneCostsNoTiles) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the child begins anew
  EXPECT_EXIT(end_with_tiles(8192), ::testing::ExitedWithCode(tiles()), "");
  EXPECT_EXIT(end_with_tiles(0), ::testing::ExitedWithCode(tiles()), "");
}

volatile sig_atomic_t handled = 0;

// The larger one that takes its place holds handlers.
TEST(SignalStackDeathTest, HandlersRunOnTheLargerOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto handle = [] {
    std::vector<char> memory(8192);
    stack_t stack = {};
    stack.ss_sp = memory.data();
    stack.ss_size = memory.size();
    if (sigaltstack(&stack, nullptr) != 0) std::_Exit(9);
    static_cast<void>(tiles());
    struct sigaction action = {};
    action.sa_handler = [](int) {
      volatile char bytes[4096];
      bytes[0] = 1;
      handled = bytes[0];
    };
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, nullptr);
    raise(SIGUSR1);
    std::_Exit(handled);
  };
  EXPECT_EXIT(handle(), ::testing::ExitedWithCode(1), "");
}

}  // namespace
}  // namespace ds::kernels
