// Where the tree that a test was built from lies. In functions, so that sources which read its
// files compile to the same in every checkout and may share a translation unit.
#pragma once

#include <filesystem>

namespace ds {

std::filesystem::path test_source();  // the root of the tree
std::filesystem::path test_data();    // tests/data in it

}  // namespace ds
