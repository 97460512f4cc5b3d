// Damage: one flipped byte anywhere, truncation, foreign bytes, missing and swapped files, hostile
// manifests. Everything is detected and located, nothing crashes.
#include <sys/stat.h>

#include <cstdio>
#include <functional>

#include "base/checksum.h"
#include "checkpoint/rank_parts.h"
#include "fresh_seed.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

// A small checkpoint with small chunks and two blobs.
class DamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CheckpointWriterOptions options;
    options.folder = save();
    options.tag = "tag7";
    options.blob.chunk_bytes = 64;
    options.counters.global_steps = 7;
    CheckpointWriter writer(options);
    for (const SampleTensor& t : sample_tensors()) {
      writer.part().add_tensor(t.meta, bytes_of(random_bytes(ds::run_seed(), 7, 0, t.bytes())));
    }
    writer.part().set_text("note", "a state entry");
    PartWriter part(writer.temporary(), 1, {.chunk_bytes = 64});
    part.add_tensor(make_meta("other", TensorKind::kModel, DType::kUInt8, {100}),
                    bytes_of(random_bytes(ds::run_seed(), 7, 1, 100)));
    writer.merge(part.finish());
    writer.commit();
  }

  fs::path save() const { return folder_.path() / "save"; }
  fs::path file(const char* name) const { return save() / "tag7" / name; }

  // Rewrites the manifest after `change`, with right checksums: what a hostile writer could make.
  Error open_changed(const std::function<void(Manifest*)>& change) {
    const std::string original = slurp(file("manifest.dsm"));
    Manifest manifest = decode_manifest(bytes_of(original), "original");
    change(&manifest);
    spill(file("manifest.dsm"), encode_manifest(manifest));
    const Error error = error_of([&] { CheckpointReader::open(save()); });
    spill(file("manifest.dsm"), original);
    return error;
  }

  TempFolder folder_;
};

// A file of holes costs its maker nothing: what it claims must not be allocated.
TEST_F(DamageTest, ASparseStateIsRefusedBeforeItIsRead) {
  constexpr uint64_t kClaimed = uint64_t{3} << 30, kChunk = uint64_t{64} << 20;
  const fs::path blob = file("data-00009.bin");
  spill(blob, "");
  fs::resize_file(blob, kClaimed);
  const uint64_t zeros = xxh3_64(std::vector<std::byte>(kChunk));
  for (const StateType type : {StateType::kText, StateType::kJson, StateType::kBytes}) {
    const Error error = open_changed([&](Manifest* manifest) {
      manifest->blobs.push_back({"data-00009.bin", kClaimed, static_cast<uint32_t>(kChunk),
                                 std::vector<uint64_t>(kClaimed / kChunk, zeros)});
      StateRecord state;
      state.name = "tokenizer";
      state.type = type;
      state.range = BlobRange{static_cast<uint32_t>(manifest->blobs.size() - 1), 0, kClaimed};
      manifest->states.push_back(state);
    });
    EXPECT_EQ(error.code(), Code::kCorrupt);
    for (const char* part : {"tokenizer", "3221225472 bytes", "at most"}) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  }
  fs::remove(blob);
  // A manifest of holes.
  fs::resize_file(file("manifest.dsm"), (uint64_t{1} << 30) + 1);
  EXPECT_NE(error_of([&] { CheckpointReader::open(save()); }).message().find("more than"),
            std::string::npos);
}

TEST_F(DamageTest, EveryFlippedByteOfTheManifestIsLocated) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const std::string original = slurp(file("manifest.dsm"));
  for (size_t i = 0; i < original.size(); ++i) {
    poke(file("manifest.dsm"), i,
         static_cast<char>(original[i] ^ static_cast<char>(1 + rng() % 255)));
    const Error error = error_of([&] { CheckpointReader::open(save()); });
    poke(file("manifest.dsm"), i, original[i]);
    ASSERT_EQ(error.code(), Code::kCorrupt) << i << " " << error.message();
    ASSERT_NE(error.message().find("manifest.dsm"), std::string::npos) << error.message();
    const size_t text = error.message().find("bytes ");
    ASSERT_NE(text, std::string::npos) << error.message();
    size_t first = 0, last = 0;
    ASSERT_EQ(std::sscanf(error.message().c_str() + text, "bytes %zu-%zu", &first, &last), 2)
        << error.message();
    ASSERT_LE(first, i) << error.message();
    ASSERT_GE(last, i) << error.message();
  }
}

