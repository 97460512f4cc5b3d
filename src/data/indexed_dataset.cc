#include "data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace ds {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::string_view kLegacyMagic("TNTIDX\0\0", 8);
constexpr int64_t kHeader = 34;
constexpr int64_t kLegacyHeader = 56;
constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of an index, read at a time

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

int64_t IndexedDataset::Source::size() const {
  return file_.is_open() ? file_.size() : static_cast<int64_t>(bytes_.size());
}

void IndexedDataset::Source::read_at(int64_t offset, std::span<std::byte> out) const {
  if (file_.is_open()) return file_.read_at(offset, out);
  // Every range was checked against the size, which cannot change.
  std::copy_n(bytes_.begin() + offset, out.size(), out.begin());
}

template <class T, class Fn>
void IndexedDataset::Source::each(int64_t offset, int64_t count, const Fn& fn) const {
  std::vector<T> piece(static_cast<size_t>(std::min(count, kPieceBytes / int64_t{sizeof(T)})));
  for (int64_t at = 0; at < count;) {
    const int64_t n = std::min(count - at, static_cast<int64_t>(piece.size()));
    const auto part = std::span(piece).first(static_cast<size_t>(n));
    read_at(offset + at * int64_t{sizeof(T)}, std::as_writable_bytes(part));
    for (const T value : part) fn(at++, value);
  }
}

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix) : prefix_(prefix) {
  const Source idx(idx_path(prefix));
  bin_ = Source(bin_path(prefix));
  read_index(idx);
}

IndexedDataset::IndexedDataset(std::vector<std::byte> idx, std::vector<std::byte> bin,
                               std::string_view name)
    : prefix_(name), bin_(std::move(bin)) {
  read_index(Source(std::move(idx)));
}

void IndexedDataset::read_index(const Source& idx) {
  std::array<std::byte, 8> magic{};
  idx.read_at(0, std::span(magic).first(static_cast<size_t>(std::min<int64_t>(idx.size(), 8))));
  if (std::memcmp(magic.data(), kLegacyMagic.data(), magic.size()) == 0) return read_legacy(idx);
  read_header(idx);
  read_sequences(idx);
  read_documents(idx, kHeader + sequences_ * 12);
}

// Magic, version, data type, bytes of an item, sequences, sizes, document boundaries; all but the
// magic are u64. Then, as i64: where the dimensions of each sequence begin, where its tokens begin
// (both one more than there are sequences), the dimensions, the document boundaries.
void IndexedDataset::read_legacy_header(const Source& idx) {
  const int64_t size = idx.size();
  const std::string where = shown(idx_path(prefix_));
  DS_CHECK(size >= kLegacyHeader, Code::kCorrupt, where, " has ", size,
           " bytes, less than the header of ", kLegacyHeader, ": the file is truncated");
  std::vector<std::byte> bytes(static_cast<size_t>(kLegacyHeader));
  idx.read_at(0, bytes);
  const auto number = [&](size_t i) { return load<uint64_t>(bytes, 8 * i); };
  DS_CHECK(number(1) == 1, Code::kUnsupported, where, " has version ", number(1), "; known is 1");
  DS_CHECK(number(2) >= 1 && number(2) <= 8, Code::kCorrupt, where, ": unknown data type code ",
           number(2), " at byte 16; known are 1 to 8");
  type_ = static_cast<TokenType>(number(2));
  // The codes 6 and 7 are floats of either size, by the version of who wrote them.
  DS_CHECK(type_ != TokenType::kF32 && type_ != TokenType::kF64, Code::kUnsupported, where,
           " stores floating-point values, which are not tokens");
  const auto item = static_cast<uint64_t>(token_type_size(type_));
  DS_CHECK(number(3) == item, Code::kCorrupt, where, " says that items have ", number(3),
           " bytes, but those of type ", token_type_name(type_), " have ", item);
  const uint64_t sequences = number(4), sizes = number(5), documents = number(6);
  const auto room = static_cast<uint64_t>(size - kLegacyHeader) / 8;
  DS_CHECK(sequences <= room && sizes <= room && documents <= room &&
               2 * (sequences + 1) + sizes + documents == room && (size - kLegacyHeader) % 8 == 0,
           Code::kCorrupt, where, " has ", size, " bytes, which ", sequences, " sequences, ", sizes,
           " sizes and ", documents, " document boundaries do not need: the file is damaged");
  DS_CHECK(sizes == sequences, Code::kUnsupported, where, " has ", sizes, " sizes for ", sequences,
           " sequences: not all of them have one dimension, as tokens have");
  DS_CHECK(documents >= 1, Code::kCorrupt, where, " has no document boundaries");
  sequences_ = static_cast<int64_t>(sequences);
  document_count_ = static_cast<int64_t>(documents) - 1;
}

