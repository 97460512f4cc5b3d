// What a checkpoint holds of a run, for saving and loading.
#pragma once

namespace ds {

class CallControl;
class DataFeed;
class StepGuard;
class Updater;
struct CallerState;
struct OpenStep;
struct RunContext;

struct CheckpointedRun {
  RunContext& run;
  OpenStep& open;
  Updater& updater;
  DataFeed& feed;
  CallerState& caller;
  CallControl& control;  // of the calls that save and load
  const StepGuard& guard;
};

}  // namespace ds
