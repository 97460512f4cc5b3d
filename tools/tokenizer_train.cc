// `ds tokenizer-train`: learns a byte-level BPE from text files.
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "command.h"
#include "files.h"
#include "format.h"

namespace tool {
namespace {

struct TokenizerTrainOptions {
  std::vector<std::string> files;
  std::string output;
  int64_t vocab_size = 32000;
  int64_t min_frequency = 2;
  std::vector<std::string> special{"<|endoftext|>"};
  bool no_special = false;
};

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The "text" of each line of a .jsonl file, as data sets read it.
std::string texts_of_jsonl(const std::string& content, const std::string& path) {
  std::istringstream lines(content);
  std::string out;
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = path + ", line " + std::to_string(number) + ",";
    const Json object = parse_json(line, place);
    if (!object.is_object() || !object.contains("text") || !object["text"].is_string()) {
      throw Failure(place + " has no string \"text\"");
    }
    out += object["text"].get<std::string>() + "\n";
  }
  return out;
}

int run_tokenizer_train(const TokenizerTrainOptions& o) {
  std::string text;
  for (const std::string& path : o.files) {
    std::string content = read_text(path);
    text += ends_with(path, ".jsonl") ? texts_of_jsonl(content, path) : content;
  }
  if (text.empty()) throw Failure("the files hold no text");
  Json how = {{"vocab_size", o.vocab_size}, {"min_frequency", o.min_frequency}};
  how["special_tokens"] = o.no_special ? std::vector<std::string>{} : o.special;
  const auto tokenizer = libds::Tokenizer::train(text, how.dump());
  write_text(o.output, tokenizer.to_json());
  std::cout << "wrote " << o.output << ": " << tokenizer.vocab_size() << " tokens from "
            << format_bytes(static_cast<double>(text.size())) << " of text\n";
  return kDone;
}

}  // namespace

void add_tokenizer_train(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("tokenizer-train", "Learn a byte-level BPE from text");
  auto options = std::make_shared<TokenizerTrainOptions>();
  TokenizerTrainOptions& o = *options;
  sub->add_option("files", o.files, "text or .jsonl files; - reads standard input")
      ->type_name("FILES")
      ->required();
  sub->add_option("--output", o.output, "the tokenizer.json to write")
      ->type_name("FILE")
      ->required();
  sub->add_option("--vocab-size", o.vocab_size, "tokens, the 256 bytes and special ones included")
      ->check(at_least(1))
      ->capture_default_str();
  sub->add_option("--min-frequency", o.min_frequency, "pairs seen less often are not merged")
      ->check(at_least(1))
      ->capture_default_str();
  auto* special = sub->add_option("--special", o.special,
                                  "special token, one per option; default <|endoftext|>")
                      ->type_name("TOKEN")
                      ->expected(1)
                      ->take_all();
  sub->add_flag("--no-special", o.no_special, "no special tokens at all")->excludes(special);
  sub->callback(
      [&action, options] { action = [options] { return run_tokenizer_train(*options); }; });
}

}  // namespace tool
