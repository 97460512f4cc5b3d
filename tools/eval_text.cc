#include "eval_text.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>

#include "blanks.h"
#include "detokenize.h"
#include "ds.hpp"
#include "failure.h"
#include "files.h"
#include "format.h"

namespace tool {
namespace {

int64_t count_words(std::string_view text) {
  int64_t words = 0;
  for (size_t at = 0; (at = text.find_first_not_of(kBlanks, at)) != std::string_view::npos;) {
    ++words;
    at = std::min(text.find_first_of(kBlanks, at), text.size());
  }
  return words;
}

// Little-endian numbers of a file that was read whole, bounds checked.
class Bytes {
 public:
  Bytes(const std::string& bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  template <class T>
  T at(uint64_t offset) const {
    static_assert(std::endian::native == std::endian::little);
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) {
      throw Failure(name_ + " ends too early: " + std::to_string(bytes_.size()) + " bytes");
    }
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

 private:
  const std::string& bytes_;
  const std::string& name_;
};

// One token of the .bin file, by the .idx file's code of its type.
struct TokenType {
  uint64_t size = 0;
  int64_t (*read)(const Bytes& bytes, uint64_t offset) = nullptr;
};

template <class T>
constexpr TokenType token_type() {
  return {sizeof(T), [](const Bytes& bytes, uint64_t offset) {
            return static_cast<int64_t>(bytes.at<T>(offset));
          }};
}

TokenType token_type(uint8_t code, const std::string& name) {
  switch (code) {
    case 1:
      return token_type<uint8_t>();
    case 2:
      return token_type<int8_t>();
    case 3:
      return token_type<int16_t>();
    case 4:
      return token_type<int32_t>();
    case 5:
      return token_type<int64_t>();
    case 8:
      return token_type<uint16_t>();
    default:
      throw Failure(name + " holds no token ids: type " + std::to_string(code));
  }
}

// The sequences of Megatron's format one after another, as they were written.
std::vector<int32_t> read_prefix(const std::string& prefix) {
  const std::string idx_name = prefix + ".idx", bin_name = prefix + ".bin";
  const std::string idx_text = read_text(idx_name), bin_text = read_text(bin_name);
  const Bytes idx(idx_text, idx_name), bin(bin_text, bin_name);
  constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
  if (std::string_view(idx_text).substr(0, kMagic.size()) != kMagic || idx.at<uint64_t>(9) != 1) {
    throw Failure(idx_name + " is no index of tokens (version 1)");
  }
  const TokenType type = token_type(idx.at<uint8_t>(17), idx_name);
  const auto count = idx.at<uint64_t>(18);
  constexpr uint64_t kSizes = 34;  // after the two counts
  if (count > idx_text.size() / 12) throw Failure(idx_name + " ends too early");
  const uint64_t pointers = kSizes + count * 4;
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < count; ++i) {
    const auto size = idx.at<int32_t>(kSizes + i * 4);
    const auto begin = idx.at<int64_t>(pointers + i * 8);
    if (size < 0 || begin < 0 || static_cast<uint64_t>(size) > bin_text.size() / type.size) {
      throw Failure(idx_name + " is damaged at sequence " + std::to_string(i));
    }
    for (uint64_t t = 0; t < static_cast<uint64_t>(size); ++t) {
      const int64_t id = type.read(bin, static_cast<uint64_t>(begin) + t * type.size);
      if (id < 0 || id > INT32_MAX) throw Failure(bin_name + " holds a number that is no token");
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  return ids;
}

bool is_json_lines(const std::string& path) {
  return path.size() > 6 && path.compare(path.size() - 6, 6, ".jsonl") == 0;
}

}  // namespace

bool is_token_prefix(const std::string& path) {
  return !file_exists(path) && file_exists(path + ".bin") && file_exists(path + ".idx");
}

std::vector<std::string> read_json_lines(const std::string& path, int64_t limit) {
  std::istringstream lines(read_text(path));
  std::vector<std::string> texts;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(kBlanks) == std::string::npos) continue;
    if (limit > 0 && static_cast<int64_t>(texts.size()) == limit) break;
    const std::string where = path + ", line " + std::to_string(number);
    const Json document = parse_json(line, where);
    if (!document.is_object() || !document.contains("text") || !document["text"].is_string()) {
      throw Failure(where + ": an object with a \"text\" is needed");
    }
    texts.push_back(document["text"].get<std::string>());
  }
  if (texts.empty()) throw Failure(path + " holds no text");
  return texts;
}

TokenizedText read_token_text(const std::string& path, const libds::Tokenizer* tokenizer,
                              const TextOptions& options) {
  TokenizedText out;
  if (is_token_prefix(path)) {
    if (options.wikitext) throw Failure(path + " holds tokens: only text can be detokenised");
    out.ids = read_prefix(path);
    if (tokenizer != nullptr && !out.ids.empty()) {
      out.words = count_words(tokenizer->decode(out.ids, /*skip_special=*/true));
    }
    return out;
  }
  const std::vector<std::string> texts =
      is_json_lines(path) ? read_json_lines(path, 0) : std::vector<std::string>{read_text(path)};
  const auto end_of_text = tokenizer->end_of_text();
  out.words = 0;
  for (const std::string& text : texts) {
    const std::string source = options.wikitext ? wikitext_detokenized(text) : text;
    if (!out.ids.empty() && end_of_text) out.ids.push_back(*end_of_text);
    const auto ids = tokenizer->encode(source, options.special).to_vector<int32_t>();
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    *out.words += options.wikitext ? wikitext_words(text) : count_words(text);
  }
  return out;
}

std::optional<LastWord> split_last_word(std::string_view text, const libds::Tokenizer& tokenizer,
                                        bool special) {
  const size_t last = text.find_last_not_of(kBlanks);
  if (last == std::string_view::npos) return std::nullopt;
  const size_t blank = text.find_last_of(kBlanks, last);
  if (blank == std::string_view::npos) return std::nullopt;
  const std::string word = " " + std::string(text.substr(blank + 1, last - blank));
  const size_t end = text.find_last_not_of(kBlanks, blank);
  const size_t begin = text.find_first_not_of(kBlanks);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string context(text.substr(begin, end + 1 - begin));

  LastWord out;
  out.context = tokenizer.encode(context, special).to_vector<int32_t>();
  // What the word is after this context; alone it may read otherwise, as where a tokenizer marks
  // the beginning of every text.
  const auto whole = tokenizer.encode(context + word, special).to_vector<int32_t>();
  if (whole.size() > out.context.size() &&
      std::equal(out.context.begin(), out.context.end(), whole.begin())) {
    out.target.assign(whole.begin() + static_cast<std::ptrdiff_t>(out.context.size()), whole.end());
  } else {
    out.target = tokenizer.encode(word).to_vector<int32_t>();
  }
  return out;
}

}  // namespace tool
