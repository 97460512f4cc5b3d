// How much of a checkpoint a load takes over.
#pragma once

namespace ds {

struct LoadOptions {
  bool module_only = false;      // weights alone: everything else stays as it is
  bool module_strict = true;     // checkpoint and model name the same parameters
  bool optimizer_states = true;  // moments, loss scale, gradients of an open step
  bool schedule = true;          // how far the learning rate's schedule is
  bool may_be_missing = false;   // a folder without checkpoints changes nothing
  bool strict = false;           // a configuration or data set that differs is an error
  // A load over training that fails leaves the engine as it was: what is overwritten is kept, or
  // everything is checked first.
  bool restore_on_failure = true;
};

inline bool takes_states(const LoadOptions& options) {
  return options.optimizer_states && !options.module_only;
}

}  // namespace ds
