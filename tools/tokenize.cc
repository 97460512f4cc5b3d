// `ds tokenize`: text to token ids and back, and text files to PREFIX.bin and PREFIX.idx.
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "command.h"
#include "files.h"
#include "format.h"
#include "model_files.h"

namespace tool {
namespace {

struct TokenizeOptions {
  std::string tokenizer;
  std::vector<std::string> words;
  std::string file;
  std::string prefix;
  bool decode = false;
  bool append_end = false;
  bool special = false;
  bool json = false;
  bool count = false;
};

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

// The words of the command line, the file, or standard input.
std::string input_text(const TokenizeOptions& o) {
  if (!o.file.empty()) return read_text(o.file);
  if (o.words.empty() || (o.words.size() == 1 && o.words[0] == "-")) return read_text("-");
  return joined(o.words);
}

// Ids separated by blanks or commas; the brackets of a JSON list may stay.
std::vector<int32_t> parse_ids(std::string text) {
  for (char& c : text) {
    if (c == ',' || c == '[' || c == ']') c = ' ';
  }
  std::istringstream words(text);
  std::vector<int32_t> ids;
  for (std::string word; words >> word;) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      throw Failure("'" + word + "' is no token id");
    }
    ids.push_back(id);
  }
  return ids;
}

void build(const TokenizeOptions& o, const libds::Tokenizer& tokenizer) {
  libds::Dataset::build(o.file, tokenizer, o.append_end, o.prefix);
  const auto size_of = [](const std::string& path) {
    return format_bytes(static_cast<double>(std::filesystem::file_size(path)));
  };
  const std::string bin = o.prefix + ".bin";
  const std::string idx = o.prefix + ".idx";
  std::cout << "wrote " << bin << " (" << size_of(bin) << ") and " << idx << " (" << size_of(idx)
            << ")\n";
}

int run_tokenize(const TokenizeOptions& o) {
  if (!o.prefix.empty() && o.file.empty()) throw UsageError("--build needs --file");
  const libds::Tokenizer tokenizer =
      o.tokenizer.empty() ? libds::Tokenizer::bytes() : open_tokenizer(o.tokenizer);
  if (!o.prefix.empty()) {
    build(o, tokenizer);
    return kDone;
  }
  if (o.decode) {
    std::cout << tokenizer.decode(parse_ids(input_text(o)), /*skip_special=*/!o.special) << "\n";
    return kDone;
  }
  const auto ids = tokenizer.encode(input_text(o), o.special).to_vector<int32_t>();
  if (o.count) {
    std::cout << ids.size() << "\n";
  } else if (o.json) {
    std::cout << Json(ids).dump() << "\n";
  } else {
    std::string line;
    for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
    std::cout << line << "\n";
  }
  return kDone;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("tokenize", "Turn text into token ids and back");
  auto options = std::make_shared<TokenizeOptions>();
  TokenizeOptions& o = *options;
  auto* text =
      sub->add_option("text", o.words, "text, or ids with --decode; none or - reads standard input")
          ->type_name("TEXT");
  sub->add_option("--tokenizer", o.tokenizer,
                  "tokenizer.json, or a folder or checkpoint that holds one; default: bytes")
      ->type_name("FILE");
  auto* file =
      sub->add_option("--file", o.file, "read this file instead of TEXT")->type_name("FILE");
  auto* prefix = sub->add_option("--build", o.prefix,
                                 "write the tokens of --file (text or .jsonl) as PREFIX.bin and "
                                 "PREFIX.idx for training")
                     ->type_name("PREFIX");
  auto* append = sub->add_flag("--append-end", o.append_end,
                               "with --build: one end-of-text token after each document");
  auto* decode = sub->add_flag("--decode", o.decode, "ids to text");
  sub->add_flag("--special", o.special,
                "encoding: add the template's tokens; decoding: show special tokens");
  auto* json = sub->add_flag("--json", o.json, "print the ids as a JSON list");
  auto* count = sub->add_flag("--count", o.count, "print how many tokens there are");
  file->excludes(text);
  append->needs(prefix);
  decode->excludes(prefix)->excludes(json)->excludes(count);
  json->excludes(count);
  sub->callback([&action, options] { action = [options] { return run_tokenize(*options); }; });
}

}  // namespace tool
