// Whether tests run all they have, as scripts/nightly asks for with DS_TEST_FULL=1. Otherwise the
// slow ones among them take a sample, which each of them describes.
#pragma once

#include <cstdlib>

namespace ds::testing {

inline bool full_run() { return std::getenv("DS_TEST_FULL") != nullptr; }

}  // namespace ds::testing