void IndexedDataset::read_legacy(const Source& idx) {
  read_legacy_header(idx);
  const std::string where = shown(idx_path(prefix_));
  const int64_t item = token_type_size(type_), total = bin_.size() / item;
  const int64_t ends = (sequences_ + 1) * 8;
  int64_t last = 0;
  begins_.resize(static_cast<size_t>(sequences_) + 1);
  idx.each<int64_t>(kLegacyHeader, sequences_ + 1, [&](int64_t i, int64_t dimension) {
    DS_CHECK(dimension == i, Code::kCorrupt, where, ": the dimensions of sequence ", i,
             " begin at ", dimension, ", not at ", i);
  });
  idx.each<int64_t>(kLegacyHeader + ends, sequences_ + 1, [&](int64_t i, int64_t begin) {
    DS_CHECK(i == 0 ? begin == 0 : begin >= last && begin <= total, Code::kCorrupt, where,
             ": sequence ", i, " begins at token ", begin, " after ", last, ", of ", total, " in ",
             shown(bin_path(prefix_)));
    DS_CHECK(begin - last <= INT32_MAX, Code::kUnsupported, where, ": sequence ", i - 1, " has ",
             begin - last, " tokens; at most 2^31 - 1 are read");
    begins_[static_cast<size_t>(i)] = begin * item;
    last = begin;
  });
  idx.each<int64_t>(kLegacyHeader + 2 * ends, sequences_, [&](int64_t i, int64_t size) {
    DS_CHECK(size == sequence_size(i), Code::kCorrupt, where, ": sequence ", i, " has the size ",
             size, ", but its tokens are ", sequence_size(i));
  });
  check_all_used(last * item);
  read_documents(idx, kLegacyHeader + 2 * ends + sequences_ * 8);
}

void IndexedDataset::read_header(const Source& idx) {
  const int64_t size = idx.size();
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(size, kHeader)));
  idx.read_at(0, bytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string where = shown(idx_path(prefix_));
  DS_CHECK(text.starts_with(kMagic), Code::kCorrupt, where,
           " is not an indexed data set: it does not begin with MMIDIDX or TNTIDX");
  DS_CHECK(size >= kHeader, Code::kCorrupt, where, " has ", size,
           " bytes, less than the header of ", kHeader, ": the file is truncated");
  const auto version = load<uint64_t>(bytes, 9);
  DS_CHECK(version == 1, Code::kUnsupported, where, " has version ", version, "; known is 1");
  const auto code = load<uint8_t>(bytes, 17);
  DS_CHECK(code >= 1 && code <= 8, Code::kCorrupt, where, ": unknown data type code ",
           static_cast<int>(code), " at byte 17; known are 1 to 8");
  type_ = static_cast<TokenType>(code);
  const auto sequences = load<uint64_t>(bytes, 18);
  const auto documents = load<uint64_t>(bytes, 26);
  const auto room = static_cast<uint64_t>(size - kHeader);
  DS_CHECK(sequences <= room / 12 && documents <= room / 8, Code::kCorrupt, where, " counts ",
           sequences, " sequences and ", documents, " document boundaries, more than its ", size,
           " bytes can hold: the file is truncated or damaged");
  const uint64_t expected = sequences * 12 + documents * 8;
  DS_CHECK(room == expected || room == expected + sequences, Code::kCorrupt, where, " has ", size,
           " bytes, but ", sequences, " sequences and ", documents, " document boundaries need ",
           kHeader + static_cast<int64_t>(expected), ": the file is truncated or damaged");
  DS_CHECK(documents >= 1, Code::kCorrupt, where, " has no document boundaries");
  sequences_ = static_cast<int64_t>(sequences);
  document_count_ = static_cast<int64_t>(documents) - 1;
  if (room == expected + sequences) modes_.resize(sequences);
}

void IndexedDataset::read_sequences(const Source& idx) {
  const std::string where = shown(idx_path(prefix_));
  const auto item = token_type_size(type_);
  const int64_t total = bin_.size();
  begins_.resize(static_cast<size_t>(sequences_) + 1);
  int64_t position = 0;
  idx.each<int32_t>(kHeader, sequences_, [&](int64_t i, int32_t size) {
    DS_CHECK(size >= 0, Code::kCorrupt, where, ": sequence ", i, " has the size ", size);
    position += size * item;  // at most 2^31 * 8 more than a checked position
    begins_[static_cast<size_t>(i) + 1] = position;
    // What is beyond the file is reported below, after a pointer that does not fit its sizes.
    DS_CHECK(position <= INT64_MAX / 2, Code::kCorrupt, where, ": the sizes add up to more than ",
             INT64_MAX / 2, " bytes");
  });
  idx.each<int64_t>(kHeader + sequences_ * 4, sequences_, [&](int64_t i, int64_t pointer) {
    const int64_t begin = begin_of(i), end = begin_of(i + 1);
    DS_CHECK(pointer == begin, Code::kCorrupt, where, ": sequence ", i, " points to byte ", pointer,
             ", but the sizes before it add up to ", begin);
    DS_CHECK(end <= total, Code::kCorrupt, where, ": sequence ", i, " ends at byte ", end, " of ",
             shown(bin_path(prefix_)), ", which has ", total, " bytes");
  });
  check_all_used(position);
}

