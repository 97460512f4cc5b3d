#include "fresh_seed.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <string_view>

namespace ds {
namespace {

uint64_t mixed(uint64_t value) {  // the finalizer of splitmix64
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// Prints the seed of the run beside each test that fails.
class SeedPrinter : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test.result()->Failed()) {
      std::cout << test.test_suite_name() << "." << test.name()
                << ": repeat with DS_TEST_SEED=" << run_seed() << "\n";
    }
  }
};

// Before main, where GoogleTest takes listeners; it owns them.
[[maybe_unused]] const bool kPrinter = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedPrinter);
  return true;
}();

std::string name_of_test() {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return test == nullptr ? "" : std::string(test->test_suite_name()) + "." + test->name();
}

}  // namespace

uint64_t run_seed() {
  static const uint64_t seed = [] {
    if (const char* text = std::getenv("DS_TEST_SEED")) {
      return static_cast<uint64_t>(std::strtoull(text, nullptr, 0)) & (~uint64_t{0} >> 1);
    }
    std::random_device device;
    return uint64_t{device()} << 31 ^ device();
  }();
  return seed;
}

uint64_t fresh_seed() {
  static std::mutex mutex;
  static std::map<std::string, uint64_t> calls;
  const std::string name = name_of_test();
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  const std::lock_guard lock(mutex);
  return mixed(run_seed() ^ mixed(hash + ++calls[name])) >> 1;
}

}  // namespace ds
