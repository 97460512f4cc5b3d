// Compares a tokenizer with recorded results of another reader: parity_tokenizer TOKENIZER TEXTS
// ROWS, where TEXTS is a JSON list of texts and ROWS one of [ids, ids with special tokens, decoded
// ids]. check_tokenizer.py makes both with the `tokenizers` package.
#include <cstdio>
#include <exception>

#include "base/file.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace {

ds::Json read(const char* path) {
  return ds::parse_json(ds::read_text_file(path), path, ds::Code::kCorrupt);
}

int compare(const char* tokenizer_path, const char* texts_path, const char* rows_path) {
  const auto tokenizer = ds::load_tokenizer(tokenizer_path);
  const ds::Json texts = read(texts_path), rows = read(rows_path);
  DS_CHECK(texts.size() == rows.size() && !texts.empty(), ds::Code::kCorrupt, texts.size(),
           " texts and ", rows.size(), " rows");
  size_t bad_ids = 0, bad_texts = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto ids = rows[i][0].get<std::vector<int32_t>>();
    const bool same =
        tokenizer->encode(text) == ids && tokenizer->encode(text, {.add_special_tokens = true}) ==
                                              rows[i][1].get<std::vector<int32_t>>();
    if (!same && ++bad_ids <= 5) std::printf("ids differ: %s\n", ds::dump_json(texts[i]).c_str());
    if (tokenizer->decode(ids) != rows[i][2].get<std::string>() && ++bad_texts <= 5) {
      std::printf("decoded text differs: %s\n", ds::dump_json(texts[i]).c_str());
    }
  }
  std::printf("%zu texts, vocabulary of %d: ids of %zu differ, decoded text of %zu\n", texts.size(),
              tokenizer->vocab_size(), bad_ids, bad_texts);
  return bad_ids + bad_texts == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: parity_tokenizer TOKENIZER TEXTS ROWS\n");
    return 2;
  }
  try {
    return compare(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
