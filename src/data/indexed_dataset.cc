#include "data/indexed_dataset.h"

#include <cstring>

#include "base/error.h"

namespace ds {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::string_view kLegacyMagic("TNTIDX\0\0", 8);
constexpr size_t kHeader = 34;

template <class T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);  // the arrays are not aligned
  return value;
}

std::string shown(const std::filesystem::path& path) { return printable(path.string(), 300); }

// Calls fn with a value of the stored C++ type.
template <class Fn>
void with_integer_type(TokenType type, const std::string& where, const Fn& fn) {
  switch (type) {
    case TokenType::kU8:
      return fn(uint8_t{});
    case TokenType::kI8:
      return fn(int8_t{});
    case TokenType::kI16:
      return fn(int16_t{});
    case TokenType::kI32:
      return fn(int32_t{});
    case TokenType::kI64:
      return fn(int64_t{});
    case TokenType::kU16:
      return fn(uint16_t{});
    default:
      fail(Code::kUnsupported, where, " stores ", token_type_name(type),
           " values, which are not tokens");
  }
}

}  // namespace

int64_t token_type_size(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
    case TokenType::kF32:
      return 4;
    case TokenType::kI64:
    case TokenType::kF64:
      return 8;
  }
  return 0;
}

const char* token_type_name(TokenType type) {
  constexpr const char* kNames[] = {"?", "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
  const auto code = static_cast<size_t>(type);
  return kNames[code < std::size(kNames) ? code : 0];
}

TokenType token_type_for_vocab(int64_t vocab_size) {
  return vocab_size > 0 && vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

std::filesystem::path bin_path(const std::filesystem::path& prefix) {
  return prefix.native() + ".bin";
}

std::filesystem::path idx_path(const std::filesystem::path& prefix) {
  return prefix.native() + ".idx";
}

bool indexed_dataset_exists(const std::filesystem::path& prefix) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(bin_path(prefix), ignored) &&
         std::filesystem::is_regular_file(idx_path(prefix), ignored);
}

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix)
    : prefix_(prefix), idx_file_(idx_path(prefix)), bin_file_(bin_path(prefix)) {
  check_header();
  check_entries();
}

IndexedDataset::IndexedDataset(std::vector<std::byte> idx, std::vector<std::byte> bin,
                               std::string_view name)
    : prefix_(name), idx_copy_(std::move(idx)), bin_copy_(std::move(bin)) {
  check_header();
  check_entries();
}

void IndexedDataset::check_header() {
  const auto bytes = idx();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string where = shown(idx_path(prefix_));
  DS_CHECK(!text.starts_with(kLegacyMagic), Code::kUnsupported, where,
           " is a legacy TNTIDX index (lazy or cached); convert the data set to the mmap layout, "
           "with preprocess_data's --dataset-impl mmap");
  DS_CHECK(text.starts_with(kMagic), Code::kCorrupt, where,
           " is not an indexed data set: it does not begin with MMIDIDX");
  DS_CHECK(bytes.size() >= kHeader, Code::kCorrupt, where, " has ", bytes.size(),
           " bytes, less than the header of ", kHeader, ": the file is truncated");
  const auto version = load<uint64_t>(bytes, 9);
  DS_CHECK(version == 1, Code::kUnsupported, where, " has version ", version, "; known is 1");
  const auto code = load<uint8_t>(bytes, 17);
  DS_CHECK(code >= 1 && code <= 8, Code::kCorrupt, where, ": unknown data type code ",
           static_cast<int>(code), " at byte 17; known are 1 to 8");
  type_ = static_cast<TokenType>(code);
  const auto sequences = load<uint64_t>(bytes, 18);
  const auto documents = load<uint64_t>(bytes, 26);
  const size_t room = bytes.size() - kHeader;
  DS_CHECK(sequences <= room / 12 && documents <= room / 8, Code::kCorrupt, where, " counts ",
           sequences, " sequences and ", documents, " document boundaries, more than its ",
           bytes.size(), " bytes can hold: the file is truncated or damaged");
  const size_t expected = sequences * 12 + documents * 8;
  DS_CHECK(room == expected || room == expected + sequences, Code::kCorrupt, where, " has ",
           bytes.size(), " bytes, but ", sequences, " sequences and ", documents,
           " document boundaries need ", kHeader + expected, ": the file is truncated or damaged");
  DS_CHECK(documents >= 1, Code::kCorrupt, where, " has no document boundaries");
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(documents);
  has_modes_ = sequences > 0 && room == expected + sequences;
}

