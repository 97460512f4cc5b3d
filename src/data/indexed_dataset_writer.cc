#include <cstring>
#include <utility>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace ds {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

TokenType checked_type(TokenType type) {
  DS_CHECK(token_type_size(type) > 0 && type != TokenType::kF32 && type != TokenType::kF64,
           Code::kInvalidArgument, "tokens cannot be written as ", token_type_name(type));
  return type;
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(std::filesystem::path prefix, TokenType type)
    : prefix_(std::move(prefix)), type_(checked_type(type)), bin_(bin_path(prefix_)) {
  buffer_.reserve(kBufferBytes);
}

template <class Stored, class In>
void IndexedDatasetWriter::put_tokens(std::span<const In> tokens) {
  // All or nothing, so that a refused sequence leaves the file in step with the sizes.
  for (const In token : tokens) {
    DS_CHECK(std::in_range<Stored>(token), Code::kInvalidArgument, printable(prefix_.string(), 300),
             ": token ", token, " does not fit into ", token_type_name(type_));
  }
  for (const In token : tokens) {
    const auto stored = static_cast<Stored>(token);
    put_bytes(std::as_bytes(std::span(&stored, 1)));
  }
}

template <class In>
void IndexedDatasetWriter::add_tokens(std::span<const In> tokens) {
  DS_CHECK(!finished_, Code::kState, "the data set is already finished");
  DS_CHECK(tokens.size() <= INT32_MAX, Code::kInvalidArgument, "a sequence of ", tokens.size(),
           " tokens; at most 2^31 - 1 can be stored");
  switch (type_) {
    case TokenType::kU8:
      put_tokens<uint8_t>(tokens);
      break;
    case TokenType::kI8:
      put_tokens<int8_t>(tokens);
      break;
    case TokenType::kI16:
      put_tokens<int16_t>(tokens);
      break;
    case TokenType::kU16:
      put_tokens<uint16_t>(tokens);
      break;
    case TokenType::kI32:
      put_tokens<int32_t>(tokens);
      break;
    default:
      put_tokens<int64_t>(tokens);
      break;
  }
  sizes_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += static_cast<int64_t>(tokens.size());
}

template void IndexedDatasetWriter::add_tokens(std::span<const int32_t>);
template void IndexedDatasetWriter::add_tokens(std::span<const int64_t>);

void IndexedDatasetWriter::put_bytes(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) return bin_->append(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void IndexedDatasetWriter::flush() {
  bin_->append(buffer_);
  buffer_.clear();
}

void IndexedDatasetWriter::end_document() {
  DS_CHECK(!finished_, Code::kState, "the data set is already finished");
  documents_.push_back(sequence_count());
}

void IndexedDatasetWriter::add_dataset(const IndexedDataset& other) {
  DS_CHECK(!finished_, Code::kState, "the data set is already finished");
  DS_CHECK(other.type() == type_, Code::kInvalidArgument, "cannot append ", other.name(),
           ": it stores ", token_type_name(other.type()), ", not ", token_type_name(type_));
  DS_CHECK(other.sequence_count() == 0 || !other.mode(0), Code::kUnsupported, "cannot append ",
           other.name(), ": it has sequence modes");
  const int64_t base = sequence_count();
  for (int64_t i = 0; i < other.sequence_count(); ++i) {
    put_bytes(other.bytes(i));
    sizes_.push_back(other.sequence_size(i));
    tokens_ += other.sequence_size(i);
  }
  for (int64_t d = 1; d <= other.document_count(); ++d) {
    documents_.push_back(base + other.document_begin(d));
  }
}

void IndexedDatasetWriter::merge(std::span<const std::filesystem::path> inputs,
                                 const std::filesystem::path& output) {
  DS_CHECK(!inputs.empty(), Code::kInvalidArgument, "a merge needs at least one data set");
  std::optional<IndexedDatasetWriter> writer;
  for (const std::filesystem::path& input : inputs) {
    std::error_code ignored;
    DS_CHECK(!std::filesystem::equivalent(bin_path(input), bin_path(output), ignored),
             Code::kInvalidArgument, printable(output.string(), 300),
             " is an input of the merge and cannot be its output");
    const IndexedDataset dataset(input);
    if (!writer) writer.emplace(output, dataset.type());
    writer->add_dataset(dataset);
  }
  writer->finish();
}

void IndexedDatasetWriter::finish() {
  DS_CHECK(!finished_, Code::kState, "the data set is already finished");
  DS_CHECK(documents_.back() == sequence_count(), Code::kState, printable(prefix_.string(), 300),
           ": the last document is not ended");
  flush();

  std::string idx("MMIDIDX\0\0", 9);
  put<uint64_t>(idx, 1);
  put<uint8_t>(idx, static_cast<uint8_t>(type_));
  put<uint64_t>(idx, sizes_.size());
  put<uint64_t>(idx, documents_.size());
  for (const int32_t size : sizes_) put<int32_t>(idx, size);
  int64_t position = 0;
  for (const int32_t size : sizes_) {
    put<int64_t>(idx, position);
    position += size * token_type_size(type_);
  }
  for (const int64_t document : documents_) put<int64_t>(idx, document);

  // An index of older content must not meet the new tokens.
  std::error_code error;
  std::filesystem::remove(idx_path(prefix_), error);
  finished_ = true;
  bin_.commit();
  write_file_durably(idx_path(prefix_), idx);
}

}  // namespace ds
