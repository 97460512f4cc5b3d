// Patterns of names.
#pragma once

#include <string_view>

namespace ds {

// Whether `text` is `pattern`, in which * stands for any text and ? for any one character.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace ds
