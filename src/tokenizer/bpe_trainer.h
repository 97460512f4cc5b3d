// Trains a byte-level BPE tokenizer on text. Deterministic, and the same merges as Hugging Face's
// `tokenizers` finds on the same texts: highest count first, then the smallest pair of ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace ds {

struct BpeTrainerOptions {
  // Tokens in all: special tokens, 256 bytes and merges. Fewer when the text runs out of pairs.
  int32_t vocab_size = 32000;
  // Pairs that occur less often are not merged.
  int64_t min_frequency = 2;
  // Take the ids from 0. Text that spells one of them is not trained on.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  bool add_prefix_space = false;
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainerOptions options);
  ~BpeTrainer();

  // Each call is a text of its own: words do not reach across.
  void add_text(std::string_view text);

  // The tokenizer from all text so far.
  TokenizerPtr train() const;

 private:
  struct State;
  BpeTrainerOptions options_;
  std::unique_ptr<State> state_;
};

}  // namespace ds
