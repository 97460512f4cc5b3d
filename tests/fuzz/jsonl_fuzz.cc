// Fuzzes the readers of training text: the input is a file of JSON lines, which is read into memory
// and into an indexed data set on disk; both must agree. The same bytes are read as running text,
// block by block.
#include <memory>
#include <optional>
#include <vector>

#include "data/corpus.h"
#include "data/indexed_dataset.h"
#include "data/text_reader.h"
#include "fuzz/fuzz_support.h"

namespace {

using ds::fuzz::accepts;
using ds::fuzz::claim;
using ds::fuzz::folder;

const ds::Tokenizer& byte_tokenizer() {
  static const ds::TokenizerPtr instance = ds::make_byte_tokenizer();
  return *instance;
}

void check_lines(const std::filesystem::path& path, std::string_view content) {
  ds::LineReader reader(path);
  std::string joined;
  int64_t count = 0;
  while (const auto line = reader.next()) {
    claim(line->find('\n') == std::string::npos, "lines hold no line ends");
    joined += *line;
    claim(reader.line_number() == ++count, "lines are counted from 1");
  }
  std::string expected(content);
  std::erase(expected, '\n');
  std::erase(expected, '\r');
  std::erase(joined, '\r');
  claim(joined == expected, "no byte between the line ends is lost");
}

void check_blocks(const std::filesystem::path& path, std::string_view content) {
  for (const size_t block : {size_t{1}, size_t{7}, size_t{64}}) {
    ds::TextBlockReader reader(path, block);
    std::string joined;
    for (std::string part = reader.next(); !part.empty(); part = reader.next()) joined += part;
    claim(joined == content, "blocks make up the text");
  }
}

std::vector<int32_t> read_tokens(const ds::TokenSource& source, int64_t index) {
  std::vector<int32_t> tokens(static_cast<size_t>(source.sequence_size(index)));
  source.read(index, 0, tokens);
  return tokens;
}

void check_corpus(const std::filesystem::path& path) {
  ds::TokenSourcePtr memory;
  const bool loaded = accepts([&] { memory = ds::load_text_source(path, byte_tokenizer(), 16); });
  const auto prefix = folder().path() / "corpus";
  std::optional<ds::CorpusStats> stats;
  const bool built =
      accepts([&] { stats = ds::build_indexed_dataset(path, byte_tokenizer(), prefix); });
  claim(loaded == built, "text in memory and on disk is accepted alike");
  if (!built) return;
  ds::fuzz::must_succeed("a data set that was written opens", [&] {
    const ds::IndexedDataset disk(prefix);
    claim(disk.sequence_count() == memory->sequence_count() &&
              stats->sequences == disk.sequence_count() &&
              stats->documents == disk.document_count(),
          "counts agree");
    for (int64_t i = 0; i < disk.sequence_count(); ++i) {
      const std::vector<int32_t> tokens = read_tokens(disk, i);
      claim(tokens == read_tokens(*memory, i), "tokens agree");
      claim(!tokens.empty(), "sequences are not empty");
      claim(ds::is_valid_utf8(byte_tokenizer().decode(tokens)), "JSON text is UTF-8");
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  const auto path = folder().put("lines.jsonl", content);
  check_lines(path, content);
  check_blocks(path, content);
  check_corpus(path);
  return 0;
}
