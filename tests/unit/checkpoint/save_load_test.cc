// Saving and loading: bits, topologies, state, tags, and what the writer refuses.
#include <bit>
#include <cmath>
#include <thread>

#include "base/file.h"
#include "checkpoint/listing.h"
#include "checkpoint/retention.h"
#include "checkpoint/run_id.h"
#include "fresh_seed.h"
#include "unit/checkpoint/support.h"
#include "unit/engine/log_lines.h"

namespace ds::test {
namespace {

CheckpointWriterOptions options_for(const TempFolder& folder, const std::string& tag) {
  CheckpointWriterOptions options;
  options.folder = folder.path() / "save";
  options.tag = tag;
  return options;
}

TEST(SaveLoad, EverythingComesBackBitForBit) {
  DS_SEED_TRACE();
  const TempFolder folder;
  save_sample(options_for(folder, "global_step3"), ds::run_seed(), 3);
  const auto reader = CheckpointReader::open(folder.path() / "save");
  EXPECT_EQ(reader.tag(), "global_step3");
  EXPECT_EQ(reader.manifest().writer, "test 1.0");
  EXPECT_EQ(reader.manifest().topology.zero_stage, 1);
  expect_sample(reader, ds::run_seed());
  EXPECT_TRUE(std::signbit(reader.state_double("loss_scale")));
  EXPECT_EQ(reader.find("lm_head.weight", TensorKind::kModel),
            reader.find("wte.weight", TensorKind::kModel));
  EXPECT_TRUE(leftovers(folder.path() / "save").empty());
  EXPECT_FALSE(fs::exists(folder.path() / "save/global_step3/latest.next"));
}

TEST(SaveLoad, BlobItemsAreAlignedAndTheSameSaveGivesTheSameBytes) {
  DS_SEED_TRACE();
  const TempFolder folder;
  save_sample(options_for(folder, "a"), ds::run_seed(), 3);
  const auto reader = CheckpointReader::open(folder.path() / "save");
  for (const TensorRecord& t : reader.manifest().tensors) {
    for (const TensorSlice& s : t.slices) EXPECT_EQ(s.range.offset % 64, 0u);
    EXPECT_EQ(t.slices.size(), t.meta.name == "none" ? 0u : 1u) << "nothing takes no place";
  }
  for (const StateRecord& s : reader.manifest().states) {
    if (s.range) {
      EXPECT_EQ(s.range->offset % 4096, 0u);
    }
  }
  const std::string manifest = slurp(reader.folder() / "manifest.dsm");
  const std::string blob = slurp(reader.folder() / "data-00000.bin");
  save_sample(options_for(folder, "a"), ds::run_seed(), 3);
  EXPECT_EQ(slurp(folder.path() / "save/a/manifest.dsm"), manifest);
  EXPECT_EQ(slurp(folder.path() / "save/a/data-00000.bin"), blob);
}

// Several ranks write flat partitions; any box and any other partition reads back.
TEST(SaveLoad, AnyTopologyReadsWhatAnotherWrote) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  for (const int ranks : {1, 2, 3, 5}) {
    SCOPED_TRACE(ranks);
    const TempFolder folder;
    auto options = options_for(folder, "t");
    options.blob.chunk_bytes = 256;
    options.topology.world = options.topology.data = ranks;
    CheckpointWriter writer(options);
    const TensorMeta flat = make_meta("w", TensorKind::kMaster, DType::kFloat32, {11, 7, 3});
    const TensorMeta rows = make_meta("w", TensorKind::kModel, DType::kBFloat16, {60, 5});
    const std::string flat_bytes = random_bytes(ds::run_seed(), 1, 0, 11 * 7 * 3 * 4);
    const std::string row_bytes = random_bytes(ds::run_seed(), 1, 1, 60 * 5 * 2);
    for (int r = ranks - 1; r >= 0; --r) {
      std::optional<PartWriter> other;
      if (r > 0) other.emplace(writer.temporary(), r, BlobOptions{.chunk_bytes = 128});
      PartWriter& part = r > 0 ? *other : writer.part();
      const int64_t begin = 231 * r / ranks, end = 231 * (r + 1) / ranks;
      part.add_range(
          flat, begin, end,
          bytes_of(flat_bytes)
              .subspan(static_cast<size_t>(begin) * 4, static_cast<size_t>(end - begin) * 4));
      // Rows in pieces, as a tensor that is copied from a device would come.
      const int64_t first = 60 * r / ranks, count = 60 * (r + 1) / ranks - first;
      auto left = bytes_of(row_bytes).subspan(static_cast<size_t>(first) * 10,
                                              static_cast<size_t>(count) * 10);
      part.begin_tensor(rows, {{first, 0}, {count, 5}});
      while (!left.empty()) {
        const size_t n = std::min<size_t>(left.size(), 1 + rng() % 90);
        part.append(left.first(n));
        left = left.subspan(n);
      }
      part.end_tensor();
      if (r > 0) {
        // The part travels to rank 0 as bytes.
        const std::string sent = encode_manifest(part.finish());
        writer.merge(decode_manifest(bytes_of(sent), "part"));
      }
    }
    writer.commit();
    const auto reader = CheckpointReader::open(folder.path() / "save");
    EXPECT_EQ(reader.manifest().blobs.size(), static_cast<size_t>(ranks));
    EXPECT_TRUE(reader.verify_all().empty());
    const TensorRecord& w = reader.tensor("w", TensorKind::kMaster);
    for (int round = 0; round < 60; ++round) {
      auto begin = static_cast<int64_t>(rng() % 232), end = static_cast<int64_t>(rng() % 232);
      if (begin > end) std::swap(begin, end);
      std::string out(static_cast<size_t>(end - begin) * 4, 'x');
      reader.read_range(w, begin, end, std::as_writable_bytes(std::span(out)));
      EXPECT_EQ(out, flat_bytes.substr(static_cast<size_t>(begin) * 4, out.size()));

      const std::vector<int64_t> shape = {60, 5};
      Box box;
      for (const int64_t s : shape) {
        box.offset.push_back(static_cast<int64_t>(rng() % static_cast<uint64_t>(s)));
        box.extent.push_back(
            1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(s - box.offset.back())));
      }
      std::string part(static_cast<size_t>(box.elements()) * 2, 'x');
      reader.read(reader.tensor("w", TensorKind::kModel), box,
                  std::as_writable_bytes(std::span(part)));
      std::string expected;
      for (int64_t i = 0; i < box.extent[0]; ++i) {
        expected +=
            row_bytes.substr(static_cast<size_t>((box.offset[0] + i) * 5 + box.offset[1]) * 2,
                             static_cast<size_t>(box.extent[1]) * 2);
      }
      EXPECT_EQ(part, expected) << box.text();
    }
  }
}

