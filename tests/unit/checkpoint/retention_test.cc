// How many checkpoints of a run stay.
#include "checkpoint/retention.h"

#include <gmock/gmock.h>

#include "checkpoint/listing.h"
#include "checkpoint/run_id.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

using ::testing::ElementsAre;

class Retention : public ::testing::Test {
 protected:
  void save(const std::string& tag, const std::string& run, int64_t step) {
    CheckpointWriterOptions options;
    options.folder = save_;
    options.tag = tag;
    options.run = run;
    save_sample(options, 1, step);
  }
  // By their steps; what cannot be opened comes first.
  std::vector<std::string> tags() const {
    std::vector<std::string> out;
    for (const ListedCheckpoint& one : list_checkpoints(save_)) out.push_back(one.tag);
    return out;
  }

  const TempFolder folder_;
  const fs::path save_ = folder_.path() / "save";
  const std::string run_ = make_run_id(), other_ = make_run_id();
};

TEST_F(Retention, KeepsTheNewestOfTheRun) {
  for (const int64_t step : {10, 2, 9, 4}) save("s" + std::to_string(step), run_, step);
  save("other", other_, 3);
  save("nobodys", "", 1);
  keep_newest(save_, run_, "s10", 4);
  EXPECT_THAT(tags(), ElementsAre("nobodys", "s2", "other", "s4", "s9", "s10"));
  keep_newest(save_, run_, "s10", 3);
  EXPECT_THAT(tags(), ElementsAre("nobodys", "other", "s4", "s9", "s10"));
  keep_newest(save_, run_, "s10", 1);
  EXPECT_THAT(tags(), ElementsAre("nobodys", "other", "s10"));
}

// A save that says how many stay leaves no more, its own among them.
TEST_F(Retention, ASaveRemovesWhatIsTooMuch) {
  for (const int64_t step : {1, 2, 3, 4}) {
    CheckpointWriterOptions options;
    options.folder = save_;
    options.tag = "s" + std::to_string(step);
    options.run = run_;
    options.keep = 2;
    save_sample(options, 1, step);
  }
  EXPECT_THAT(tags(), ElementsAre("s3", "s4"));
}

// A run that went back to an earlier step saves what counts as the newest there.
TEST_F(Retention, WhatWasSavedJustNowAlwaysStays) {
  for (const int64_t step : {5, 6, 7, 1}) save("s" + std::to_string(step), run_, step);
  keep_newest(save_, run_, "s1", 2);
  EXPECT_THAT(tags(), ElementsAre("s1", "s7"));
}

TEST_F(Retention, DoesNotCountWhatCannotBeRead) {
  for (const int64_t step : {1, 2, 3, 4}) save("s" + std::to_string(step), run_, step);
  spill(save_ / "s3/manifest.dsm", "damaged");
  keep_newest(save_, run_, "s4", 2);
  EXPECT_THAT(tags(), ElementsAre("s3", "s2", "s4"));
}

TEST_F(Retention, KeepsAllWithoutANumberOrARun) {
  for (const int64_t step : {1, 2, 3}) save("s" + std::to_string(step), run_, step);
  keep_newest(save_, run_, "s3", 0);
  keep_newest(save_, run_, "s3", -1);
  keep_newest(save_, "", "s3", 1);
  EXPECT_THAT(tags(), ElementsAre("s1", "s2", "s3"));
}

// What is in the way of one deletion is not in the way of the others, nor of the save.
TEST_F(Retention, GoesOnAfterOneThatCannotBeDeleted) {
  for (const int64_t step : {1, 2, 3}) save("s" + std::to_string(step), run_, step);
  spill(save_ / "s2/notes.txt", "mine");
  keep_newest(save_, run_, "s3", 1);
  EXPECT_FALSE(fs::exists(save_ / "s1"));
  EXPECT_EQ(slurp(save_ / "s2/notes.txt"), "mine");
  EXPECT_EQ(CheckpointReader::open(save_).tag(), "s3");
}

}  // namespace
}  // namespace ds::test
