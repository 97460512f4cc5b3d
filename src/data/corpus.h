// From text files to tokens: an indexed data set on disk, or a token source in memory.
//
// A file that ends in .jsonl or .json holds one JSON object per line, each a document: its text is
// under `json_key`, a string or a list of strings (sentences, a sequence each). Any other file is
// running text and one document.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/thread_pool.h"
#include "data/token_source.h"
#include "tokenizer/tokenizer.h"

namespace ds {

struct CorpusOptions {
  // End every document with the tokenizer's end-of-document token.
  bool append_eod = false;
  std::string json_key = "text";
  // Off: special tokens spelled out in the text are ordinary text.
  bool parse_special_tokens = true;
  // Encodes JSON lines in parallel; null: on this thread. The result is the same.
  ThreadPool* pool = nullptr;
};

struct CorpusStats {
  int64_t documents = 0;  // those with tokens; others are left out
  int64_t sequences = 0;
  int64_t tokens = 0;
};

// Streams `text_path` into PREFIX.bin and PREFIX.idx; memory does not grow with the file, but for
// running text with its tokens, which are one sequence.
CorpusStats build_indexed_dataset(const std::filesystem::path& text_path,
                                  const Tokenizer& tokenizer,
                                  const std::filesystem::path& out_prefix,
                                  const CorpusOptions& options = {});

// The same tokens in memory. Running text is cut so that it can be split (cut_running_tokens), with
// one end-of-document token at its end.
TokenSourcePtr load_text_source(const std::filesystem::path& text_path, const Tokenizer& tokenizer,
                                int64_t sequence_length, const CorpusOptions& options = {});

// What `data` names: an indexed data set (PREFIX, PREFIX.bin or PREFIX.idx) or a text file, which
// `tokenizer` reads; null means bytes.
TokenSourcePtr open_token_source(const std::filesystem::path& data, TokenizerPtr tokenizer,
                                 int64_t sequence_length, const CorpusOptions& options = {});

}  // namespace ds