TEST(SaveLoad, ManyBlobsDoNotNeedManyDescriptors) {
  const TempFolder folder;
  CheckpointWriter writer(options_for(folder, "t"));
  const TensorMeta meta = make_meta("w", TensorKind::kModel, DType::kUInt8, {150});
  std::string bytes(150, '\0');
  for (size_t i = 0; i < 150; ++i) bytes[i] = static_cast<char>(i);
  for (int r = 1; r < 150; ++r) {
    PartWriter part(writer.temporary(), r);
    part.add_range(meta, r, r + 1, bytes_of(bytes).subspan(static_cast<size_t>(r), 1));
    writer.merge(part.finish());
  }
  writer.part().add_range(meta, 0, 1, bytes_of(bytes).first(1));
  writer.commit();
  const auto reader = CheckpointReader::open(folder.path() / "save");
  std::string out(150, 'x');
  reader.read(reader.tensor("w", TensorKind::kModel), std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, bytes);
  const auto fds = std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  EXPECT_LT(fds, 100);
}

TEST(SaveLoad, TensorsMayEndAnywhereInAChunk) {
  for (int64_t n = 3 * 64 - 2; n <= 3 * 64 + 2; ++n) {
    const TempFolder folder;
    auto options = options_for(folder, "t");
    options.blob.chunk_bytes = 64;
    CheckpointWriter writer(options);
    for (const char* name : {"a", "b"}) {
      writer.part().add_tensor(make_meta(name, TensorKind::kModel, DType::kUInt8, {n}),
                               bytes_of(std::string(static_cast<size_t>(n), *name)));
    }
    writer.commit();
    EXPECT_TRUE(CheckpointReader::open(folder.path() / "save").verify_all().empty()) << n;
  }
}