TEST_F(DamageTest, EveryFlippedByteOfABlobIsLocated) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  size_t padding = 0;
  for (const char* name : {"data-00000.bin", "data-00001.bin"}) {
    const std::string original = slurp(file(name));
    for (size_t i = 0; i < original.size(); ++i) {
      poke(file(name), i, static_cast<char>(original[i] ^ static_cast<char>(1 + rng() % 255)));
      const auto reader = CheckpointReader::open(save());
      const std::vector<Damage> damage = reader.verify_all();
      ASSERT_EQ(damage.size(), 1u) << name << " " << i;
      ASSERT_EQ(damage[0].file.filename(), name);
      ASSERT_LE(damage[0].begin, i);
      ASSERT_GT(damage[0].end, i);
      ASSERT_LE(damage[0].end - damage[0].begin, 64u);
      // Exactly the tensors that share the chunk refuse to be read, and say what and where.
      bool inside = false;
      for (const TensorRecord& t : reader.manifest().tensors) {
        std::string out;
        bool touches = false;
        for (const TensorSlice& s : t.slices) {
          const bool same = reader.manifest().blobs[s.range.blob].file == name;
          out.resize(s.range.length);
          inside |= same && i >= s.range.offset && i < s.range.offset + s.range.length;
          touches |= same && s.range.offset < damage[0].end &&
                     s.range.offset + s.range.length > damage[0].begin;
        }
        const auto read = [&] { reader.read(t, std::as_writable_bytes(std::span(out))); };
        if (!touches) {
          ASSERT_NO_THROW(read());
          continue;
        }
        const Error error = error_of(read);
        ASSERT_EQ(error.code(), Code::kCorrupt);
        for (const std::string& part :
             {t.meta.text(), std::string(name), "chunk " + std::to_string(i / 64),
              "bytes " + std::to_string(i / 64 * 64)}) {
          ASSERT_NE(error.message().find(part), std::string::npos) << error.message();
        }
        ASSERT_NE(damage[0].what.find(t.meta.text()), std::string::npos) << damage[0].what;
      }
      padding += inside ? 0 : 1;
      poke(file(name), i, original[i]);
    }
  }
  EXPECT_GT(padding, 0u);  // padding bytes were among them
  EXPECT_TRUE(CheckpointReader::open(save()).verify_all().empty());
}

TEST_F(DamageTest, EveryFlippedByteOfLatestIsDetected) {
  // A second checkpoint whose tag is one flipped bit away from the first.
  CheckpointWriterOptions options;
  options.folder = save();
  options.tag = "tag6";
  CheckpointWriter(options).commit();
  const std::string original = slurp(save() / "latest");
  EXPECT_EQ(CheckpointReader::open(save()).tag(), "tag6");
  for (size_t i = 0; i < original.size(); ++i) {
    for (int flip = 1; flip < 256; ++flip) {
      poke(save() / "latest", i, static_cast<char>(original[i] ^ static_cast<char>(flip)));
      const Error error = error_of([&] { CheckpointReader::open(save()); });
      ASSERT_EQ(error.code(), Code::kCorrupt) << i << " " << error.message();
      ASSERT_NE(error.message().find("latest"), std::string::npos) << error.message();
    }
    poke(save() / "latest", i, original[i]);
  }
  EXPECT_EQ(CheckpointReader::open(save()).tag(), "tag6");
  poke(save() / "latest", 3, '5');
  // With a damaged `latest` the newest checkpoint is found all the same, and the reason is told.
  const LatestCheckpoint found = open_latest_valid(save());
  EXPECT_EQ(found.reader.tag(), "tag7");
  ASSERT_EQ(found.skipped.size(), 1u);
}

