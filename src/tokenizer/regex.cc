#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "tokenizer/pattern_syntax.h"

namespace ds {
namespace {

constexpr size_t kMaxPattern = size_t{64} * 1024;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return str_cat("PCRE2 error ", code);
  return reinterpret_cast<const char*>(text);
}

struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, std::string_view what)
    : pattern_(pattern), compiled_(std::make_unique<Compiled>()) {
  DS_CHECK(pattern.size() <= kMaxPattern, Code::kUnsupported, what, ": a pattern of ",
           pattern.size(), " bytes; at most ", kMaxPattern, " are accepted");
  const std::string translated = translate_pattern(pattern, what);
  int error = 0;
  size_t where = 0;
  // NEVER_BACKSLASH_C keeps matches on character boundaries; MULTILINE is Ruby's ^ and $.
  const uint32_t options =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                  translated.size(), options, &error, &where, nullptr);
  DS_CHECK(compiled_->code != nullptr, Code::kUnsupported, what, ": cannot use the pattern \"",
           printable(pattern, 200), "\": ", pcre2_message(error), " near character ", where);
  compiled_->jit = pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::find_all(std::string_view text, std::vector<MatchRange>& out, TimeLimit& time) const {
  const std::unique_ptr<pcre2_match_data, MatchDataFree> data(pcre2_match_data_create(1, nullptr));
  DS_CHECK(data != nullptr, Code::kOutOfMemory, "no memory for a regular expression match");
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const size_t* const range = pcre2_get_ovector_pointer(data.get());
  // The caller vouches for the UTF-8; checking it at every match would be quadratic.
  uint32_t options = PCRE2_NO_UTF_CHECK;
  size_t start = 0;
  while (start <= text.size()) {
    DS_CHECK(!time.passed(), Code::kInvalidArgument, "the pattern \"", printable(pattern_, 200),
             "\" takes too long on a text of ", time.bytes(),
             " bytes; patterns of a tokenizer must "
             "not read the rest of the text again for every match");
    int result =
        pcre2_match(compiled_->code, subject, text.size(), start, options, data.get(), nullptr);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      // Deep backtracking: the interpreter keeps its frames on the heap.
      result = pcre2_match(compiled_->code, subject, text.size(), start, options | PCRE2_NO_JIT,
                           data.get(), nullptr);
    }
    if (result == PCRE2_ERROR_NOMATCH) {
      if ((options & PCRE2_NOTEMPTY_ATSTART) == 0) return;
      // Nothing but the empty match here: step over one character and go on.
      options &= ~static_cast<uint32_t>(PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED);
      do ++start;
      while (start < text.size() && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80);
      continue;
    }
    DS_CHECK(result >= 0, Code::kInvalidArgument, "the pattern \"", printable(pattern_),
             "\" fails on a text of ", text.size(), " bytes: ", pcre2_message(result));
    // \K can put the start behind the end or before the search start; such patterns split nothing.
    DS_CHECK(range[0] <= range[1] && range[0] >= start, Code::kUnsupported, "the pattern \"",
             printable(pattern_), "\" moves the start of its match (\\K), which is not supported");
    out.push_back({range[0], range[1]});
    start = range[1];
    options = PCRE2_NO_UTF_CHECK;
    if (range[0] == range[1]) options |= PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED;
  }
}

}  // namespace ds