TEST(SaveLoad, LargeTensorsSpanChunksAndStreamThrough) {
  DS_SEED_TRACE();
  const TempFolder folder;
  auto options = options_for(folder, "big");
  const TensorMeta meta = make_meta("w", TensorKind::kModel, DType::kUInt8, {3 << 20});
  const std::string bytes = random_bytes(ds::run_seed(), 0, 0, 3 << 20);
  CheckpointWriter writer(options);
  writer.part().add_tensor(make_meta("a", TensorKind::kModel, DType::kUInt8, {5}),
                           bytes_of(bytes).first(5));
  writer.part().add_tensor(meta, bytes_of(bytes));
  writer.commit();
  const auto reader = CheckpointReader::open(folder.path() / "save");
  const TensorRecord& w = reader.tensor("w", TensorKind::kModel);
  EXPECT_EQ(w.slices[0].range.offset, 4096u);
  std::string out(3 << 20, 'x');
  reader.read(w, std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(out == bytes);
  EXPECT_EQ(reader.manifest().blobs[0].checksums.size(),
            (4096 + bytes.size() + kDefaultChunkBytes - 1) / kDefaultChunkBytes);
}

TEST(SaveLoad, ThreadsReadOneCheckpointAtOnce) {
  DS_SEED_TRACE();
  const TempFolder folder;
  auto options = options_for(folder, "t");
  options.blob.chunk_bytes = 256;
  save_sample(options, ds::run_seed(), 4);
  const auto reader = CheckpointReader::open(folder.path() / "save");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) expect_sample(reader, ds::run_seed());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SaveLoad, SavingATagAgainReplacesItBothWays) {
  DS_SEED_TRACE();
  for (const bool exchange : {true, false}) {
    const TempFolder folder;
    auto options = options_for(folder, "rolling");
    options.exchange = exchange;
    for (const int64_t step : {1, 2, 3}) {
      save_sample(options, ds::run_seed(), step);
      const auto reader = CheckpointReader::open(folder.path() / "save");
      EXPECT_EQ(reader.manifest().counters.global_steps, step);
      expect_sample(reader, ds::run_seed());
      EXPECT_TRUE(leftovers(folder.path() / "save").empty());
    }
  }
}

TEST(SaveLoad, NothingChangesWithoutCommit) {
  DS_SEED_TRACE();
  const TempFolder folder;
  save_sample(options_for(folder, "one"), ds::run_seed(), 1);
  {
    CheckpointWriter writer(options_for(folder, "one"));
    writer.part().set_int("x", 1);
    EXPECT_EQ(leftovers(folder.path() / "save").size(), 1u);
  }
  EXPECT_TRUE(leftovers(folder.path() / "save").empty());
  expect_sample(CheckpointReader::open(folder.path() / "save"), ds::run_seed());
}

TEST(SaveLoad, LatestCanStayWhereItIs) {
  const TempFolder folder;
  save_sample(options_for(folder, "one"), 1, 1);
  auto options = options_for(folder, "two");
  options.update_latest = false;
  save_sample(options, 1, 2);
  EXPECT_EQ(CheckpointReader::open(folder.path() / "save").tag(), "one");
  EXPECT_EQ(CheckpointReader::open(folder.path() / "save", "two").tag(), "two");
  EXPECT_FALSE(fs::exists(folder.path() / "save/two/latest.next"));
}