TEST_F(DamageTest, EveryTruncationAndForeignBytesAreDetected) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  for (const char* name : {"manifest.dsm", "data-00000.bin", "data-00001.bin"}) {
    const std::string original = slurp(file(name));
    std::vector<size_t> sizes = {0, 1, 63, 64, original.size() - 1};
    for (int i = 0; i < 50; ++i) sizes.push_back(rng() % original.size());
    for (const size_t size : sizes) {
      spill(file(name), original.substr(0, size));
      const Error error = error_of([&] { CheckpointReader::open(save()); });
      ASSERT_EQ(error.code(), Code::kCorrupt) << size << error.message();
      ASSERT_NE(error.message().find(name), std::string::npos) << error.message();
    }
    for (const size_t extra : {1, 8, 5000}) {
      spill(file(name), original + std::string(extra, '\0'));
      const Error error = error_of([&] { CheckpointReader::open(save()); });
      ASSERT_EQ(error.code(), Code::kCorrupt);
      ASSERT_NE(error.message().find(name), std::string::npos) << error.message();
      ASSERT_NE(error.message().find("foreign bytes"), std::string::npos) << error.message();
    }
    fs::remove(file(name));
    const Error missing = error_of([&] { CheckpointReader::open(save()); });
    ASSERT_EQ(missing.code(), Code::kCorrupt);
    ASSERT_NE(missing.message().find(name), std::string::npos) << missing.message();
    // Not a regular file: neither followed nor waited for.
    ASSERT_EQ(::symlink("/dev/zero", file(name).c_str()), 0);
    EXPECT_EQ(error_of([&] { CheckpointReader::open(save()); }).code(), Code::kCorrupt);
    fs::remove(file(name));
    ASSERT_EQ(::mkfifo(file(name).c_str(), 0600), 0);
    EXPECT_EQ(error_of([&] { CheckpointReader::open(save()); }).code(), Code::kCorrupt);
    fs::remove(file(name));
    spill(file(name), original);
  }
  EXPECT_TRUE(CheckpointReader::open(save()).verify_all().empty());
}

TEST_F(DamageTest, ARenamedFolderIsNoticed) {
  fs::rename(save() / "tag7", save() / "best");
  const Error gone = error_of([&] { CheckpointReader::open(save()); });
  EXPECT_EQ(gone.code(), Code::kCorrupt);
  EXPECT_NE(gone.message().find("latest"), std::string::npos) << gone.message();
  const Error renamed = error_of([&] { CheckpointReader::open(save(), "best"); });
  EXPECT_EQ(renamed.code(), Code::kCorrupt);
  EXPECT_NE(renamed.message().find("tag7"), std::string::npos) << renamed.message();
  EXPECT_EQ(CheckpointReader::open(save(), "best", {.allow_renamed = true}).tag(), "tag7");
}

TEST_F(DamageTest, TheNewestUndamagedCheckpointIsFound) {
  CheckpointWriterOptions options;
  options.folder = save();
  for (const int step : {5, 9, 8}) {
    options.tag = "s" + std::to_string(step);
    options.counters.global_steps = step;
    CheckpointWriter writer(options);
    writer.part().add_tensor(make_meta("w", TensorKind::kModel, DType::kUInt8, {8}),
                             bytes_of("12345678"));
    writer.commit();
  }
  EXPECT_EQ(open_latest_valid(save()).reader.tag(), "s8");  // what latest names wins
  fs::remove(save() / "s8/manifest.dsm");
  EXPECT_EQ(open_latest_valid(save()).reader.tag(), "s9");
  spill(save() / "s9/data-00000.bin", "12345679");  // only reading it can tell
  EXPECT_EQ(open_latest_valid(save()).reader.tag(), "s9");
  const LatestCheckpoint found = open_latest_valid(save(), true);
  EXPECT_EQ(found.reader.tag(), "tag7");
  ASSERT_EQ(found.skipped.size(), 2u);
  EXPECT_EQ(found.skipped[1].tag, "s9");
  EXPECT_NE(found.skipped[1].reason.find("model tensor 'w'"), std::string::npos);
  fs::remove(save() / "latest");
  EXPECT_EQ(open_latest_valid(save(), true).reader.tag(), "tag7");
  for (const char* tag : {"tag7", "s5"}) fs::remove(save() / tag / "data-00000.bin");
  EXPECT_EQ(error_of([&] { open_latest_valid(save(), true); }).code(), Code::kCorrupt);
  EXPECT_EQ(error_of([&] { open_latest_valid(folder_.path() / "none"); }).code(), Code::kNotFound);
}