void IndexedDataset::check_entries() const {
  const std::string where = shown(idx_path(prefix_));
  const auto item = token_type_size(type_);
  const auto total = static_cast<int64_t>(bin().size());
  int64_t position = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t size = size_at(i);
    DS_CHECK(size >= 0, Code::kCorrupt, where, ": sequence ", i, " has the size ", size);
    DS_CHECK(pointer_at(i) == position, Code::kCorrupt, where, ": sequence ", i, " points to byte ",
             pointer_at(i), ", but the sizes before it add up to ", position);
    position += size * item;  // at most 2^31 * 8 more than a checked position
    DS_CHECK(position <= total, Code::kCorrupt, where, ": sequence ", i, " ends at byte ", position,
             " of ", shown(bin_path(prefix_)), ", which has ", total, " bytes");
  }
  DS_CHECK(position == total, Code::kCorrupt, shown(bin_path(prefix_)), " has ", total,
           " bytes, but the sequences of the index add up to ", position,
           "; the files do not belong together, or were written by a preprocessor that does not "
           "count end-of-document tokens");
  int64_t last = 0;
  for (int64_t d = 0; d < documents_; ++d) {
    const int64_t begin = document_begin(d);
    DS_CHECK(d == 0 ? begin == 0 : begin >= last, Code::kCorrupt, where, ": document boundary ", d,
             " is ", begin, " after ", last, "; boundaries start at 0 and do not fall");
    last = begin;
  }
  DS_CHECK(last == sequences_, Code::kCorrupt, where, ": the last document ends at sequence ", last,
           " of ", sequences_);
}

int32_t IndexedDataset::size_at(int64_t index) const {
  return load<int32_t>(idx(), kHeader + static_cast<size_t>(index) * 4);
}

int64_t IndexedDataset::pointer_at(int64_t index) const {
  return load<int64_t>(idx(), kHeader + static_cast<size_t>(sequences_ * 4 + index * 8));
}

int32_t IndexedDataset::sequence_size(int64_t index) const {
  DS_CHECK(index >= 0 && index < sequences_, Code::kInvalidArgument, name(), ": sequence ", index,
           " does not exist; there are ", sequences_);
  return size_at(index);
}

int64_t IndexedDataset::document_begin(int64_t index) const {
  DS_CHECK(index >= 0 && index < documents_, Code::kInvalidArgument, name(), ": document ", index,
           " does not exist; there are ", document_count());
  return load<int64_t>(idx(), kHeader + static_cast<size_t>(sequences_ * 12 + index * 8));
}

std::optional<int8_t> IndexedDataset::mode(int64_t index) const {
  DS_CHECK(index >= 0 && index < sequences_, Code::kInvalidArgument, name(), ": sequence ", index,
           " does not exist; there are ", sequences_);
  if (!has_modes_) return std::nullopt;
  return load<int8_t>(idx(),
                      kHeader + static_cast<size_t>(sequences_ * 12 + documents_ * 8 + index));
}

template <class Out>
void IndexedDataset::read_as(int64_t index, int64_t offset, std::span<Out> out) const {
  check_range(index, offset, out.size());
  if (out.empty()) return;
  const auto start = static_cast<size_t>(pointer_at(index) + offset * token_type_size(type_));
  with_integer_type(type_, name(), [&](auto sample) {
    using Stored = decltype(sample);
    for (size_t i = 0; i < out.size(); ++i) {
      const auto value = load<Stored>(bin(), start + i * sizeof(Stored));
      if constexpr (sizeof(Stored) > sizeof(Out)) {
        DS_CHECK(std::in_range<Out>(value), Code::kCorrupt, shown(bin_path(prefix_)), ": token ",
                 offset + static_cast<int64_t>(i), " of sequence ", index, " is ", value,
                 ", beyond 32 bits");
      }
      out[i] = static_cast<Out>(value);
    }
  });
}

void IndexedDataset::read(int64_t index, int64_t offset, std::span<int32_t> out) const {
  read_as(index, offset, out);
}

void IndexedDataset::read(int64_t index, int64_t offset, std::span<int64_t> out) const {
  read_as(index, offset, out);
}

std::vector<int64_t> IndexedDataset::read(int64_t index) const {
  std::vector<int64_t> out(static_cast<size_t>(sequence_size(index)));
  read_as(index, 0, std::span(out));
  return out;
}

std::span<const std::byte> IndexedDataset::bytes(int64_t index) const {
  const auto length = static_cast<size_t>(sequence_size(index) * token_type_size(type_));
  return bin().subspan(static_cast<size_t>(pointer_at(index)), length);
}

}  // namespace ds
