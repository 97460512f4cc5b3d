// Regular expressions in Oniguruma's Ruby syntax, as tokenizer.json has them, rewritten for PCRE2
// so that both mean the same characters. What cannot be said to PCRE2 is refused by name.
#pragma once

#include <string>
#include <string_view>

namespace ds {

// The pattern as handed to PCRE2. Throws Error(kUnsupported) naming `what` and the construct.
std::string translate_pattern(std::string_view pattern, std::string_view what);

}  // namespace ds
