// Fuzzes the checkpoint manifest and the reader behind it. The first byte of an input says what
// the rest is:
//   b  the FlatBuffer; header and checksums are added here, so that mutations get past them
//   s  numbers from which a manifest is composed, then encoded
//   otherwise the rest is the manifest file
// An accepted manifest is encoded and decoded again, and a checkpoint with made-up blobs of the
// recorded sizes is opened and read.
#include <bit>
#include <optional>
#include <vector>

#include "base/checksum.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "fuzz/fuzz_support.h"

namespace {

using ds::fuzz::as_byte_span;
using ds::fuzz::claim;
using ds::fuzz::folder;
using ds::fuzz::Input;

constexpr uint64_t kMostBlobBytes = 64 << 10;
constexpr uint64_t kMostRead = 1 << 20;

template <class T>
void put(std::string* out, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) (*out)[at + i] = static_cast<char>(value >> (8 * i));
}

// docs/checkpoint-format.md, "Header": written apart from the encoder.
std::string with_envelope(std::string_view body) {
  constexpr uint64_t kChunk = 4096;
  std::string file(64, '\0');
  file.append(body);
  std::string table;
  for (uint64_t at = 0; at < body.size(); at += kChunk) {
    table.append(8, '\0');
    put(&table, table.size() - 8, ds::xxh3_64(as_byte_span(body.substr(at, kChunk))));
  }
  file += table;
  std::memcpy(file.data(),
              "\x89"
              "DSM\r\n\x1A\n",
              8);
  put<uint32_t>(&file, 8, 1);
  put<uint32_t>(&file, 12, kChunk);
  put<uint64_t>(&file, 16, body.size());
  put(&file, 24, ds::xxh3_64(as_byte_span(table)));
  put(&file, 56, ds::xxh3_64(as_byte_span(std::string_view(file).substr(0, 56))));
  return file;
}

std::vector<int64_t> take_sizes(Input* in, size_t count) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < count; ++i) {
    const auto small = in->take<int8_t>();
    out.push_back(small == -128 ? in->take<int64_t>() : small);
  }
  return out;
}

std::string take_name(Input* in) { return std::string(in->take_text(in->take<uint8_t>() % 24)); }

// Any manifest at all: the encoder must cope with it, and the checks must find what is wrong.
ds::Manifest compose(Input* in) {
  ds::Manifest m;
  m.tag = take_name(in);
  m.writer = take_name(in);
  m.counters = {in->take<int32_t>(), in->take<int8_t>(), in->take<int8_t>(), in->take<int32_t>(),
                in->take<int64_t>()};
  m.topology.world = 1 + in->take<uint8_t>() % 4;
  for (int i = in->take<uint8_t>() % 3; i > 0; --i) {
    const uint64_t size = in->take<uint16_t>();
    const uint32_t chunk = uint32_t{64} << (in->take<uint8_t>() % 12);
    const size_t sums = in->take<bool>() ? in->take<uint8_t>() : (size + chunk - 1) / chunk;
    m.blobs.push_back({take_name(in), size, chunk, std::vector<uint64_t>(sums)});
  }
  for (int i = in->take<uint8_t>() % 5; i > 0; --i) {
    ds::TensorRecord t;
    t.meta.name = take_name(in);
    t.meta.kind = static_cast<ds::TensorKind>(1 + in->take<uint8_t>() % 6);
    t.meta.state = take_name(in);
    t.meta.dtype = static_cast<ds::DType>(1 + in->take<uint8_t>() % 13);
    t.meta.shape = take_sizes(in, in->take<uint8_t>() % 5);
    t.meta.flags = in->take<uint8_t>();
    t.meta.expert = in->take<int8_t>();
    if (in->take<bool>()) t.meta.aliases.push_back(take_name(in));
    uint64_t offset = in->take<uint16_t>();
    if (offset < 0x8000) offset -= offset % ds::kBlobAlignment;
    for (int s = in->take<uint8_t>() % 5; s > 0; --s) {
      ds::TensorSlice slice;
      slice.box = {take_sizes(in, t.meta.shape.size()), take_sizes(in, t.meta.shape.size())};
      uint64_t length = static_cast<uint64_t>(ds::dtype_size(t.meta.dtype));
      for (const int64_t size : slice.box.extent) length *= static_cast<uint64_t>(size);
      if (in->take<bool>()) length = in->take<uint64_t>();
      slice.range = {in->take<uint8_t>() % 4u, offset, length};
      offset += length;
      offset += (64 - offset % 64) % 64;
      t.slices.push_back(std::move(slice));
    }
    m.tensors.push_back(std::move(t));
  }
  for (int i = in->take<uint8_t>() % 4; i > 0; --i) {
    ds::StateRecord s;
    s.name = take_name(in);
    s.type = static_cast<ds::StateType>(1 + in->take<uint8_t>() % 5);
    s.integer = in->take<int64_t>();
    s.real = in->take<double>();
    s.bytes = take_name(in);
    if (in->take<bool>()) s.range = ds::BlobRange{in->take<uint8_t>(), in->take<uint16_t>(), 8};
    m.states.push_back(std::move(s));
  }
  m.run = take_name(in);
  return m;
}

bool same(const ds::StateRecord& a, const ds::StateRecord& b) {
  return a.name == b.name && a.type == b.type && a.integer == b.integer &&
         std::bit_cast<uint64_t>(a.real) == std::bit_cast<uint64_t>(b.real) && a.bytes == b.bytes &&
         a.range == b.range;
}

bool same(const ds::Manifest& a, const ds::Manifest& b) {
  if (a.states.size() != b.states.size()) return false;
  for (size_t i = 0; i < a.states.size(); ++i) {
    if (!same(a.states[i], b.states[i])) return false;
  }
  return a.major == b.major && a.minor == b.minor && a.writer == b.writer && a.tag == b.tag &&
         a.counters == b.counters && a.topology == b.topology && a.tensors == b.tensors &&
         a.blobs == b.blobs && a.run == b.run;
}

