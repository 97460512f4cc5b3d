// What `ds train --load` goes on from: which checkpoint, its state into the engine, and what the
// run that saved it depended on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ds.hpp"
#include "format.h"
#include "train_data.h"
#include "train_options.h"

namespace tool {

// The checkpoint that --load means. Everything is empty without --load.
struct LoadedRun {
  std::string folder;      // of all
  std::string tag;         // of the one
  std::string checkpoint;  // its own folder
  std::string run;         // its training run, "" when it does not say
  std::string config;      // that it was trained with, for this run; "" when it does not say
  std::optional<int64_t> seed;
  std::vector<std::string> others;  // tags of the same folder that may stand in, the best one last
};

// Whether there is one in a folder, damaged or not.
bool has_checkpoint(const std::string& folder);

// Decides once which checkpoint is loaded, so that weights, tokenizer and seed are of the same.
// --load may also name the folder of one checkpoint.
LoadedRun find_checkpoint(const TrainOptions& options);

// When `error` says that the loaded checkpoint is damaged: the one that is loaded in its place,
// with a warning if `tell`. Nothing when there is no other, or a tag was asked for.
std::optional<LoadedRun> stand_in(const TrainOptions& options, const LoadedRun& damaged,
                                  const libds::Error& error, bool tell);

// Refuses to save among the checkpoints of another run.
void check_save_folder(const TrainOptions& options, const LoadedRun& loaded);

// Its state into the engine.
void load_checkpoint(libds::Engine& engine, const LoadedRun& run, const TrainOptions& options);

// Of data that are read for one purpose as a whole.
inline constexpr const char* kWholeSplit = "1,0,0";

// What the samples of a run depend on.
struct SampleChoice {
  int64_t seed = 0;
  std::string split;
  int64_t sequence_length = 0;
};
// It comes from the options, else from the run that is resumed, so that a resumed run sees the same
// samples; and goes into the engine's client state for the next checkpoint.
SampleChoice recall_run(libds::Engine& engine, const TrainOptions& options, const TrainData& data,
                        const Json& model_config, int64_t seed);

}  // namespace tool
