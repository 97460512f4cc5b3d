// Manifests of a few KiB whose parts are the same bytes over and over: what they unfold to is
// bounded.
#include <flatbuffers/flatbuffers.h>

#include <functional>

#include "checkpoint/manifest.h"
#include "checkpoint/manifest_generated.h"
#include "support.h"

namespace ds::test {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
using Names = flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>>;

struct Parts {
  std::vector<flatbuffers::Offset<fb::Tensor>> tensors;
  std::vector<flatbuffers::Offset<fb::Blob>> blobs;
  std::vector<flatbuffers::Offset<fb::State>> states;
};

// A manifest of what `add` makes, which may refer to one object many times.
std::string sealed(const std::function<void(Builder&, Parts&)>& add) {
  Builder b;
  Parts parts;
  add(b, parts);
  const auto counters = fb::CreateCounters(b);
  const auto topology = fb::CreateTopology(b, 1, 1, 1, 1, 1, 1, 0);
  const auto tag = b.CreateString("tag");
  const auto tensors = b.CreateVector(parts.tensors);
  const auto blobs = b.CreateVector(parts.blobs);
  const auto states = b.CreateVector(parts.states);
  fb::FinishManifestBuffer(b, fb::CreateManifest(b, kManifestMajor, 0, tag, tag, counters, topology,
                                                 tensors, blobs, states, tag));
  return seal({reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize()});
}

struct Case {
  const char* name;
  // `copies`: how often the one large object is referred to.
  std::function<void(Builder&, Parts&, int copies)> add;
};

class SharedBytes : public ::testing::TestWithParam<Case> {};

TEST_P(SharedBytes, UnfoldToNoMoreThanTheFile) {
  const auto decode = [&](int copies) {
    const std::string file =
        sealed([&](Builder& b, Parts& parts) { GetParam().add(b, parts, copies); });
    EXPECT_LT(file.size(), 200'000u);
    return decode_manifest(bytes_of(file), "manifest");
  };
  EXPECT_NO_THROW(decode(1)) << "as a writer makes them";
  const Error error = error_of([&] { decode(200); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_NE(error.message().find("parts are larger than the manifest"), std::string::npos)
      << error.message();
}

const std::string kLarge(50'000, 'x');
constexpr auto kMaster = static_cast<int32_t>(TensorKind::kMaster);
constexpr auto kFloat = static_cast<int32_t>(DType::kFloat32);

INSTANTIATE_TEST_SUITE_P(
    Parts, SharedBytes,
    ::testing::Values(
        Case{"Names",
             [](Builder& b, Parts& parts, int copies) {
               const auto name = b.CreateString(kLarge);
               for (int i = 0; i < copies; ++i) {
                 parts.tensors.push_back(fb::CreateTensor(b, name, kMaster, 0, kFloat));
               }
             }},
        Case{"Aliases",
             [](Builder& b, Parts& parts, int copies) {
               const auto name = b.CreateString(kLarge);
               const Names aliases = b.CreateVector(std::vector(static_cast<size_t>(copies), name));
               parts.tensors.push_back(
                   fb::CreateTensor(b, b.CreateString("w"), kMaster, 0, kFloat, 0, aliases));
             }},
        Case{"ListsOfAliases",
             [](Builder& b, Parts& parts, int copies) {
               const auto empty = b.CreateString("");
               const Names aliases = b.CreateVector(std::vector(size_t{5000}, empty));
               const auto name = b.CreateString("w");
               for (int i = 0; i < copies; ++i) {
                 parts.tensors.push_back(fb::CreateTensor(b, name, kMaster, 0, kFloat, 0, aliases));
               }
             }},
        Case{"Checksums",
             [](Builder& b, Parts& parts, int copies) {
               const auto sums = b.CreateVector(std::vector(size_t{5000}, uint64_t{7}));
               const auto name = b.CreateString("blob");
               for (int i = 0; i < copies; ++i) {
                 parts.blobs.push_back(fb::CreateBlob(b, name, 0, 0, sums));
               }
             }},
        Case{"Values",
             [](Builder& b, Parts& parts, int copies) {
               const auto bytes = b.CreateVector(std::vector(size_t{50'000}, uint8_t{7}));
               const auto name = b.CreateString("state");
               for (int i = 0; i < copies; ++i) {
                 parts.states.push_back(fb::CreateState(
                     b, name, static_cast<int32_t>(StateType::kBytes), 0, 0, bytes));
               }
             }}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace ds::test