char blob_byte(size_t blob, uint64_t at) { return static_cast<char>(blob * 131 + at * 7 + 3); }

// Every element of a whole tensor is where the manifest says it is in the blobs.
void check_content(const ds::TensorRecord& t, const std::string& got) {
  const auto item = static_cast<size_t>(ds::dtype_size(t.meta.dtype));
  const size_t dims = t.meta.shape.size();
  for (const ds::TensorSlice& slice : t.slices) {
    if (slice.range.length == 0) continue;
    std::vector<int64_t> index(dims, 0);
    for (uint64_t at = slice.range.offset; at < slice.range.offset + slice.range.length;
         at += item) {
      size_t place = 0;
      for (size_t d = 0; d < dims; ++d) {
        place = place * static_cast<size_t>(t.meta.shape[d]) +
                static_cast<size_t>(slice.box.offset[d] + index[d]);
      }
      for (size_t b = 0; b < item; ++b) {
        claim(got[place * item + b] == blob_byte(slice.range.blob, at + b),
              "tensors are read from where the manifest says", t.meta.text());
      }
      for (size_t d = dims; d-- > 0;) {
        if (++index[d] < slice.box.extent[d]) break;
        index[d] = 0;
      }
    }
  }
}

void read_everything(const ds::CheckpointReader& reader) {
  const ds::Manifest& m = reader.manifest();
  claim(reader.verify_all().empty(), "undamaged blobs verify");
  claim(!ds::dump_json(reader.inspect()).empty(), "a checkpoint can be described");
  uint64_t total = 0;
  for (const ds::TensorRecord& t : m.tensors) {
    claim(reader.find(t.meta.name, t.meta.kind, t.meta.state) == &t, "tensors are found",
          t.meta.text());
    uint64_t bytes = 0;
    for (const ds::TensorSlice& slice : t.slices) bytes += slice.range.length;
    total += bytes;
    if (total > kMostRead) return;
    std::string whole(bytes, '\0');
    const auto out = std::as_writable_bytes(std::span(whole.data(), whole.size()));
    ds::fuzz::must_succeed("tensors of a valid checkpoint can be read", [&] {
      reader.read(t, out);
      check_content(t, whole);
      const auto item = static_cast<uint64_t>(ds::dtype_size(t.meta.dtype));
      const auto elements = static_cast<int64_t>(bytes / item);
      const int64_t begin = elements / 3, end = elements - elements / 4;
      std::string part(static_cast<size_t>(end - begin) * item, '\0');
      reader.read_range(t, begin, end, std::as_writable_bytes(std::span(part.data(), part.size())));
      claim(part == whole.substr(static_cast<size_t>(begin) * item, part.size()),
            "a range is a part of the whole", t.meta.text());
    });
  }
  for (const ds::StateRecord& s : m.states) {
    claim(reader.has_state(s.name), "states are found");
    ds::fuzz::accepts([&] { reader.state_int(s.name); });
    ds::fuzz::accepts([&] { reader.state_double(s.name); });
    ds::fuzz::accepts([&] { reader.state_text(s.name); });
    ds::fuzz::accepts([&] { reader.state_json(s.name); });
    ds::fuzz::accepts([&] { reader.state_bytes(s.name); });
  }
}

// A folder with this manifest and blobs that match it.
void try_checkpoint(ds::Manifest m) {
  uint64_t total = 0;
  for (const ds::BlobRecord& blob : m.blobs) {
    if (blob.size > kMostBlobBytes) return;
    total += blob.size;
  }
  if (total > kMostBlobBytes) return;
  if (!ds::is_plain_name(m.tag)) m.tag = "tag";  // which opening checks
  folder().clear();
  for (size_t i = 0; i < m.blobs.size(); ++i) {
    ds::BlobRecord& blob = m.blobs[i];
    std::string content(blob.size, '\0');
    for (uint64_t at = 0; at < blob.size; ++at) content[at] = blob_byte(i, at);
    for (size_t c = 0; c < blob.checksums.size(); ++c) {
      blob.checksums[c] = ds::xxh3_64(
          as_byte_span(std::string_view(content).substr(c * blob.chunk_bytes, blob.chunk_bytes)));
    }
    folder().put(blob.file, content);
  }
  folder().put(ds::kManifestFile, ds::encode_manifest(m));
  ds::fuzz::must_succeed("a checkpoint whose manifest is valid opens", [&] {
    read_everything(ds::CheckpointReader::open_folder(folder().path()));
  });
}

void try_manifest_file(std::string_view file) {
  std::optional<ds::Manifest> manifest;
  if (!ds::fuzz::accepts([&] { manifest = ds::decode_manifest(as_byte_span(file), "input"); })) {
    return;
  }
  ds::fuzz::must_succeed("a decoded manifest can be encoded and decoded", [&] {
    const std::string encoded = ds::encode_manifest(*manifest);
    claim(same(ds::decode_manifest(as_byte_span(encoded), "again"), *manifest),
          "encoding and decoding changes nothing");
  });
  const bool valid = ds::fuzz::accepts(
      [&] { ds::check_manifest(*manifest, "input", ds::Code::kCorrupt, /*complete=*/true); });
  if (valid) try_checkpoint(std::move(*manifest));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  Input input(data, size);
  switch (input.take<char>()) {
    case 'b':
      try_manifest_file(with_envelope(input.rest()));
      break;
    case 's':
      try_manifest_file(ds::encode_manifest(compose(&input)));
      break;
    default:
      try_manifest_file(input.rest());
  }
  return 0;
}
