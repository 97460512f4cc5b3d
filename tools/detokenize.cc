#include "detokenize.h"

#include <algorithm>
#include <utility>

#include "blanks.h"

namespace tool {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.append(text, at, found - at).append(to);
  }
  text = std::move(out.append(text, at));
}

std::string_view stripped(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// Takes the blanks away inside of brackets or quotes. Each opening one ends at the next closing
// one.
void close_up(std::string& text, char open, char close) {
  const std::string_view rest(text);
  std::string out;
  size_t at = 0;
  for (;;) {
    const size_t begin = rest.find(open, at);
    const size_t end = begin == std::string_view::npos ? begin : rest.find(close, begin + 1);
    if (end == std::string_view::npos) break;
    out.append(rest.substr(at, begin + 1 - at));
    out.append(stripped(rest.substr(begin + 1, end - begin - 1))).push_back(close);
    at = end + 1;
  }
  text = std::move(out.append(rest.substr(at)));
}

}  // namespace

std::string wikitext_detokenized(std::string text) {
  using Pair = std::pair<std::string_view, std::string_view>;
  const auto replace = [&](std::initializer_list<Pair> pairs) {
    for (const auto& [from, to] : pairs) replace_all(text, from, to);
  };
  replace({{"s '", "s'"}, {" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}});
  replace(
      {{" : ", ": "}, {" ; ", "; "}, {" . ", ". "}, {" ! ", "! "}, {" ? ", "? "}, {" , ", ", "}});
  for (const auto& [open, close] :
       {std::pair('(', ')'), {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}}) {
    close_up(text, open, close);
  }
  replace({{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="}, {" \u00b0 ", "\u00b0"}});
  replace({{" \n", "\n"}, {"\n ", "\n"}, {" N ", " 1 "}, {" 's", "'s"}});
  return text;
}

int64_t wikitext_words(std::string_view text) {
  const std::string_view inner = stripped(text);
  return std::count(inner.begin(), inner.end(), ' ') + 1;
}

}  // namespace tool