TEST_F(DamageTest, ManifestsThatMakeNoSenseAreRefused) {
  using Change = std::function<void(Manifest*)>;
  const std::vector<std::pair<const char*, Change>> cases = {
      {"plain file name", [](Manifest* m) { m->blobs[0].file = "../data-00000.bin"; }},
      {"plain file name", [](Manifest* m) { m->blobs[0].file = "/etc/passwd"; }},
      {"plain file name", [](Manifest* m) { m->blobs[0].file = ".hidden"; }},
      {"plain file name", [](Manifest* m) { m->blobs[0].file = "manifest.dsm"; }},
      {"plain file name", [](Manifest* m) { m->blobs[0].file = std::string("data\0", 5); }},
      {"listed twice", [](Manifest* m) { m->blobs[1].file = m->blobs[0].file; }},
      {"checksums", [](Manifest* m) { m->blobs[0].checksums.pop_back(); }},
      {"checksums", [](Manifest* m) { m->blobs[0].size = UINT64_MAX; }},
      {"checksums", [](Manifest* m) { m->blobs[0].size += 64; }},
      {"chunks", [](Manifest* m) { m->blobs[0].chunk_bytes = 0; }},
      {"chunks", [](Manifest* m) { m->blobs[0].chunk_bytes = UINT32_MAX; }},
      {"lies in blob 9", [](Manifest* m) { m->tensors[0].slices[0].range.blob = 9; }},
      {"lies at bytes", [](Manifest* m) { m->tensors[0].slices[0].range.offset = 1 << 20; }},
      {"lies at bytes",
       [](Manifest* m) { m->tensors[0].slices[0].range.offset = UINT64_MAX - 63; }},
      {"not a multiple", [](Manifest* m) { m->tensors[0].slices[0].range.offset += 1; }},
      {"instead of", [](Manifest* m) { m->tensors[0].slices[0].range.length -= 1; }},
      {"instead of", [](Manifest* m) { m->tensors[0].meta.dtype = DType::kInt8; }},
      {"negative", [](Manifest* m) { m->tensors[0].meta.shape[0] = -13; }},
      {"64 bits can count",
       [](Manifest* m) {
         m->tensors[0].meta.shape = {INT64_MAX, 2};
       }},
      {"missing", [](Manifest* m) { m->tensors[0].meta.shape[0] += 1; }},
      {"missing", [](Manifest* m) { m->tensors[0].slices.clear(); }},
      {"overlap", [](Manifest* m) { m->tensors[0].slices.push_back(m->tensors[0].slices[0]); }},
      {"leave dimension", [](Manifest* m) { m->tensors[0].slices[0].box.offset[0] = INT64_MAX; }},
      {"leave dimension", [](Manifest* m) { m->tensors[0].slices[0].box.extent[1] = -8; }},
      {"a box with", [](Manifest* m) { m->tensors[0].slices[0].box.offset.pop_back(); }},
      {"shape of 9 dimensions", [](Manifest* m) { m->tensors[0].meta.shape.assign(9, 1); }},
      {"unknown dtype", [](Manifest* m) { m->tensors[0].meta.dtype = static_cast<DType>(99); }},
      {"unknown kind", [](Manifest* m) { m->tensors[0].meta.kind = static_cast<TensorKind>(0); }},
      {"tensor name", [](Manifest* m) { m->tensors[0].meta.name.clear(); }},
      {"tensor name", [](Manifest* m) { m->tensors[0].meta.name = "a\nb"; }},
      {"tensor name", [](Manifest* m) { m->tensors[0].meta.name = "\xC3\x28"; }},
      {"occurs twice", [](Manifest* m) { m->tensors[0].meta.aliases = {"cube"}; }},
      {"occurs twice", [](Manifest* m) { m->tensors.push_back(m->tensors[0]); }},
      {"unknown type", [](Manifest* m) { m->states[0].type = static_cast<StateType>(77); }},
      {"occurs twice", [](Manifest* m) { m->states.push_back(m->states[0]); }},
      {"two values",
       [](Manifest* m) {
         m->states[0].range = BlobRange{0, 0, 4};
       }},
      {"checkpoint format 2.1", [](Manifest* m) { m->major = 2; }},
      {"run's id", [](Manifest* m) { m->run = "../x"; }},
      {"run's id", [](Manifest* m) { m->run.assign(129, 'a'); }},
      {"impossible tag", [](Manifest* m) { m->tag = "../x"; }},
      {"not the one its name says", [](Manifest* m) { m->tag = "tag8"; }},
      {"counter", [](Manifest* m) { m->counters.global_steps = -1; }},
      {"topology", [](Manifest* m) { m->topology.world = 0; }},
  };
  for (const auto& [text, change] : cases) {
    const Error error = open_changed(change);
    EXPECT_TRUE(error.code() == Code::kCorrupt || error.code() == Code::kUnsupported);
    EXPECT_NE(error.message().find(text), std::string::npos) << text << ": " << error.message();
  }
  Manifest newer = decode_manifest(bytes_of(slurp(file("manifest.dsm"))), "m");
  newer.minor = 99;  // a newer minor version is readable
  spill(file("manifest.dsm"), encode_manifest(newer));
  EXPECT_EQ(CheckpointReader::open(save()).manifest().minor, 99u);
}

