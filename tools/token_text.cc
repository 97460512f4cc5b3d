#include "token_text.h"

namespace tool {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Size without the last characters that a following byte may still repair: at most three bytes of a
// character are missing its end, each of which decodes to U+FFFD.
size_t complete_size(std::string_view text) {
  size_t size = text.size();
  for (int i = 0; i < 3; ++i) {
    if (size < kReplacement.size() ||
        text.substr(size - kReplacement.size(), kReplacement.size()) != kReplacement) {
      break;
    }
    size -= kReplacement.size();
  }
  return size;
}

}  // namespace

std::string TokenText::token(int32_t id) {
  waiting_.push_back(id);
  const std::string text = tokenizer_.decode(waiting_);
  const size_t complete = waiting_.size() < kLongestWait ? complete_size(text) : text.size();
  std::string out = pass_on(text, complete);
  if (complete == text.size()) restart();
  return out;
}

std::string TokenText::finish() {
  const std::string text = tokenizer_.decode(waiting_);
  std::string out = pass_on(text, text.size());
  restart();
  return out + stop_.rest();
}

std::string TokenText::pass_on(std::string_view text, size_t end) {
  if (end <= passed_) return {};
  std::string out = stop_.add(text.substr(passed_, end - passed_));
  passed_ = end;
  return out;
}

void TokenText::restart() {
  waiting_.clear();
  passed_ = 0;
}

}  // namespace tool
