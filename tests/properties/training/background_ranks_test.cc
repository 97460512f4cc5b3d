// Saving beside the training by several ranks: the files are those of a save that waits, whatever
// the ranks do meanwhile, and what fails on one rank is reported on all.
#include <fstream>

#include "checkpoint/rank_parts.h"
#include "checkpoint/reader.h"
#include "training_world.h"

namespace ds::properties {
namespace {

Json decoupled(Json config) {
  return with(std::move(config), {{"checkpoint", {{"writer", {{"decoupled", true}}}}}});
}

TEST(BackgroundRanks, WriteWhatASaveThatWaitsWrites) {
  for (const int stage : {0, 2, 3}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", ", precision));
      const Folder folder;
      Json config = step_config(stage, 3, {{"scheduler", nullptr}});
      if (precision == std::string("bf16")) config["bf16"] = {{"enabled", true}};
      const Job plain{3, config}, beside{3, decoupled(config)};
      run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
        auto waits = make_rank_engine(plain, comm), engine = make_rank_engine(beside, comm);
        for (int i = 0; i < 2; ++i) {
          waits->train_batch();
          engine->train_batch();
        }
        const std::vector<float> at_call = all_weights(*engine);
        engine->save(folder.path("beside"), "a");
        waits->save(folder.path("waits"), "a");
        for (int i = 0; i < 3; ++i)
          EXPECT_EQ(engine->train_batch().loss, waits->train_batch().loss);
        engine->wait_for_save();
        engine->wait_for_save();
        EXPECT_TRUE(fs::exists(folder.path("beside/a/manifest.dsm"))) << "there, for every rank";
        EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*waits)));
        // The next one waits for nothing but itself, and a load for it.
        engine->save(folder.path("beside"), "b");
        auto loaded = make_rank_engine(plain, comm);
        engine->load(folder.path("beside"), "b");
        loaded->load(folder.path("beside"), "a");
        EXPECT_TRUE(same_bits(all_weights(*loaded), at_call));
        EXPECT_TRUE(same_bits(all_weights(*engine), all_weights(*waits)));
      });
      for (int rank = 0; rank < 3; ++rank) {
        const std::string name = str_cat("a/data-0000", rank, ".bin");
        const std::string bytes = read_bytes(folder.path("beside") + "/" + name);
        EXPECT_GT(bytes.size(), 1000u);
        EXPECT_TRUE(bytes == read_bytes(folder.path("waits") + "/" + name)) << name;
      }
      const Manifest a = CheckpointReader::open(folder.path("beside"), "a").manifest(),
                     b = CheckpointReader::open(folder.path("waits"), "a").manifest();
      EXPECT_EQ(a.counters, b.counters);
      EXPECT_EQ(a.tensors, b.tensors);
      EXPECT_EQ(a.blobs, b.blobs);
      for (const auto& entry : fs::directory_iterator(folder.path("beside") + "/a")) {
        EXPECT_NE(entry.path().filename().string().find("part-"), 0u) << entry.path();
      }
    }
  }
}

TEST(BackgroundRanks, AFailureIsToldByAll) {
  const Folder folder;
  const Job run{2, decoupled(step_config(2, 2))};
  // A folder where the last file of a save should go, which only rank 0's thread meets.
  fs::create_directories(folder.path("saves/latest/full"));
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    for (const bool by_wait : {true, false}) {
      engine->save(folder.path("saves"), "blocked");
      EXPECT_TRUE(engine->train_batch().progress.steps > 0);
      const std::string why = error_of(Code::kIo, [&] {
        by_wait ? engine->wait_for_save() : engine->save(folder.path("saves"), "next");
      });
      EXPECT_NE(why.find("'blocked' that was being saved in the background"), std::string::npos)
          << why;
    }
    engine->wait_for_save();
    comm->barrier();
    if (comm->rank() == 0) fs::remove_all(folder.path("saves/latest"));
    comm->barrier();
    engine->save(folder.path("saves"), "next");
  });  // engines end with a save under way
  EXPECT_EQ(CheckpointReader::open(folder.path("saves")).tag(), "next");
}

TensorMeta meta() {
  TensorMeta out;
  out.name = "w";
  out.kind = TensorKind::kMaster;
  out.dtype = DType::kFloat32;
  out.shape = {4};
  return out;
}

// Rank 1's part has a tensor that is not complete: rank 0 learns why there will be none.
TEST(BackgroundRanks, APartThatFailsNamesItsRank) {
  const Folder folder;
  PartWriter good(folder.path(), 2), bad(folder.path(), 1);
  const PartHandover second(folder.path(), 2), first(folder.path(), 1);
  bad.begin_tensor(meta(), {{0}, {4}});
  second.finish(good);
  EXPECT_THROW(first.finish(bad), Error);
  const std::string why =
      error_of(Code::kIo, [&] { take_parts(folder.path(), 3, [] { return false; }); });
  EXPECT_NE(why.find("rank 1 could not write its part"), std::string::npos) << why;
  EXPECT_NE(why.find("was not ended"), std::string::npos) << why;
}

// Nobody waits for a rank that is gone.
TEST(BackgroundRanks, APartThatDoesNotComeIsGivenUp) {
  const Folder folder;
  const PartHandover first(folder.path(), 1);
  int asked = 0;
  const std::string why =
      error_of(Code::kComm, [&] { take_parts(folder.path(), 2, [&] { return ++asked == 3; }); });
  EXPECT_NE(why.find("rank 1 has not written its part"), std::string::npos) << why;
}

}  // namespace
}  // namespace ds::properties
