// The manifest's file form. Its header and chunk checksums locate damage to a few KiB before the
// FlatBuffers verifier and the decoder see a byte.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>

#include "base/checksum.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_generated.h"
#include "tensor/tensor.h"

namespace ds {
namespace {

// Bytes that text-mode transfers, bit 7 stripping and `cat` of a text file all disturb.
constexpr std::array<unsigned char, 8> kMagic = {0x89, 'D', 'S', 'M', '\r', '\n', 0x1A, '\n'};
constexpr uint32_t kEnvelopeVersion = 1;
constexpr uint64_t kHeaderBytes = 64;
constexpr uint64_t kManifestChunk = 4096;
constexpr uint64_t kMaxBody = (uint64_t{1} << 30) - (uint64_t{16} << 20);

template <class T>
void put(std::string* out, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) (*out)[at + i] = static_cast<char>(value >> (8 * i));
}

template <class T>
T get(std::span<const std::byte> bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(bytes[at + i]) << (8 * i);
  return value;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// What the buffer will take at most, so that the builder never meets its 2 GiB limit.
uint64_t estimated_body(const Manifest& m) {
  uint64_t n = 1024 + m.writer.size() + m.tag.size() + m.run.size();
  for (const TensorRecord& t : m.tensors) {
    n += 160 + t.meta.name.size() + t.meta.state.size() + 8 * t.meta.shape.size();
    for (const std::string& alias : t.meta.aliases) n += 16 + alias.size();
    n += t.slices.size() * (96 + 16 * t.meta.shape.size());
  }
  for (const BlobRecord& b : m.blobs) n += 96 + b.file.size() + 8 * b.checksums.size();
  for (const StateRecord& s : m.states) n += 128 + s.name.size() + s.bytes.size();
  return n;
}

std::string encode_body(const Manifest& m) {
  const uint64_t estimate = estimated_body(m);
  DS_CHECK(estimate < kMaxBody, Code::kUnsupported, "the checkpoint's manifest would take about ",
           format_bytes(static_cast<int64_t>(estimate)),
           "; the format allows 1 GiB: use larger chunks or fewer slices");
  flatbuffers::FlatBufferBuilder b(static_cast<size_t>(estimate));
  b.ForceDefaults(true);  // keeps the sign of -0.0
  std::vector<flatbuffers::Offset<fb::Tensor>> tensors;
  for (const TensorRecord& t : m.tensors) {
    std::vector<flatbuffers::Offset<fb::Slice>> slices;
    for (const TensorSlice& s : t.slices) {
      const auto offset = b.CreateVector(s.box.offset);
      const auto extent = b.CreateVector(s.box.extent);
      slices.push_back(
          fb::CreateSlice(b, offset, extent, s.range.blob, s.range.offset, s.range.length));
    }
    const auto name = b.CreateString(t.meta.name);
    const auto state = b.CreateString(t.meta.state);
    const auto shape = b.CreateVector(t.meta.shape);
    const auto aliases = b.CreateVectorOfStrings(t.meta.aliases);
    const auto slice_list = b.CreateVector(slices);
    tensors.push_back(fb::CreateTensor(b, name, static_cast<int32_t>(t.meta.kind), state,
                                       static_cast<int32_t>(t.meta.dtype), shape, aliases,
                                       t.meta.flags, t.meta.expert, slice_list));
  }
  std::vector<flatbuffers::Offset<fb::Blob>> blobs;
  for (const BlobRecord& blob : m.blobs) {
    const auto file = b.CreateString(blob.file);
    const auto checksums = b.CreateVector(blob.checksums);
    blobs.push_back(fb::CreateBlob(b, file, blob.size, blob.chunk_bytes, checksums));
  }
  std::vector<flatbuffers::Offset<fb::State>> states;
  for (const StateRecord& s : m.states) {
    const auto name = b.CreateString(s.name);
    const auto bytes =
        b.CreateVector(reinterpret_cast<const uint8_t*>(s.bytes.data()), s.bytes.size());
    const BlobRange range = s.range.value_or(BlobRange{});
    states.push_back(fb::CreateState(b, name, static_cast<int32_t>(s.type), s.integer, s.real,
                                     bytes, s.range.has_value(), range.blob, range.offset,
                                     range.length));
  }
  const StepCounters& c = m.counters;
  const auto counters = fb::CreateCounters(b, c.global_steps, c.skipped_steps, c.micro_steps,
                                           c.global_samples, c.global_tokens);
  const WorldTopology& w = m.topology;
  const auto topology = fb::CreateTopology(b, w.world, w.data, w.tensor, w.pipeline, w.sequence,
                                           w.expert, w.zero_stage);
  const auto writer = b.CreateString(m.writer);
  const auto tag = b.CreateString(m.tag);
  const auto run = b.CreateString(m.run);
  const auto tensor_list = b.CreateVector(tensors);
  const auto blob_list = b.CreateVector(blobs);
  const auto state_list = b.CreateVector(states);
  fb::FinishManifestBuffer(
      b, fb::CreateManifest(b, m.major, m.minor, writer, tag, counters, topology, tensor_list,
                            blob_list, state_list, run));
  return {reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize()};
}

// Returns the FlatBuffer after checking the header, the checksum table and every chunk.
std::span<const std::byte> checked_body(std::span<const std::byte> file, std::string_view what) {
  DS_CHECK(file.size() >= kHeaderBytes, Code::kCorrupt, what, " has only ", file.size(),
           " bytes: the manifest is truncated");
  DS_CHECK(xxh3_64(file.first(kHeaderBytes - 8)) == get<uint64_t>(file, kHeaderBytes - 8),
           Code::kCorrupt, what, ": the header (bytes 0-", kHeaderBytes - 1,
           ") does not match its checksum: not a checkpoint manifest, or damaged");
  DS_CHECK(std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0, Code::kCorrupt, what,
           ": not a checkpoint manifest (wrong first 8 bytes)");
  const auto version = get<uint32_t>(file, 8);
  DS_CHECK(version == kEnvelopeVersion, Code::kUnsupported, what, ": manifest header version ",
           version, "; this build reads ", kEnvelopeVersion);
  const uint64_t chunk = get<uint32_t>(file, 12);
  const auto length = get<uint64_t>(file, 16);
  DS_CHECK(chunk >= 64 && length <= kMaxBody, Code::kCorrupt, what,
           ": impossible sizes in the header (chunk ", chunk, ", body ", length, ")");
  const uint64_t count = (length + chunk - 1) / chunk;
  const uint64_t expected = kHeaderBytes + length + 8 * count;
  DS_CHECK(
      file.size() == expected, Code::kCorrupt, what, " has ", file.size(), " bytes, not the ",
      expected, " its header announces: ",
      file.size() < expected ? "the file is truncated" : "the file has foreign bytes at its end");
  const auto body = file.subspan(kHeaderBytes, length);
  const auto table = file.subspan(kHeaderBytes + length);
  DS_CHECK(xxh3_64(table) == get<uint64_t>(file, 24), Code::kCorrupt, what,
           ": the checksum table (bytes ", kHeaderBytes + length, "-", file.size() - 1,
           ") is damaged");
  for (uint64_t i = 0; i < count; ++i) {
    const auto part = body.subspan(i * chunk, std::min(chunk, length - i * chunk));
    DS_CHECK(xxh3_64(part) == get<uint64_t>(table, 8 * i), Code::kCorrupt, what, ": chunk ", i,
             " (bytes ", kHeaderBytes + i * chunk, "-", kHeaderBytes + i * chunk + part.size() - 1,
             ") does not match its checksum: the manifest is damaged");
  }
  return body;
}

// Copies out of the verified buffer. Objects of a FlatBuffer may be shared, so a small hostile
// file could unfold to any size: the copies together may not exceed the buffer.
class Decoder {
 public:
  Decoder(uint64_t budget, std::string_view what) : budget_(budget), what_(what) {}

  std::string text(const flatbuffers::String* s) {
    if (s == nullptr) return {};
    spend(s->size());
    return {s->data(), s->size()};
  }
  // Copied as bytes (the format is little-endian, as are all targets): the verifier does not check
  // that the elements of a vector are aligned.
  template <class T>
  std::vector<T> list(const flatbuffers::Vector<T>* v) {
    static_assert(std::endian::native == std::endian::little);
    if (v == nullptr || v->size() == 0) return {};
    spend(v->size() * sizeof(T));
    std::vector<T> out(v->size());
    std::memcpy(out.data(), v->Data(), out.size() * sizeof(T));
    return out;
  }
  // A vector of at most kMaxDims sizes.
  std::vector<int64_t> sizes(const flatbuffers::Vector<int64_t>* v) {
    DS_CHECK(v == nullptr || v->size() <= static_cast<size_t>(kMaxDims), Code::kCorrupt, what_,
             ": a shape of ", v->size(), " dimensions");
    return list(v);
  }
  void spend(uint64_t bytes) {
    DS_CHECK(bytes <= budget_, Code::kCorrupt, what_,
             ": the manifest's parts are larger than the manifest: it was not written by ds");
    budget_ -= bytes;
  }

 private:
  uint64_t budget_;
  std::string_view what_;
};

TensorRecord decode_tensor(const fb::Tensor& t, Decoder* d, std::string_view what) {
  TensorRecord out;
  out.meta.name = d->text(t.name());
  DS_CHECK(is_tensor_kind(t.kind()), Code::kUnsupported, what, ": tensor '",
           printable(out.meta.name), "' is of the unknown kind ", t.kind());
  DS_CHECK(is_dtype(t.dtype()), Code::kUnsupported, what, ": tensor '", printable(out.meta.name),
           "' has the unknown dtype ", t.dtype());
  out.meta.kind = static_cast<TensorKind>(t.kind());
  out.meta.state = d->text(t.state());
  out.meta.dtype = static_cast<DType>(t.dtype());
  out.meta.shape = d->sizes(t.shape());
  out.meta.flags = t.flags();
  out.meta.expert = t.expert();
  if (t.aliases() != nullptr) {
    for (const auto* alias : *t.aliases()) {
      d->spend(4);
      out.meta.aliases.push_back(d->text(alias));
    }
  }
  if (t.slices() != nullptr) {
    d->spend(4 * uint64_t{t.slices()->size()});
    for (const fb::Slice* s : *t.slices()) {
      TensorSlice slice;
      slice.box = {d->sizes(s->offset()), d->sizes(s->extent())};
      slice.range = {s->blob(), s->begin(), s->length()};
      out.slices.push_back(std::move(slice));
    }
  }
  return out;
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  const std::string body = encode_body(manifest);
  const uint64_t count = (body.size() + kManifestChunk - 1) / kManifestChunk;
  std::string out(kHeaderBytes + body.size() + 8 * count, '\0');
  std::memcpy(out.data() + kHeaderBytes, body.data(), body.size());
  const size_t table = kHeaderBytes + body.size();
  for (uint64_t i = 0; i < count; ++i) {
    const auto part = as_bytes(std::string_view(body).substr(i * kManifestChunk, kManifestChunk));
    put<uint64_t>(&out, table + 8 * i, xxh3_64(part));
  }
  std::memcpy(out.data(), kMagic.data(), kMagic.size());
  put<uint32_t>(&out, 8, kEnvelopeVersion);
  put<uint32_t>(&out, 12, static_cast<uint32_t>(kManifestChunk));
  put<uint64_t>(&out, 16, body.size());
  put<uint64_t>(&out, 24, xxh3_64(as_bytes(std::string_view(out).substr(table))));
  put<uint64_t>(&out, kHeaderBytes - 8,
                xxh3_64(as_bytes(std::string_view(out).substr(0, kHeaderBytes - 8))));
  return out;
}

Manifest decode_manifest(std::span<const std::byte> file, std::string_view what) {
  const auto checked = checked_body(file, what);
  // The verifier wants the alignment that a fresh allocation has.
  const auto copy = std::make_unique_for_overwrite<uint8_t[]>(checked.size());
  if (!checked.empty()) std::memcpy(copy.get(), checked.data(), checked.size());
  // Every table takes at least 8 bytes, so an honest buffer has fewer than size / 8.
  flatbuffers::Verifier verifier(copy.get(), checked.size(), 16,
                                 static_cast<flatbuffers::uoffset_t>(checked.size() / 8 + 16));
  DS_CHECK(fb::VerifyManifestBuffer(verifier), Code::kCorrupt, what,
           ": the manifest's structure is invalid though its checksums match: it was not written "
           "by ds");
  const fb::Manifest& m = *fb::GetManifest(copy.get());
  DS_CHECK(m.major() == kManifestMajor, Code::kUnsupported, what, ": checkpoint format ", m.major(),
           ".", m.minor(), "; this build reads ", kManifestMajor, ".x");
  Decoder d(checked.size(), what);
  Manifest out;
  out.major = m.major();
  out.minor = m.minor();
  out.writer = d.text(m.writer());
  out.tag = d.text(m.tag());
  out.run = d.text(m.run());
  const fb::Counters& c = *m.counters();
  out.counters = {c.global_steps(), c.skipped_steps(), c.micro_steps(), c.global_samples(),
                  c.global_tokens()};
  const fb::Topology& w = *m.topology();
  out.topology = {w.world(),    w.data(),   w.tensor(),    w.pipeline(),
                  w.sequence(), w.expert(), w.zero_stage()};
  if (m.tensors() != nullptr) {
    for (const fb::Tensor* t : *m.tensors()) out.tensors.push_back(decode_tensor(*t, &d, what));
  }
  if (m.blobs() != nullptr) {
    for (const fb::Blob* blob : *m.blobs()) {
      out.blobs.push_back(
          {d.text(blob->file()), blob->size(), blob->chunk_bytes(), d.list(blob->checksums())});
    }
  }
  if (m.states() != nullptr) {
    for (const fb::State* s : *m.states()) {
      StateRecord state;
      state.name = d.text(s->name());
      DS_CHECK(is_state_type(s->type()), Code::kUnsupported, what, ": state '",
               printable(state.name), "' has the unknown type ", s->type());
      state.type = static_cast<StateType>(s->type());
      state.integer = s->integer();
      state.real = s->real();
      if (s->bytes() != nullptr) {
        d.spend(s->bytes()->size());
        state.bytes.assign(reinterpret_cast<const char*>(s->bytes()->data()), s->bytes()->size());
      }
      if (s->in_blob()) state.range = BlobRange{s->blob(), s->begin(), s->length()};
      out.states.push_back(std::move(state));
    }
  }
  return out;
}

}  // namespace ds