void IndexedDataset::check_all_used(int64_t position) const {
  DS_CHECK(position == bin_.size(), Code::kCorrupt, shown(bin_path(prefix_)), " has ", bin_.size(),
           " bytes, but the sequences of the index add up to ", position,
           "; the files do not belong together, or were written by a preprocessor that does not "
           "count end-of-document tokens");
}

void IndexedDataset::read_documents(const Source& idx, int64_t offset) {
  const std::string where = shown(idx_path(prefix_));
  const int64_t count = document_count_ + 1;
  int64_t last = 0;
  idx.each<int64_t>(offset, count, [&](int64_t d, int64_t begin) {
    DS_CHECK(d == 0 ? begin == 0 : begin >= last, Code::kCorrupt, where, ": document boundary ", d,
             " is ", begin, " after ", last, "; boundaries start at 0 and do not fall");
    if (documents_.empty() && begin != d) {  // the first that has not one sequence
      documents_.resize(static_cast<size_t>(count));
      std::iota(documents_.begin(), documents_.begin() + d, int64_t{0});
    }
    if (!documents_.empty()) documents_[static_cast<size_t>(d)] = begin;
    last = begin;
  });
  DS_CHECK(last == sequences_, Code::kCorrupt, where, ": the last document ends at sequence ", last,
           " of ", sequences_);
  idx.each<int8_t>(offset + count * 8, static_cast<int64_t>(modes_.size()),
                   [&](int64_t i, int8_t mode) { modes_[static_cast<size_t>(i)] = mode; });
}

int32_t IndexedDataset::sequence_size(int64_t index) const {
  DS_CHECK(index >= 0 && index < sequences_, Code::kInvalidArgument, name(), ": sequence ", index,
           " does not exist; there are ", sequences_);
  return static_cast<int32_t>((begin_of(index + 1) - begin_of(index)) / token_type_size(type_));
}

int64_t IndexedDataset::document_begin(int64_t index) const {
  DS_CHECK(index >= 0 && index <= document_count(), Code::kInvalidArgument, name(), ": document ",
           index, " does not exist; there are ", document_count());
  return documents_.empty() ? index : documents_[static_cast<size_t>(index)];
}

std::optional<int8_t> IndexedDataset::mode(int64_t index) const {
  DS_CHECK(index >= 0 && index < sequences_, Code::kInvalidArgument, name(), ": sequence ", index,
           " does not exist; there are ", sequences_);
  if (modes_.empty()) return std::nullopt;
  return modes_[static_cast<size_t>(index)];
}

template <class Out>
void IndexedDataset::read_as(int64_t index, int64_t offset, std::span<Out> out) const {
  check_range(index, offset, out.size());
  if (out.empty()) return;
  const int64_t item = token_type_size(type_);
  std::array<std::byte, 16384> buffer;
  with_integer_type(type_, name(), [&](auto sample) {
    using Stored = decltype(sample);
    while (!out.empty()) {
      const size_t n = std::min(out.size(), buffer.size() / sizeof(Stored));
      const auto bytes = std::span(buffer).first(n * sizeof(Stored));
      bin_.read_at(begin_of(index) + offset * item, bytes);
      for (size_t i = 0; i < n; ++i) {
        const auto value = load<Stored>(bytes, i * sizeof(Stored));
        if constexpr (sizeof(Stored) > sizeof(Out)) {
          DS_CHECK(std::in_range<Out>(value), Code::kCorrupt,
                   place(index, offset + static_cast<int64_t>(i)), " holds ", value,
                   ", beyond 32 bits");
        }
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): a type of 8 bits is of numbers with a sign
        out[i] = static_cast<Out>(value);
      }
      out = out.subspan(n);
      offset += static_cast<int64_t>(n);
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

std::vector<std::byte> IndexedDataset::bytes(int64_t index) const {
  const int64_t length = sequence_size(index) * token_type_size(type_);
  std::vector<std::byte> out(static_cast<size_t>(length));
  bin_.read_at(begin_of(index), out);
  return out;
}

std::string IndexedDataset::place(int64_t index, int64_t offset) const {
  const auto after = std::upper_bound(documents_.begin(), documents_.end(), index);
  const int64_t document = documents_.empty() ? index : after - documents_.begin() - 1;
  return str_cat(shown(bin_path(prefix_)), ": byte ",
                 begin_of(index) + offset * token_type_size(type_), " (token ", offset,
                 " of sequence ", index, ", document ", document, ")");
}

}  // namespace ds
