// Regular expressions of tokenizer.json, matched by PCRE2. Patterns are written for
// Oniguruma's Ruby syntax; data/pattern_syntax.h rewrites them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/time_limit.h"

namespace ds {

struct MatchRange {
  size_t begin = 0;
  size_t end = 0;
};

// Immutable and usable from many threads.
class Regex {
 public:
  // Throws Error(kUnsupported) naming `what` when the pattern does not compile.
  Regex(std::string_view pattern, std::string_view what);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // All successive matches in well-formed UTF-8, appended to `out`.
  // Throws Error(kInvalidArgument) once the time is up.
  void find_all(std::string_view text, std::vector<MatchRange>& out, TimeLimit& time) const;

  const std::string& pattern() const noexcept { return pattern_; }

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace ds