TEST_F(DamageTest, TheFormatIsTold) {
  const Manifest read = CheckpointReader::open(save()).manifest();
  EXPECT_EQ(read.major, Manifest{}.major);
  EXPECT_GT(read.major, 0u);
}

// Which bytes, and of what: four by name, the rest counted.
TEST(DamageText, SaysWhereAndOfWhat) {
  const TempFolder folder;
  CheckpointWriterOptions options;
  options.folder = folder.path() / "save";
  options.tag = "one";
  options.blob.chunk_bytes = 1 << 16;
  CheckpointWriter writer(options);
  for (int i = 0; i < 6; ++i) {
    writer.part().add_tensor(
        make_meta("t" + std::to_string(i), TensorKind::kModel, DType::kUInt8, {64}),
        bytes_of(std::string(64, static_cast<char>('a' + i))));
  }
  writer.commit();
  const fs::path blob = options.folder / "one" / "data-00000.bin";
  const auto size = fs::file_size(blob);
  poke(blob, 70, 'x');
  const std::vector<Damage> damage = CheckpointReader::open(options.folder).verify_all();
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].begin, 0u);
  const std::string end =
      ": bytes 0-" + std::to_string(size - 1) + " do not match their checksum; they hold ";
  EXPECT_NE(damage[0].text().find(end), std::string::npos) << damage[0].text();
  EXPECT_NE(damage[0].text().find("'t3' and 2 more"), std::string::npos) << damage[0].text();
  EXPECT_EQ(damage[0].text().find("'t4'"), std::string::npos) << damage[0].text();
}

// Messages that ranks leave in a temporary folder, and what only looks like one.
TEST(HandoverFiles, AreToldByTheirNames) {
  for (const char* name : {"part-1.open", "part-12.done", "part-0.failed"}) {
    EXPECT_TRUE(is_handover_file(name)) << name;
  }
  for (const char* name : {"part-.open", "part-1", "part-1.", "part-1.opens", "part-1..open",
                           "part-x.open", "xpart-1.open", "part-1.ope", "parts-1.open", ""}) {
    EXPECT_FALSE(is_handover_file(name)) << name;
  }
}

TEST_F(DamageTest, MutatedManifestsWithRightChecksumsNeverCrash) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const std::string original = slurp(file("manifest.dsm"));
  const size_t length =
      static_cast<unsigned char>(original[16]) + 256 * static_cast<unsigned char>(original[17]);
  const std::string body = original.substr(64, length);
  ASSERT_EQ(seal(body), original);
  int refused = 0;
  constexpr int kRounds = 20'000;
  for (int round = 0; round < kRounds; ++round) {
    std::string changed = body;
    const int edits = 1 + static_cast<int>(rng() % 4);
    for (int i = 0; i < edits; ++i) {
      const size_t at = rng() % changed.size();
      switch (rng() % 4) {
        case 0:
          changed[at] = static_cast<char>(rng());
          break;
        case 1:  // an extreme 32-bit word, where offsets and lengths lie
          if (at + 4 <= changed.size()) {
            const uint32_t words[] = {
                0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, static_cast<uint32_t>(changed.size())};
            put(&changed, at & ~size_t{3}, words[rng() % 6],
                std::min<size_t>(4, changed.size() - (at & ~size_t{3})));
          }
          break;
        case 2:
          changed.resize(std::max<size_t>(1, at));
          break;
        default:
          changed[at] = static_cast<char>(changed[at] ^ static_cast<char>(1 << (rng() % 8)));
      }
    }
    const std::string sealed = seal(changed);
    try {
      const Manifest manifest = decode_manifest(bytes_of(sealed), "mutant");
      check_manifest(manifest, "mutant", Code::kCorrupt, true);
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == Code::kCorrupt || error.code() == Code::kUnsupported)
          << error.message();
      ++refused;
    }
  }
  EXPECT_GT(refused, kRounds / 4);
}

TEST(ManifestTest, RandomBytesAreRefused) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(rng() % 300, '\0');
    for (char& c : bytes) c = static_cast<char>(rng());
    EXPECT_EQ(error_of([&] { decode_manifest(bytes_of(bytes), "noise"); }).code(), Code::kCorrupt);
    EXPECT_EQ(error_of([&] { decode_manifest(bytes_of(seal(bytes)), "noise"); }).code(),
              Code::kCorrupt);
  }
}

}  // namespace
}  // namespace ds::test
