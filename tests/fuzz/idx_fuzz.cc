// Fuzzes indexed data sets. An input is a byte of flags, the sequence length and size of the .bin
// (2 bytes each), and the .idx. Flags:
//   1  the pointers of the .idx are computed from its sizes, and so is the size of the .bin
//   2  the header is repaired but for type and counts
//   4, 8  which split of the data is sampled
// An accepted data set is read in every way there is and compared with the bytes of the files.
#include <memory>
#include <optional>
#include <vector>

#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "fuzz/fuzz_support.h"

namespace {

using ds::fuzz::accepts;
using ds::fuzz::claim;
using ds::fuzz::folder;

constexpr size_t kHeader = 34;
constexpr uint64_t kMostBin = 64 << 10;

template <class T>
T load(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void repair_header(std::string* idx) {
  if (idx->size() < kHeader) idx->resize(kHeader);
  std::memcpy(idx->data(), "MMIDIDX\0\0\x01\0\0\0\0\0\0\0", 17);
}

// Returns the bytes that the .bin then needs, as far as that can be said.
uint64_t repair_pointers(std::string* idx) {
  if (idx->size() < kHeader) return 0;
  const auto count = load<uint64_t>(*idx, 18);
  if (count > (idx->size() - kHeader) / 12) return 0;
  const auto code = static_cast<uint8_t>((*idx)[17]);
  if (code < 1 || code > 8) return 0;
  const auto item = static_cast<uint64_t>(ds::token_type_size(static_cast<ds::TokenType>(code)));
  uint64_t position = 0;
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(idx->data() + kHeader + count * 4 + i * 8, &position, 8);
    position += load<uint32_t>(*idx, kHeader + i * 4) * item;
  }
  return position;
}

// The number that starts at `at` of the .bin, read apart from the code under test.
int64_t token_at(const std::string& bin, size_t at, ds::TokenType type) {
  switch (type) {
    case ds::TokenType::kU8:
      return load<uint8_t>(bin, at);
    case ds::TokenType::kI8:
      return load<int8_t>(bin, at);
    case ds::TokenType::kI16:
      return load<int16_t>(bin, at);
    case ds::TokenType::kU16:
      return load<uint16_t>(bin, at);
    case ds::TokenType::kI32:
      return load<int32_t>(bin, at);
    default:
      return load<int64_t>(bin, at);
  }
}

void read_sequences(const ds::IndexedDataset& data, const std::string& bin) {
  const bool floating = data.type() == ds::TokenType::kF32 || data.type() == ds::TokenType::kF64;
  const auto item = static_cast<size_t>(ds::token_type_size(data.type()));
  size_t at = 0;
  for (int64_t i = 0; i < data.sequence_count(); ++i) {
    const auto size = static_cast<size_t>(data.sequence_size(i));
    const auto bytes = data.bytes(i);
    claim(bytes.size() == size * item && bytes.size() <= bin.size() - at,
          "sequences lie in the file");
    claim(bytes.empty() || std::memcmp(bytes.data(), bin.data() + at, bytes.size()) == 0,
          "sequences hold the file's bytes");
    std::vector<int64_t> tokens;
    const bool ok = accepts([&] { tokens = data.read(i); });
    claim(ok == (!floating || size == 0), "integers of any width can be read, others not");
    for (size_t t = 0; t < tokens.size(); ++t) {
      claim(tokens[t] == token_at(bin, at + t * item, data.type()), "tokens are those stored");
    }
    if (ok && size > 1) {
      std::vector<int64_t> tail(size - 1);
      data.read(i, 1, std::span(tail));
      claim(std::equal(tail.begin(), tail.end(), tokens.begin() + 1), "a part is a part");
    }
    std::vector<int32_t> beyond(2);
    claim(!accepts([&] { data.read(i, static_cast<int64_t>(size) - 1, std::span(beyond)); }),
          "reads beyond a sequence are refused");
    static_cast<void>(data.mode(i));
    at += bytes.size();
  }
  claim(at == bin.size(), "sequences fill the file");
  claim(data.document_begin(data.document_count()) == data.sequence_count(),
        "documents end with the last sequence");
  for (const int64_t outside : {int64_t{-1}, data.sequence_count()}) {
    claim(!accepts([&] { static_cast<void>(data.sequence_size(outside)); }) && !accepts([&] {
      static_cast<void>(data.mode(outside));
    }) && !accepts([&] { static_cast<void>(data.bytes(outside)); }),
          "sequences that do not exist are refused");
  }
}

void sample(const std::shared_ptr<const ds::IndexedDataset>& data, int64_t length, int flags) {
  const auto part = static_cast<ds::Split>((flags >> 2) % 3);
  ds::GptIndexOptions options{.sequence_length = length, .seed = 7};
  if ((flags & 16) != 0) options.samples = data->sequence_count() % 50;
  std::shared_ptr<const ds::GptDataset> samples;
  if (!accepts([&] { samples = ds::make_gpt_dataset(data, "6,3,1", part, options); })) return;
  if (samples == nullptr) return;
  const int64_t count = std::min<int64_t>(samples->sample_count(), 200);
  std::vector<int32_t> ids(static_cast<size_t>(length)), labels(ids.size());
  std::vector<int32_t> whole(ids.size() + 1);
  for (int64_t i = 0; i < count; ++i) {
    // Tokens beyond 32 bits are found only now.
    if (!accepts([&] { samples->sample(i, std::span(whole)); })) continue;
    samples->sample(i, ds::SampleView{.ids = ids, .labels = labels});
    claim(std::equal(ids.begin(), ids.end(), whole.begin()) &&
              std::equal(labels.begin(), labels.end(), whole.begin() + 1),
          "labels are the ids one later");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  ds::fuzz::Input input(data, size);
  const int flags = input.take<uint8_t>();
  const int64_t length = input.take<uint16_t>() % 512;
  uint64_t bin_size = input.take<uint16_t>();
  std::string idx(input.rest());
  if ((flags & 2) != 0) repair_header(&idx);
  if ((flags & 1) != 0) bin_size = std::min(repair_pointers(&idx), kMostBin);

  std::string bin(bin_size, '\0');
  for (size_t i = 0; i < bin.size(); ++i) bin[i] = static_cast<char>(i * 37 + (i >> 8) * 5);
  const auto prefix = folder().path() / "data";
  folder().put("data.idx", idx);
  folder().put("data.bin", bin);

  std::shared_ptr<const ds::IndexedDataset> dataset;
  if (!accepts([&] { dataset = std::make_shared<ds::IndexedDataset>(prefix); })) return 0;
  read_sequences(*dataset, bin);
  sample(dataset, length, flags);
  return 0;
}