TEST(SaveLoad, TagsThatCannotNameAFolderAreRefused) {
  const TempFolder folder;
  for (const std::string& tag :
       {std::string(), std::string("a/b"), std::string(".."), std::string(".x"),
        std::string("latest"), std::string("a\nb"), std::string("a\0b", 3), std::string(129, 'a'),
        std::string("\xFF")}) {
    const Error error = error_of([&] { CheckpointWriter writer(options_for(folder, tag)); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << tag;
  }
  EXPECT_FALSE(fs::exists(folder.path() / "save"));
  save_sample(options_for(folder, "Größe 1.5 B"), 1, 1);
  EXPECT_EQ(CheckpointReader::open(folder.path() / "save").tag(), "Größe 1.5 B");
}

TEST(SaveLoad, TheWriterRefusesIncompleteAndContradictoryTensors) {
  const TempFolder folder;
  const TensorMeta meta = make_meta("w", TensorKind::kModel, DType::kUInt8, {4});
  const std::string four(4, 'x');
  const auto commit_fails = [&](const auto& fill, std::string_view text) {
    const Error error = error_of([&] {
      CheckpointWriter writer(options_for(folder, "t"));
      fill(writer.part());
      writer.commit();
    });
    EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
    EXPECT_TRUE(leftovers(folder.path() / "save").empty());
    EXPECT_FALSE(fs::exists(folder.path() / "save/t"));
  };
  commit_fails([&](PartWriter& p) { p.add_range(meta, 0, 3, bytes_of(four).first(3)); }, "missing");
  commit_fails(
      [&](PartWriter& p) {
        p.add_tensor(meta, bytes_of(four));
        p.add_range(meta, 1, 2, bytes_of(four).first(1));
      },
      "overlap");
  commit_fails([&](PartWriter& p) { p.add_tensor(meta, bytes_of(four).first(3)); }, "needs 4");
  commit_fails(
      [&](PartWriter& p) {
        p.add_range(meta, 0, 2, bytes_of(four).first(2));
        TensorMeta other = meta;
        other.flags = kFrozen;
        p.add_range(other, 2, 4, bytes_of(four).first(2));
      },
      "added before");
  commit_fails([&](PartWriter& p) { p.begin_tensor(meta, full_box(meta.shape)); }, "not ended");
  commit_fails(
      [&](PartWriter& p) {
        p.set_int("a", 1);
        p.set_text("a", "b");
      },
      "twice");
  commit_fails(
      [&](PartWriter& p) {
        TensorMeta alias = meta;
        alias.aliases = {"v"};
        p.add_tensor(alias, bytes_of(four));
        alias.name = "v";
        alias.aliases = {};
        p.add_tensor(alias, bytes_of(four));
      },
      "twice");
  commit_fails(
      [&](PartWriter& p) {
        TensorMeta bad = meta;
        bad.kind = TensorKind::kOptimizer;
        p.add_tensor(bad, bytes_of(four));
      },
      "lacks the name");
}

TEST(SaveLoad, CallsInTheWrongOrderAreErrors) {
  const TempFolder folder;
  const TensorMeta meta = make_meta("w", TensorKind::kModel, DType::kUInt8, {4});
  const std::string four(4, 'x');
  CheckpointWriter writer(options_for(folder, "t"));
  EXPECT_EQ(error_of([&] { writer.part().append(bytes_of(four)); }).code(), Code::kState);
  EXPECT_EQ(error_of([&] { writer.part().set_int("a", 1); }).code(), Code::kState);
  EXPECT_EQ(error_of([&] { writer.commit(); }).code(), Code::kState);
  CheckpointWriter done(options_for(folder, "t"));
  done.commit();
  EXPECT_EQ(error_of([&] { done.commit(); }).code(), Code::kState);
  EXPECT_TRUE(fs::exists(folder.path() / "save/t/manifest.dsm"));
}

TEST(SaveLoad, MissingThingsAreNamedWithTheNearestName) {
  const TempFolder folder;
  EXPECT_EQ(error_of([&] { CheckpointReader::open(folder.path() / "nowhere"); }).code(),
            Code::kNotFound);
  save_sample(options_for(folder, "global_step10"), 1, 10);
  const Error tag =
      error_of([&] { CheckpointReader::open(folder.path() / "save", "global_stp10"); });
  EXPECT_EQ(tag.code(), Code::kNotFound);
  EXPECT_NE(tag.message().find("did you mean 'global_step10'"), std::string::npos) << tag.message();
  const auto reader = CheckpointReader::open(folder.path() / "save");
  const Error tensor = error_of([&] { reader.tensor("wte.wieght", TensorKind::kMaster); });
  EXPECT_NE(tensor.message().find("did you mean 'wte.weight'"), std::string::npos);
  EXPECT_EQ(error_of([&] { reader.state_int("nothing"); }).code(), Code::kNotFound);
  EXPECT_EQ(error_of([&] { reader.state_double("seed"); }).code(), Code::kCorrupt);
  std::string small(3, 'x');
  EXPECT_EQ(error_of([&] {
              reader.read(reader.tensor("cube", TensorKind::kModel),
                          std::as_writable_bytes(std::span(small)));
            }).code(),
            Code::kInvalidArgument);
}

TEST(SaveLoad, InspectDescribesTheCheckpoint) {
  const TempFolder folder;
  save_sample(options_for(folder, "t"), 7, 5);
  const Json json = CheckpointReader::open(folder.path() / "save").inspect();
  EXPECT_EQ(json["counters"]["global_steps"], 5);
  EXPECT_EQ(json["tensors"].size(), sample_tensors().size());
  EXPECT_EQ(json["tensors"][0]["aliases"][0], "lm_head.weight");
  EXPECT_EQ(json["tensors"][0]["dtype"], "bfloat16");
  EXPECT_EQ(json["tensors"][0]["bytes"], 13 * 8 * 2);
  EXPECT_EQ(json["tensors"][5]["state"], "momentum");
  EXPECT_EQ(json["state"][0]["value"], 7);
  EXPECT_EQ(json["blobs"][0]["file"], "data-00000.bin");
}

TEST(SaveLoad, LatestMayBeWrittenByHand) {
  const TempFolder folder;
  save_sample(options_for(folder, "one"), 1, 1);
  save_sample(options_for(folder, "two"), 1, 2);
  for (const char* text : {"one\n", "one\r\n"}) {
    spill(folder.path() / "save/latest", text);
    EXPECT_EQ(CheckpointReader::open(folder.path() / "save").tag(), "one");
    const LatestCheckpoint found = open_latest_valid(folder.path() / "save");
    EXPECT_EQ(found.reader.tag(), "one");
    EXPECT_TRUE(found.skipped.empty());
  }
}

// Cut short it may name an older one: the newest is taken, and the reason told.
TEST(SaveLoad, LatestThatIsCutShortIsDamage) {
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(options_for(folder, "step10"), 1, 10);
  save_sample(options_for(folder, "step100"), 1, 100);
  const std::string whole = slurp(save / "latest");
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    spill(save / "latest", whole.substr(0, size));
    const LatestCheckpoint found = open_latest_valid(save);
    EXPECT_EQ(found.reader.tag(), "step100");
    // The tag and its line feed are what a person writes.
    ASSERT_EQ(found.skipped.size(), size == 8 ? 0u : 1u);
    if (size == 6) {
      EXPECT_NE(found.skipped[0].reason.find("no line feed"), std::string::npos)
          << found.skipped[0].reason;
    }
  }
}

TEST(SaveLoad, NewerOnesThanLatestNamesAreMentioned) {
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(options_for(folder, "a"), 1, 10);
  save_sample(options_for(folder, "b"), 1, 20);
  engine_test::LogLines log;
  EXPECT_EQ(open_latest_valid(save).reader.tag(), "b");
  EXPECT_TRUE(log.take("newer").empty());
  spill(save / "latest", "a\n");
  EXPECT_EQ(open_latest_valid(save).reader.tag(), "a");
  const std::vector<std::string> told = log.take("newer");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("b (step 20)"), std::string::npos) << told[0];
}

