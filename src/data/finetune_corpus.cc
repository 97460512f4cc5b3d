#include "data/finetune_corpus.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "data/text_reader.h"

namespace ds {
namespace {

constexpr std::array kRoles = {"system", "user", "assistant", "tool"};
// ShareGPT's names of them.
constexpr std::pair<std::string_view, std::string_view> kSpeakers[] = {
    {"human", "user"},      {"gpt", "assistant"},  {"chatgpt", "assistant"},
    {"bing", "assistant"},  {"bard", "assistant"}, {"function_response", "tool"},
    {"observation", "tool"}};

class Builder {
 public:
  Builder(std::string_view what, TokenizerPtr tokenizer, const FinetuneOptions& options)
      : what_(printable(what, 300)), tokenizer_(std::move(tokenizer)), options_(options) {
    DS_CHECK(options.max_line_bytes > 0, Code::kInvalidArgument, "max_line_bytes is ",
             options.max_line_bytes, "; it must be at least 1");
    if (tokenizer_ == nullptr) tokenizer_ = make_byte_tokenizer();
    if (options.append_end) end_ = tokenizer_->eos_id();
    if (options.add_begin) begin_ = tokenizer_->begin_ids();
  }

  void add_line(std::string_view line, int64_t number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    const std::string where = str_cat(what_, ":", number);
    DS_CHECK(static_cast<int64_t>(line.size()) <= options_.max_line_bytes, Code::kInvalidArgument,
             where, ": the line has ", line.size(), " bytes; at most ", options_.max_line_bytes,
             " are read");
    const Json json = parse_json(line, where, Code::kCorrupt);
    DS_CHECK(json.is_object(), Code::kCorrupt, where, ": a line must be a JSON object, not ",
             json.type_name());
    MaskedTokens& out = corpus_.tokens;
    const size_t first = out.size();
    for (const int32_t id : begin_) out.push_back(~id);
    add_example(json, where);
    if (options_.learn_prompts) {
      for (size_t i = first; i < out.size(); ++i) out[i] = token_of(out[i]);
    }
    ++corpus_.stats.lines;
    // Behind the last learned token there is nothing to learn, and the first token is never
    // predicted.
    while (out.size() > first && !is_learned(out.back())) out.pop_back();
    if (out.size() < first + 2) {
      out.resize(first);
      ++corpus_.stats.without_labels;
      return;
    }
    corpus_.ends.push_back(static_cast<int64_t>(out.size()));
  }

  FinetuneCorpus finish() {
    corpus_.stats.examples = corpus_.example_count();
    corpus_.stats.tokens = static_cast<int64_t>(corpus_.tokens.size());
    return std::move(corpus_);
  }

 private:
  void put(const std::string& text, bool learned) {
    MaskedTokens& out = corpus_.tokens;
    const size_t before = out.size();
    tokenizer_->append_encoded(text, {.parse_special_tokens = options_.parse_special_tokens}, out);
    if (learned) return;
    for (size_t i = before; i < out.size(); ++i) out[i] = ~out[i];
  }

  void put_end() {
    if (end_) corpus_.tokens.push_back(*end_);
  }

  void add_example(const Json& json, const std::string& where) {
    const Json* const messages = find_field(json, "messages", where);
    const Json* const prompt = find_field(json, "prompt", where);
    const Json* const completion = find_field(json, "completion", where);
    const Json* const text = find_field(json, "text", where);
    const Json* const turns = find_field(json, "conversations", where);
    const bool pair = prompt != nullptr || completion != nullptr;
    const int known = (messages != nullptr) + pair + (text != nullptr) + (turns != nullptr);
    // "text" beside "instruction" is how Alpaca's files repeat the whole example.
    const bool instruction = find_field(json, "instruction", where) != nullptr;
    DS_CHECK(known == (instruction ? (text != nullptr) : 1), Code::kCorrupt, where,
             ": a line must have exactly one of \"messages\", \"conversations\", \"prompt\" with "
             "\"completion\", \"instruction\" with \"output\", and \"text\"");
    if (instruction) {
      add_instruction(json, where);
    } else if (turns != nullptr) {
      add_chat(messages_of(*turns, where, "conversations", "from", "value"));
    } else if (text != nullptr) {
      put(as_text(*text, str_cat(where, ": \"text\"")), true);
      put_end();
    } else if (pair) {
      DS_CHECK(prompt != nullptr && completion != nullptr, Code::kCorrupt, where, ": \"",
               prompt != nullptr ? "completion" : "prompt", "\" is missing");
      put(as_text(*prompt, str_cat(where, ": \"prompt\"")), false);
      put(as_text(*completion, str_cat(where, ": \"completion\"")), true);
      put_end();
    } else {
      add_chat(messages_of(*messages, where, "messages", "role", "content"));
    }
  }

