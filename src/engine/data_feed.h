// The data set that an engine trains on: which samples a step reads, and whether it is the one that
// a loaded run read.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/json.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "engine/micro_batch.h"

namespace ds {

struct OpenStep;
struct RunContext;

class DataFeed {
 public:
  explicit DataFeed(RunContext& run) : run_(run) {}

  void set_dataset(DatasetPtr dataset);
  bool has_dataset() const { return dataset_ != nullptr; }
  // Steps, at least one, that read the data set once; 0 without one.
  int64_t epoch_steps() const;
  // What identifies the data set, for a checkpoint; null without one.
  Json describe() const;
  // How it differs from a saved description; empty where it does not, or without a data set.
  std::string difference(const Json& saved) const;

  // The next micro batch of the step, on the host.
  MicroBatch next(const OpenStep& open);

  // What a loaded run read; a data set that differs is an error with `strict`, else a warning.
  void expect(Json description, bool strict);

 private:
  std::vector<int64_t> next_samples(const OpenStep& open);
  void check_as_loaded(const Dataset& dataset) const;

  RunContext& run_;
  DatasetPtr dataset_;
  std::optional<Sampler> sampler_;  // of dataset_
  Json loaded_dataset_;             // what the loaded run read; null when that is not known
  bool strict_dataset_ = false;     // another one is refused
};

}  // namespace ds
