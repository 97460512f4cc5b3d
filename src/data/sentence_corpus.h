// Documents of sentences, which masked-language-model samples are made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/splits.h"
#include "data/token_source.h"
#include "tokenizer/tokenizer.h"

namespace ds {

struct SentenceCorpus {
  TokenSourcePtr sentences;        // a sequence each
  std::vector<int64_t> documents;  // first sentence of each; one more entry for the end

  int64_t document_count() const noexcept { return static_cast<int64_t>(documents.size()) - 1; }
};

// What `path` names: an indexed data set whose sequences are sentences; a .jsonl file whose lines
// have "text", a list of sentences or a string with a sentence per line; or a text file with a
// sentence per line and an empty line between documents. Sentences and documents without tokens
// are left out.
SentenceCorpus open_sentence_corpus(const std::filesystem::path& path,
                                    const TokenizerPtr& tokenizer);
// The text forms from memory; `what` names them in errors.
SentenceCorpus parse_sentence_text(std::string_view text, std::string_view what,
                                   const Tokenizer& tokenizer);
SentenceCorpus parse_sentence_json_lines(std::string_view json_lines, std::string_view what,
                                         const Tokenizer& tokenizer);

}  // namespace ds
