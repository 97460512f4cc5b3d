// Examples for fine-tuning from JSON lines, as tokens of which a part is learned.
//
// A line is an object with one of
//   "messages": [{"role": ..., "content": ...}, ...]   learned: the assistant's messages
//   "conversations": [{"from": ..., "value": ...}, ...]   the same, as ShareGPT has them: human is
//                                                       the user, gpt the assistant
//   "instruction", perhaps "input", and "output"       the same, as Alpaca has them: a user's
//                                                       message and the assistant's
//   "prompt" and "completion"                          learned: the completion
//   "text"                                             learned: everything
// Other keys are ignored, blank lines skipped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace ds {

struct FinetuneOptions {
  ChatTemplate chat = ChatTemplate::kPlain;
  // End a text, a completion or a plain chat with the tokenizer's end-of-text token, if it has one.
  bool append_end = true;
  // Begin examples with what the tokenizer puts before a text.
  bool add_begin = true;
  // Recognise special tokens spelled out in "text", "prompt" and "completion", which may have been
  // rendered elsewhere. Messages are always ordinary text.
  bool parse_special_tokens = true;
  bool learn_prompts = false;  // everything is learned
  int64_t max_line_bytes = int64_t{64} << 20;
};

struct FinetuneStats {
  int64_t lines = 0;           // with an example
  int64_t without_labels = 0;  // of them, nothing to learn: left out
  int64_t examples = 0;
  int64_t tokens = 0;
};

struct FinetuneCorpus {
  MaskedTokens tokens;        // of all examples; each ends with a learned token
  std::vector<int64_t> ends;  // behind each example
  FinetuneStats stats;

  int64_t example_count() const noexcept { return static_cast<int64_t>(ends.size()); }
  std::span<const int32_t> example(int64_t i) const {
    const int64_t begin = i == 0 ? 0 : ends[static_cast<size_t>(i) - 1];
    return std::span(tokens).subspan(static_cast<size_t>(begin),
                                     static_cast<size_t>(ends[static_cast<size_t>(i)] - begin));
  }
};

// Errors name the file (or `what`) and the line.
FinetuneCorpus load_finetune_corpus(const std::filesystem::path& path,
                                    const TokenizerPtr& tokenizer,
                                    const FinetuneOptions& options = {});
FinetuneCorpus parse_finetune_corpus(std::string_view json_lines, std::string_view what,
                                     const TokenizerPtr& tokenizer,
                                     const FinetuneOptions& options = {});

}  // namespace ds
