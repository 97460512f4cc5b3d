#include "config/relaxed_json.h"

#include <algorithm>

#include "base/text.h"

namespace ds {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) { out_.text = text; }

  RelaxedJson run() {
    while (at_ < size()) {
      const char c = out_.text[at_];
      if (is_blank(c)) {
        step();
      } else if (c == '#') {
        note(JsonLiberty::Kind::kHashComment, line_, column_);
        to_end_of_line(/*erase=*/true);
      } else if (c == '/' && next() == '/') {
        to_end_of_line(/*erase=*/false);
      } else if (c == '/' && next() == '*') {
        block_comment();
      } else {
        token(c);
      }
    }
    return std::move(out_);
  }

 private:
  size_t size() const { return out_.text.size(); }
  char next() const { return at_ + 1 < size() ? out_.text[at_ + 1] : '\0'; }

  void step() {
    if (out_.text[at_++] == '\n') {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
  }

  void note(JsonLiberty::Kind kind, size_t line, size_t column) {
    out_.liberties.push_back({kind, line, column});
  }

  void to_end_of_line(bool erase) {
    for (; at_ < size() && out_.text[at_] != '\n'; step()) {
      if (erase) out_.text[at_] = ' ';
    }
  }

  void block_comment() {
    step();
    step();
    while (at_ < size() && !(out_.text[at_] == '*' && next() == '/')) step();
    for (int i = 0; i < 2 && at_ < size(); ++i) step();
  }

  // Neither blank nor comment. A comma is trailing when the next token closes what it stands in.
  void token(char c) {
    if ((c == '}' || c == ']') && comma_ != std::string::npos) {
      out_.text[comma_] = ' ';
      note(JsonLiberty::Kind::kTrailingComma, comma_line_, comma_column_);
    }
    comma_ = std::string::npos;
    // A comma after nothing is no trailing one: "[,]" is wrong.
    if (c == ',' && value_before_) {
      comma_ = at_;
      comma_line_ = line_;
      comma_column_ = column_;
    }
    value_before_ = c != ',' && c != '{' && c != '[' && c != ':';
    if (c == '"') {
      string();
    } else {
      step();
    }
  }

  void string() {
    step();
    while (at_ < size() && out_.text[at_] != '"') {
      if (out_.text[at_] == '\\' && at_ + 1 < size()) step();
      step();
    }
    if (at_ < size()) step();
  }

  RelaxedJson out_;
  size_t at_ = 0, line_ = 1, column_ = 1;
  size_t comma_ = std::string::npos, comma_line_ = 0, comma_column_ = 0;
  bool value_before_ = false;
};

}  // namespace

RelaxedJson relax_json(std::string_view text) { return Scanner(text).run(); }

std::string explain_no_json(std::string_view text) {
  const auto plain = [](char c) { return static_cast<unsigned char>(c) > ' ' && c != '"'; };
  const bool one_word = !text.empty() && text.size() < 4096 &&
                        std::none_of(text.begin(), text.end(), [](char c) { return c == '\n'; }) &&
                        plain(text.front()) && text.find_first_of("{}[]\",:") == std::string::npos;
  if (!one_word) return {};
  if (text.find_first_of("./\\") == std::string::npos) return {};
  return str_cat("this is JSON text's place, and ", printable(text, 120),
                 " looks like the name of a file; give the file's content, or use "
                 "ds_engine_create_from_file");
}

}  // namespace ds
