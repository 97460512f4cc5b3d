// What separates words: ASCII's blanks, as C's isspace has them.
#pragma once

#include <string_view>

namespace tool {

inline constexpr std::string_view kBlanks = " \t\n\v\f\r";

}  // namespace tool
