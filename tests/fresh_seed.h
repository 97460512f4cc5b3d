// Seeds of random inputs: new ones in every run of a program. A test that fails prints
// DS_TEST_SEED=n; with that in the environment, it draws the same inputs again, whichever tests run
// beside it.
#pragma once

#include <cstdint>

namespace ds {

// All are at most 2^63 - 1, as options of ds that are seeds.

// One for the whole process.
uint64_t run_seed();

// Another at each call; the n-th of a test depends on run_seed() and the name of the test.
uint64_t fresh_seed();

}  // namespace ds
