#include "test_paths.h"

namespace ds {

std::filesystem::path test_source() { return DS_TEST_SOURCE; }
std::filesystem::path test_data() { return test_source() / "tests" / "data"; }

}  // namespace ds
