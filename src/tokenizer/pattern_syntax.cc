#include "tokenizer/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <optional>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace ds {
namespace {

// A set of characters as the inside of a bracket class, or all others.
struct CharSet {
  std::string text;
  bool negated = false;

  std::string alone() const {
    // One property needs no brackets; without them PCRE2 is faster.
    if (text.starts_with("\\p{") && text.find('}') + 1 == text.size()) {
      return str_cat(negated ? "\\P" : "\\p", std::string_view(text).substr(2));
    }
    return str_cat(negated ? "[^" : "[", text, "]");
  }
  CharSet inverted() const { return {text, !negated}; }
};

// White_Space: PCRE2's own \s contains U+180E.
constexpr const char* kSpace = "\\t-\\r\\x{85}\\p{Z}";
constexpr const char* kHex = "0-9a-fA-F";
// Alphabetic and Lowercase of Unicode 16 for characters that PCRE2 10.42 (Unicode 14) knows.
#define DS_ALPHABETIC                                                                         \
  "\\p{Alphabetic}\\x{363}-\\x{36F}\\x{C04}\\x{F82}\\x{F83}\\x{1DD3}-\\x{1DE6}\\x{11080}\\x{" \
  "11081}"
constexpr const char* kLower = "\\p{Lowercase}\\x{10FC}\\x{A7F2}-\\x{A7F4}\\x{AB69}";
// Word characters: PCRE2's own \w lacks marks. Outside of brackets, and for \b, Oniguruma counts
// Latin-1's raised digits and fractions among them, inside it does not.
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr const char* kBareWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

struct NamedSet {
  const char* name;
  const char* text;
  bool negated;
};

// The same names serve [:name:] and \p{name}, but for punct.
constexpr std::array kPosix = {NamedSet{"alnum", DS_ALPHABETIC "\\p{Nd}", false},
                               NamedSet{"alpha", DS_ALPHABETIC, false},
                               NamedSet{"ascii", "\\x{0}-\\x{7F}", false},
                               NamedSet{"blank", "\\t\\p{Zs}", false},
                               NamedSet{"cntrl", "\\p{Cc}", false},
                               NamedSet{"digit", "\\p{Nd}", false},
                               NamedSet{"graph", "\\p{Cc}\\p{Cn}\\p{Cs}\\p{Z}", true},
                               NamedSet{"lower", kLower, false},
                               NamedSet{"print", "\\p{Cc}\\p{Cn}\\p{Cs}\\p{Zl}\\p{Zp}", true},
                               NamedSet{"punct", "\\p{P}\\p{S}", false},
                               NamedSet{"space", kSpace, false},
                               NamedSet{"upper", "\\p{Uppercase}", false},
                               NamedSet{"xdigit", kHex, false},
                               NamedSet{"word", kWord, false}};

// Properties that PCRE2 does not know by these names; compared without case, blanks, - and _.
constexpr std::array kProperties = {NamedSet{"punct", "\\p{P}", false},
                                    NamedSet{"word", kBareWord, false},
                                    NamedSet{"alphabetic", DS_ALPHABETIC, false},
                                    NamedSet{"lowercase", kLower, false},
                                    NamedSet{"whitespace", kSpace, false},
                                    NamedSet{"assigned", "\\p{Cn}", true},
                                    NamedSet{"other", "\\p{C}", false},
                                    NamedSet{"control", "\\p{Cc}", false},
                                    NamedSet{"format", "\\p{Cf}", false},
                                    NamedSet{"unassigned", "\\p{Cn}", false},
                                    NamedSet{"privateuse", "\\p{Co}", false},
                                    NamedSet{"surrogate", "\\p{Cs}", false},
                                    NamedSet{"letter", "\\p{L}", false},
                                    NamedSet{"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}", false},
                                    NamedSet{"lc", "\\p{Lu}\\p{Ll}\\p{Lt}", false},
                                    NamedSet{"lowercaseletter", "\\p{Ll}", false},
                                    NamedSet{"modifierletter", "\\p{Lm}", false},
                                    NamedSet{"otherletter", "\\p{Lo}", false},
                                    NamedSet{"titlecaseletter", "\\p{Lt}", false},
                                    NamedSet{"uppercaseletter", "\\p{Lu}", false},
                                    NamedSet{"mark", "\\p{M}", false},
                                    NamedSet{"combiningmark", "\\p{M}", false},
                                    NamedSet{"spacingmark", "\\p{Mc}", false},
                                    NamedSet{"enclosingmark", "\\p{Me}", false},
                                    NamedSet{"nonspacingmark", "\\p{Mn}", false},
                                    NamedSet{"number", "\\p{N}", false},
                                    NamedSet{"decimalnumber", "\\p{Nd}", false},
                                    NamedSet{"letternumber", "\\p{Nl}", false},
                                    NamedSet{"othernumber", "\\p{No}", false},
                                    NamedSet{"punctuation", "\\p{P}", false},
                                    NamedSet{"connectorpunctuation", "\\p{Pc}", false},
                                    NamedSet{"dashpunctuation", "\\p{Pd}", false},
                                    NamedSet{"closepunctuation", "\\p{Pe}", false},
                                    NamedSet{"finalpunctuation", "\\p{Pf}", false},
                                    NamedSet{"initialpunctuation", "\\p{Pi}", false},
                                    NamedSet{"otherpunctuation", "\\p{Po}", false},
                                    NamedSet{"openpunctuation", "\\p{Ps}", false},
                                    NamedSet{"symbol", "\\p{S}", false},
                                    NamedSet{"currencysymbol", "\\p{Sc}", false},
                                    NamedSet{"modifiersymbol", "\\p{Sk}", false},
                                    NamedSet{"mathsymbol", "\\p{Sm}", false},
                                    NamedSet{"othersymbol", "\\p{So}", false},
                                    NamedSet{"separator", "\\p{Z}", false},
                                    NamedSet{"lineseparator", "\\p{Zl}", false},
                                    NamedSet{"paragraphseparator", "\\p{Zp}", false},
                                    NamedSet{"spaceseparator", "\\p{Zs}", false}};

template <size_t N>
std::optional<CharSet> named(const std::array<NamedSet, N>& sets, std::string_view name) {
  for (const NamedSet& set : sets) {
    if (name == set.name) return CharSet{set.text, set.negated};
  }
  return std::nullopt;
}

bool pcre2_knows(const std::string& pattern) {
  int error = 0;
  size_t where = 0;
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &where, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view what) : in_(pattern), what_(what) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    fail(Code::kUnsupported, what_, ": the pattern \"", printable(in_), "\" uses ", construct,
         ", which is not supported; rewrite it without");
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (!in_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  // What a quantifier that follows belongs to.
  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  void step() {
    const char c = in_[at_];
    if (c == '\\') return escape();
    if (c == '[') {
      ++at_;
      return atom(bracket_class());
    }
    if (c == '(') return open_group();
    if (c == '{' && interval()) return;
    ++at_;
    if (c == ')' && !groups_.empty()) {
      out_ += c;
      atom_ = groups_.back();
      groups_.pop_back();
    } else if (c == '*' || c == '+' || c == '?') {
      out_ += c;
    } else {
      atom(std::string_view(&c, 1));
    }
  }

  // Ruby's options are i, x and m, which PCRE2 calls s: a dot that matches line ends.
  void open_group() {
    groups_.push_back(out_.size());
    ++at_;
    out_ += '(';
    if (peek() != '?') return;
    if (peek(1) == '~') refuse("an absent operator (?~...)");
    const size_t end = in_.find_first_not_of("imx-", at_ + 1);
    const char next = end < in_.size() ? in_[end] : '\0';
    if (end == at_ + 1 || (next != ':' && next != ')')) {
      if (std::isalpha(static_cast<unsigned char>(peek(1))) != 0 && peek(1) != 'P') {
        refuse(
            str_cat("the option or group (?", std::string(1, next), ", unknown to Ruby's syntax"));
      }
      return;
    }
    for (const char option : in_.substr(at_, end - at_)) out_ += option == 'm' ? 's' : option;
    at_ = end;
  }

  // {n}, {n,}, {,m}, {n,m}. PCRE2 knows no {,m}, and takes a + behind for a possessive quantifier
  // where Ruby repeats once more.
  bool interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && is_digit(in_[end])) ++end;
    const std::string low(in_.substr(at_ + 1, end - at_ - 1));
    std::optional<std::string> high;
    if (end < in_.size() && in_[end] == ',') {
      const size_t begin = ++end;
      while (end < in_.size() && is_digit(in_[end])) ++end;
      high = std::string(in_.substr(begin, end - begin));
    }
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.value_or("").empty())) {
      return false;
    }
    at_ = end + 1;
    out_ += "{" + (low.empty() ? "0" : low) + (high ? "," + *high : "") + "}";
    if (peek() != '+') return true;
    out_.insert(atom_, "(?:");
    out_ += ")";
    return true;
  }

  // A set that an escape means, behind the backslash; nothing for other escapes.
  std::optional<CharSet> escaped_set(bool inside) {
    const char letter = peek();
    const auto simple = [&](const char* text) {
      ++at_;
      return CharSet{text, std::isupper(static_cast<unsigned char>(letter)) != 0};
    };
    switch (letter) {
      case 's':
      case 'S':
        return simple(kSpace);
      case 'w':
      case 'W':
        return simple(inside ? kWord : kBareWord);
      case 'h':
      case 'H':
        return simple(kHex);
      case 'd':
      case 'D':
        return simple("\\p{Nd}");
      case 'p':
      case 'P':
        if (peek(1) == '{') return property();
        return std::nullopt;
      default:
        return std::nullopt;
    }
  }

  CharSet property() {
    bool negated = peek() == 'P';
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) refuse("an unfinished property name");
    std::string_view given = in_.substr(at_ + 2, close - at_ - 2);
    at_ = close + 1;
    if (given.starts_with('^')) {
      negated = !negated;
      given.remove_prefix(1);
    }
    std::string name;
    for (const char c : given) {
      const auto byte = static_cast<unsigned char>(c);
      if (std::isalnum(byte) != 0) name += static_cast<char>(std::tolower(byte));
      if (std::isalnum(byte) == 0 && c != ' ' && c != '-' && c != '_') refuse_property(given);
    }
    std::optional<CharSet> set = named(kProperties, name);
    if (!set) set = named(kPosix, name);
    // A name alone would also mean characters that the script shares with others.
    const std::string script = str_cat("\\p{sc:", given, "}"), any = str_cat("\\p{", given, "}");
    if (!set && name.size() > 2 && pcre2_knows(script)) set = CharSet{script};
    if (!set && pcre2_knows(any)) set = CharSet{any};
    if (!set) refuse_property(given);
    return negated ? set->inverted() : *set;
  }
  [[noreturn]] void refuse_property(std::string_view name) const {
    refuse(str_cat("the property ", printable(name)));
  }

  void escape() {
    ++at_;
    if (at_ == in_.size()) {
      out_ += '\\';
      return;
    }
    if (const std::optional<CharSet> set = escaped_set(false)) return atom(set->alone());
    const std::string word = CharSet{kBareWord}.alone();
    switch (peek()) {
      case 'b':
        ++at_;
        return atom(str_cat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))"));
      case 'B':
        ++at_;
        return atom(str_cat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))"));
      case 'O':
        ++at_;
        return atom("(?s:.)");
      default:
        return atom(escaped_character());
    }
  }

  // Of one character, or of what both take for the same.
  std::string escaped_character() {
    const char letter = in_[at_++];
    switch (letter) {
      case 'u':
        if (is_hex(peek()) && is_hex(peek(1)) && is_hex(peek(2)) && is_hex(peek(3))) {
          at_ += 4;
          return str_cat("\\x{", in_.substr(at_ - 4, 4), "}");
        }
        refuse("\\u without four hexadecimal digits");
      case 'x':
        if (peek() == '{' && in_.find('}', at_) != std::string_view::npos) {
          const size_t begin = at_;
          at_ = in_.find('}', at_) + 1;
          return str_cat("\\x", in_.substr(begin, at_ - begin));
        }
        return "\\x";
      case 'v':
        return "\\x{B}";
      // Letters that mean nothing to Ruby.
      case 'p':
      case 'P':
      case 'V':
      case 'Q':
      case 'E':
      case 'L':
      case 'U':
      case 'l':
        return std::string(1, letter);
      default:
        return {'\\', letter};
    }
  }

  struct Members {
    std::string text;               // inside of brackets
    std::vector<std::string> rest;  // further members: all characters but these
  };

  // A class of single characters, behind its opening bracket.
  std::string bracket_class() {
    const bool negated = take("^");
    Members members;
    // A bracket right after the opening (or its ^) is a member, not the end.
    bool after_set = take("]");
    if (after_set) members.text += "\\]";
    for (bool first = !after_set;; first = false) {
      if (at_ >= in_.size()) refuse("an unfinished bracket class");
      const char c = in_[at_];
      if (c == ']') break;
      if (c == '&' && peek(1) == '&') refuse("&& in a class");
      std::optional<CharSet> set;
      if (c == '[') {
        if (peek(1) != ':') refuse("a nested class");
        set = posix_class();
      } else if (c == '\\' && at_ + 1 < in_.size()) {
        ++at_;
        set = escaped_set(true);
        if (!set) members.text += escaped_character();
      } else if (c == '-' && (first || after_set)) {
        members.text += "\\-";
        ++at_;
      } else {
        members.text += c;
        ++at_;
        // The end of a range may not be a set.
        const bool escaped = peek() == '\\' && std::strchr("sSwWhHdDpP", peek(1)) != nullptr;
        if (c == '-' && (escaped || (peek() == '[' && peek(1) == ':'))) {
          refuse("a range that ends with a set");
        }
      }
      if (set && set->negated) members.rest.push_back(set->text);
      if (set && !set->negated) members.text += set->text;
      after_set = set.has_value();
    }
    ++at_;
    return class_of(members, negated);
  }

  CharSet posix_class() {
    const size_t close = in_.find(":]", at_);
    if (close == std::string_view::npos) refuse("an unfinished class name");
    std::string_view name = in_.substr(at_ + 2, close - at_ - 2);
    at_ = close + 2;
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const std::optional<CharSet> set = named(kPosix, name);
    if (!set) refuse(str_cat("the class [:", printable(name), ":]"));
    return negated ? set->inverted() : *set;
  }

  // PCRE2's brackets hold no complements of several properties. Beside them they become
  // alternatives that are not tried twice; in a negated class, all that a character must be.
  static std::string class_of(const Members& members, bool negated) {
    if (members.rest.empty()) return CharSet{members.text, negated}.alone();
    std::string out = negated ? "(?:" : "(?>";
    if (!members.text.empty()) {
      out += negated ? "(?![" + members.text + "])" : "[" + members.text + "]|";
    }
    for (size_t i = 0; i < members.rest.size(); ++i) {
      const bool last = i + 1 == members.rest.size();
      const std::string set = (negated ? "[" : "[^") + members.rest[i] + "]";
      if (negated) {
        out += last ? set : "(?=" + set + ")";
      } else {
        out += last ? set : set + "|";
      }
    }
    return out + ")";
  }

  std::string_view in_;
  std::string_view what_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where the last one begins in out_
  std::vector<size_t> groups_;  // where the open ones begin
};

}  // namespace

std::string translate_pattern(std::string_view pattern, std::string_view what) {
  return Translator(pattern, what).run();
}

}  // namespace ds
