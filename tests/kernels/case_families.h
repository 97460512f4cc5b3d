#pragma once

namespace ds::testing {

// The names of the families whose rows a program has, with a space between each two. ds_link_cases
// (op_cases.cmake) defines it for each.
extern const char* const kCaseFamilies;

}  // namespace ds::testing
