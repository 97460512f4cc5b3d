// What does not go together: the one table that engines check, and that docs/combinations.md shows.
// What single keys of the configuration exclude is in config/rules.cc.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "engine/run_context.h"
#include "models/model.h"

namespace ds {

// What decides about a combination.
struct Situation {
  const Config& config;
  const models::Model& model;
  int ranks = 1;
  bool gpu() const { return model.device()->kind() == DeviceKind::kCuda; }
  // The model is a program's own parameters, whose passes are not the library's.
  bool own_parameters() const { return !model.has_architecture(); }
};
inline Situation situation_of(const RunContext& run) {
  return {run.config, *run.model, run.mesh.size()};
}

enum class CombinationEffect {
  kRefused,       // DS_ERR_UNSUPPORTED when the engine is made
  kRefusedInUse,  // by the call that asks for it
  kWithoutEffect  // a warning in the log; training goes on without it
};

struct Combination {
  CombinationEffect effect;
  const char* what;  // the key or call
  const char* with;
  const char* why;
  const char* instead;  // what to do; "" for what goes on anyway
  bool (*applies)(const Situation&);
};

// By number in the table, for calls that ask for one of them.
enum class Refusal {
  kFetchOfBuiltInModel,
  kWholeGradientsAtStage3,
  kAddedGradientsAtStage3,
  kAddedGradientsBesideExperts,
  kNoSyncWithReducedGradients,
  kGradientViewOnGpu,
  kParametersUnderAnUpdate,
};

std::vector<Combination> combinations();
// The same as a table in Markdown, for docs/combinations.md.
std::string describe_combinations();
// Throws kUnsupported for the first combination that engines cannot be made of.
void check_combinations(const Situation& situation);
// Throws kUnsupported when what a call asks for cannot be.
void check_call(Refusal refusal, const Situation& situation);
// Why a key has no effect; "" when it has.
std::string without_effect(const char* key, const Situation& situation);

}  // namespace ds