  void add_instruction(const Json& json, const std::string& where) {
    ChatMessage user{"user", text_field(json, "instruction", where)};
    if (const Json* const input = find_field(json, "input", where)) {
      const std::string text = as_text(*input, str_cat(where, ": \"input\""));
      if (!text.empty()) user.content += "\n" + text;
    }
    add_chat({std::move(user), {"assistant", text_field(json, "output", where)}});
  }

  static std::vector<ChatMessage> messages_of(const Json& json, const std::string& where,
                                              const char* list, const char* who, const char* what) {
    DS_CHECK(json.is_array(), Code::kCorrupt, where, ": \"", list, "\" must be an array, not ",
             json.type_name());
    std::vector<ChatMessage> messages;
    for (const Json& item : json) {
      const std::string place = str_cat(where, ": ", list, "[", messages.size(), "]");
      ChatMessage message{text_field(item, who, place), text_field(item, what, place)};
      if (std::string_view(who) == "from") {
        for (const auto& [name, role] : kSpeakers) {
          if (message.role == name) message.role = role;
        }
      }
      DS_CHECK(std::find(kRoles.begin(), kRoles.end(), message.role) != kRoles.end(),
               Code::kCorrupt, place, ".", who, " is \"", printable(message.role),
               "\"; known are system, user, assistant and tool");
      messages.push_back(std::move(message));
    }
    return messages;
  }

  void add_chat(const std::vector<ChatMessage>& messages) {
    if (!renderer_) renderer_.emplace(options_.chat, tokenizer_);
    if (options_.add_begin && begin_.empty() && renderer_->begin_token()) {
      corpus_.tokens.push_back(~*renderer_->begin_token());
    }
    renderer_->append(messages, corpus_.tokens);
    if (!renderer_->ends_turns() && !messages.empty() && messages.back().role == "assistant") {
      put_end();
    }
  }

  std::string what_;
  TokenizerPtr tokenizer_;
  const FinetuneOptions& options_;
  std::optional<ChatRenderer> renderer_;  // made when there is a chat: templates need their tokens
  std::optional<int32_t> end_;
  std::vector<int32_t> begin_;
  FinetuneCorpus corpus_;
};

}  // namespace

FinetuneCorpus load_finetune_corpus(const std::filesystem::path& path,
                                    const TokenizerPtr& tokenizer, const FinetuneOptions& options) {
  Builder builder(path.string(), tokenizer, options);
  LineReader reader(path, options.max_line_bytes);
  while (const auto line = reader.next()) builder.add_line(*line, reader.line_number());
  return builder.finish();
}

FinetuneCorpus parse_finetune_corpus(std::string_view json_lines, std::string_view what,
                                     const TokenizerPtr& tokenizer,
                                     const FinetuneOptions& options) {
  Builder builder(what, tokenizer, options);
  int64_t number = 0;
  while (!json_lines.empty()) {
    const size_t end = std::min(json_lines.find('\n'), json_lines.size());
    builder.add_line(json_lines.substr(0, end), ++number);
    json_lines.remove_prefix(std::min(end + 1, json_lines.size()));
  }
  return builder.finish();
}

}  // namespace ds
