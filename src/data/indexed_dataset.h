// Megatron's indexed data set, byte for byte: PREFIX.bin holds the tokens, PREFIX.idx the sizes,
// offsets and document boundaries. Of the index there are two layouts, of the same tokens: that of
// memory-mapped data sets (MMIDIDX), and the older one of lazy and cached ones (TNTIDX), which is
// read only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/replacement_file.h"
#include "data/token_source.h"

namespace ds {

// Codes as stored in the file.
enum class TokenType : uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF64 = 6,
  kF32 = 7,
  kU16 = 8,
};
int64_t token_type_size(TokenType type);
const char* token_type_name(TokenType type);
// u16 if the vocabulary is known (not 0) and below 65,500, else i32.
TokenType token_type_for_vocab(int64_t vocab_size);

std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);
// Both files exist.
bool indexed_dataset_exists(const std::filesystem::path& prefix);

class IndexedDataset final : public TokenSource {
 public:
  // Reads the index into memory (8 bytes per sequence and, unless each document has
  // one sequence, per document) and checks every entry of it; tokens are read from the file when
  // they are asked for. A file that is cut short or changed meanwhile gives errors or other tokens,
  // nothing worse.
  explicit IndexedDataset(const std::filesystem::path& prefix);
  // The same from the contents of the two files; `name` stands for the prefix in errors.
  IndexedDataset(std::vector<std::byte> idx, std::vector<std::byte> bin, std::string_view name);

  TokenType type() const noexcept { return type_; }
  int64_t sequence_count() const override { return sequences_; }
  int32_t sequence_size(int64_t index) const override;
  int64_t document_count() const noexcept { return document_count_; }
  // Sequence that document `index` begins with; index document_count() gives the end.
  int64_t document_begin(int64_t index) const;
  // Byte per sequence of newer multimodal files; nullopt without them.
  std::optional<int8_t> mode(int64_t index) const;

  void read(int64_t index, int64_t offset, std::span<int32_t> out) const override;
  // Any integer type, and 64 bits of result.
  void read(int64_t index, int64_t offset, std::span<int64_t> out) const;
  std::vector<int64_t> read(int64_t index) const;
  // The stored bytes, of any type.
  std::vector<std::byte> bytes(int64_t index) const;
  std::string name() const override { return prefix_.string(); }
  std::string place(int64_t index, int64_t offset) const override;

 private:
  template <class Out>
  void read_as(int64_t index, int64_t offset, std::span<Out> out) const;
  // A file, or bytes in memory.
  class Source {
   public:
    Source() = default;
    explicit Source(const std::filesystem::path& path) : file_(path, File::Mode::kReadRegular) {}
    explicit Source(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
    int64_t size() const;
    void read_at(int64_t offset, std::span<std::byte> out) const;
    // Calls fn(index, value) for `count` values of type T from `offset` on.
    template <class T, class Fn>
    void each(int64_t offset, int64_t count, const Fn& fn) const;

   private:
    File file_;
    std::vector<std::byte> bytes_;
  };

  // Where sequence `index` begins in the file of tokens; sequence_count() gives its end.
  int64_t begin_of(int64_t index) const { return begins_[static_cast<size_t>(index)]; }
  void read_index(const Source& idx);
  void read_header(const Source& idx);
  void read_sequences(const Source& idx);
  void read_documents(const Source& idx, int64_t offset);
  void read_legacy(const Source& idx);
  void read_legacy_header(const Source& idx);
  void check_all_used(int64_t position) const;

  std::filesystem::path prefix_;
  Source bin_;
  TokenType type_ = TokenType::kI32;
  int64_t sequences_ = 0;
  std::vector<int64_t> begins_;  // by sequence, and the end of the last one
  int64_t document_count_ = 0;
  // The sequence that each document begins with, and the end; empty when each has one sequence, as
  // running text usually does.
  std::vector<int64_t> documents_;
  std::vector<int8_t> modes_;  // empty: the file has none
};

// Writes a data set beside its final names and renames it into place in finish(), so readers never
// see half of one. Without finish() nothing is left behind.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(std::filesystem::path prefix, TokenType type);
  // Writes the sequences and documents of all inputs, one after another, to `output`. The inputs
  // have one type of tokens, and none of them is the output.
  static void merge(std::span<const std::filesystem::path> inputs,
                    const std::filesystem::path& output);
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  void add_sequence(std::span<const int32_t> tokens) { add_tokens(tokens); }
  void add_sequence(std::span<const int64_t> tokens) { add_tokens(tokens); }
  void end_document();
  // Appends all of another data set, which must have the same type and no modes.
  void add_dataset(const IndexedDataset& other);
  void finish();

  int64_t sequence_count() const noexcept { return static_cast<int64_t>(sizes_.size()); }
  int64_t document_count() const noexcept { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t token_count() const noexcept { return tokens_; }

 private:
  template <class In>
  void add_tokens(std::span<const In> tokens);
  template <class Stored, class In>
  void put_tokens(std::span<const In> tokens);
  void put_bytes(std::span<const std::byte> bytes);
  void flush();

  std::filesystem::path prefix_;
  TokenType type_;
  ReplacementFile bin_;
  std::vector<std::byte> buffer_;
  std::vector<int32_t> sizes_;
  std::vector<int64_t> documents_{0};
  int64_t tokens_ = 0;
  bool finished_ = false;
};

}  // namespace ds