TEST(SaveLoad, RunsAndTheirOrderAreListed) {
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  const std::string run = make_run_id(), other = make_run_id();
  EXPECT_EQ(run.size(), 32u);
  EXPECT_NE(run, other);
  for (const int64_t step : {9, 10, 100, 11}) {
    CheckpointWriterOptions options = options_for(folder, "global_step" + std::to_string(step));
    if (step != 9) options.run = step == 10 ? other : run;
    save_sample(options, 1, step);
  }
  fs::resize_file(save / "global_step11/manifest.dsm", 50);
  const std::vector<ListedCheckpoint> list = list_checkpoints(save);
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0].tag, "global_step11");
  EXPECT_FALSE(list[0].valid());
  EXPECT_EQ(list[1].tag, "global_step9");
  EXPECT_EQ(list[1].run, "");
  EXPECT_EQ(list[2].tag, "global_step10");
  EXPECT_EQ(list[2].run, other);
  EXPECT_EQ(list[3].tag, "global_step100");
  EXPECT_EQ(list[3].run, run);
  EXPECT_EQ(list[3].steps, 100);
}

TEST(SaveLoad, DeletingMovesLatestFirst) {
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  for (const int64_t step : {3, 5, 4}) {
    save_sample(options_for(folder, "s" + std::to_string(step)), 1, step);
  }
  EXPECT_EQ(read_latest(save), "s4");
  delete_checkpoint(save, "s3");
  EXPECT_FALSE(fs::exists(save / "s3"));
  EXPECT_EQ(read_latest(save), "s4");
  delete_checkpoint(save, "s4");
  EXPECT_EQ(read_latest(save), "s5");
  spill(save / "s5/manifest.dsm", "damaged");
  delete_checkpoint(save, "s5");
  EXPECT_FALSE(fs::exists(save / "latest"));
  EXPECT_EQ(error_of([&] { delete_checkpoint(save, "s5"); }).code(), Code::kNotFound);

  // What is no checkpoint, and files of others, stay.
  fs::create_directory(save / "photos");
  spill(save / "photos/data-00000.bin", "mine");
  EXPECT_EQ(error_of([&] { delete_checkpoint(save, "photos"); }).code(), Code::kNotFound);
  EXPECT_EQ(error_of([&] { delete_checkpoint(save, "../save"); }).code(), Code::kInvalidArgument);
  EXPECT_TRUE(fs::exists(save / "photos/data-00000.bin"));
  save_sample(options_for(folder, "s6"), 1, 6);
  spill(save / "s6/notes.txt", "mine");
  EXPECT_EQ(error_of([&] { delete_checkpoint(save, "s6"); }).code(), Code::kIo);
  EXPECT_EQ(slurp(save / "s6/notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(save / "s6/manifest.dsm"));
}

}  // namespace
}  // namespace ds::test
