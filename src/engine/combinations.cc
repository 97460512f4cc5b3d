#include "engine/combinations.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "engine/share_options.h"
#include "models/architecture.h"

namespace ds {
namespace {

using enum CombinationEffect;

bool stage_3(const Situation& s) { return s.config.zero.stage == 3 && s.ranks > 1; }
bool offloads(const Situation& s) { return s.config.zero.offload_optimizer && s.gpu(); }
bool offloads_weights(const Situation& s) {
  return s.config.zero.stage == 3 && s.config.zero.offload_param;
}

bool experts(const Situation& s) {
  return !s.own_parameters() && s.model.architecture().info().experts > 0;
}

// Some parameter of the model is fp32 whatever it computes in.
bool keeps_fp32(const Situation& s) {
  for (nn::ParamId id = 0; id < s.model.parameters().size(); ++id) {
    if (s.model.parameters()[id].keeps_fp32) return true;
  }
  return false;
}

bool shares_experts(const Situation& s) { return s.config.expert_parallel.ranks() > 1; }

bool all_fp32(const Situation& s) {
  for (nn::ParamId id = 0; id < s.model.parameters().size(); ++id) {
    if (s.model.parameters()[id].dtype != DType::kFloat32) return false;
  }
  return true;
}

// Those of a call, in the order of Refusal.
constexpr Combination kCalls[] = {
    {kRefusedInUse, "ds_engine_open_scope in mode DS_SCOPE_COMPUTE", "a built-in model",
     "it fetches its parameters itself", "for whole values open a scope of mode DS_SCOPE_MODIFY",
     [](const Situation& s) { return !s.own_parameters(); }},
    {kRefusedInUse, "whole gradients of a program's own parameters",
     "zero_optimization.stage 3 on several ranks", "no memory holds whole gradients",
     "add them (ds_engine_add_gradients), or use stage 2",
     [](const Situation& s) { return s.own_parameters() && stage_3(s); }},
    {kRefusedInUse, "gradients that a program adds to those of a built-in model",
     "zero_optimization.stage 3 on several ranks",
     "no memory holds whole gradients, and only backward adds to the pieces",
     "set reduced ones (ds_engine_set_values), or use stage 2",
     [](const Situation& s) { return !s.own_parameters() && stage_3(s); }},
    {kRefusedInUse, "gradients that a program adds to those of a built-in model", "expert_parallel",
     "a rank has no place for gradients of experts that other ranks hold",
     "set reduced ones (ds_engine_set_values)",
     [](const Situation& s) { return !s.own_parameters() && shares_experts(s); }},
    {kRefusedInUse, "no_sync", "zero_optimization.stage 2 and 3",
     "every backward gives each rank its part of the gradients, so none can stay whole",
     "use stage 0 or 1", [](const Situation& s) { return s.config.zero.stage >= 2; }},
    {kRefusedInUse, "views of gradients (ds_engine_view_gradient)", "a built-in model on a GPU",
     "gradients lie where the library works with them",
     "add or set them (ds_engine_add_gradients, ds_engine_set_values)",
     [](const Situation& s) { return s.gpu() && !s.own_parameters(); }},
    {kRefusedInUse, "setting parameters, whole or in part",
     "zero_optimization.zenflow.overlap_step, while an update waits to be taken",
     "the update was computed from the values before, and would take their place",
     "load a checkpoint, or use overlap_step false",
     [](const Situation& s) {
       return s.config.zero.zenflow && s.config.zero.zenflow->overlap_step;
     }},
};

constexpr const char* kRoundedMasters =
    "bf16.bf16_master_weights_and_grads or fp16.fp16_master_weights_and_grads";
constexpr const char* kOffload = "zero_optimization.offload_optimizer";
constexpr const char* kOffloadRatio = "zero_optimization.offload_optimizer.ratio";
constexpr const char* kOffloadWeights = "zero_optimization.offload_param.device nvme";
constexpr const char* kExpertParallel = "expert_parallel";
constexpr const char* kDistillation = "distillation";
constexpr const char* kGraphs = "graph_harvesting";
constexpr const char* kSparse = "sparse_gradients";

constexpr const char* kOverlappedStep = "zero_optimization.zenflow.overlap_step";

bool super_offload(const Situation& s) {
  const auto& offload = s.config.zero.offload_optimizer;
  return offload && offload->super_offload;
}
OptimizerType optimizer_type(const Situation& s) {
  return s.config.optimizer.value_or(OptimizerConfig{}).type;
}

constexpr const char* kSuperOffload = "zero_optimization.offload_optimizer.super_offload";

constexpr Combination kStart[] = {
    {kRefused, kOffload, "a program's own parameters on a GPU",
     "their state lies beside them, where the program reads it",
     "leave it out, or keep them on the CPU",
     [](const Situation& s) { return offloads(s) && s.own_parameters(); }},
    {kRefused, kOffload, "zero_optimization.stage 0 and a model on a GPU",
     "stages 1 to 3 offload, whatever the number of ranks", "use stage 1",
     [](const Situation& s) { return offloads(s) && s.config.zero.stage == 0; }},
    {kRefused, "zero_optimization.offload_param", "a model on a GPU and no offload_optimizer",
     "weights that rest on the host follow masters there",
     "use offload_optimizer with device cpu or nvme, too, or leave it out",
     [](const Situation& s) {
       return offloads_weights(s) && s.gpu() && !s.config.zero.offload_optimizer;
     }},
    {kRefused, "zero_optimization.offload_param",
     "a model on a GPU, and super_offload or zenflow.overlap_step",
     "passes would read weights that the update beside them writes",
     "leave offload_param out, or use false for the other",
     [](const Situation& s) {
       const auto& zenflow = s.config.zero.zenflow;
       return offloads_weights(s) && s.gpu() &&
              (super_offload(s) || (zenflow && zenflow->overlap_step));
     }},
    {kRefused, kOverlappedStep, "weights in files that are masters or halves of them",
     "passes and the update beside them would read one file",
     "use overlap_step false, keep weights in memory, or train in bf16 or fp16 with fp32 masters",
     [](const Situation& s) {
       const PrecisionConfig& precision = s.config.precision;
       return s.config.zero.zenflow && s.config.zero.zenflow->overlap_step &&
              weights_in_files(s.config) &&
              (precision.compute == Precision::kFp32 || precision.split_master ||
               precision.rounded_masters);
     }},
    {kRefused, kSuperOffload, "zero_optimization.offload_optimizer.device nvme",
     "to undo an update, what it changed would be read and written once more",
     "use device cpu, or leave super_offload out",
     [](const Situation& s) {
       return super_offload(s) && s.config.zero.offload_optimizer->in_files();
     }},
    {kRefused, kSuperOffload, "LAMB and Muon",
     "they update a tensor by all of its gradient, which ranks have in parts",
     "use Adam, AdamW or another optimizer that treats elements alike",
     [](const Situation& s) {
       return super_offload(s) && (optimizer_type(s) == OptimizerType::kLamb ||
                                   optimizer_type(s) == OptimizerType::kMuon);
     }},
    {kRefused, kSuperOffload, "zero_optimization.zenflow",
     "which columns a step updates follows from its gradients as a whole", "use one of both",
     [](const Situation& s) { return super_offload(s) && s.config.zero.zenflow; }},
    {kRefused, kSuperOffload, "a model on the CPU whose weights are masters, or halves of them",
     "backward would read weights that are updated already",
     "train in bf16 or fp16 with fp32 masters",
     [](const Situation& s) {
       const PrecisionConfig& precision = s.config.precision;
       return super_offload(s) && !s.gpu() && !s.own_parameters() &&
              (precision.compute == Precision::kFp32 || precision.split_master ||
               precision.rounded_masters);
     }},
    {kRefused, kRoundedMasters, "a GPU", "masters there are fp32 or split so far",
     "use false, or bf16.split_master, which needs 4 bytes for a weight and its master together",
     [](const Situation& s) {
       return s.config.precision.rounded_masters && s.gpu() && !(s.own_parameters() && all_fp32(s));
     }},
    {kRefused, kRoundedMasters, "routers with a bias",
     "the bias is fp32, and weights without masters beside them are all of one type",
     "use false, or bf16.split_master",
     [](const Situation& s) { return s.config.precision.rounded_masters && keeps_fp32(s); }},
    {kRefused, "fp8.enabled", "a program's own parameters", "the library does not run their layers",
     "use false",
     [](const Situation& s) { return s.config.precision.fp8.enabled && s.own_parameters(); }},
    {kRefused, kExpertParallel, "a program's own parameters",
     "the program sends tokens to its experts itself", "leave it out",
     [](const Situation& s) { return shares_experts(s) && s.own_parameters(); }},
    {kRefused, kExpertParallel, "zero_optimization.zero_quantized_gradients",
     "gradients go within nodes and then across them, and ranks that hold the same experts need "
     "not be on several nodes",
     "use false, or leave expert_parallel out",
     [](const Situation& s) {
       return shares_experts(s) && s.config.zero.zero_quantized_gradients;
     }},
    {kRefused, kExpertParallel, "zero_optimization.zenflow",
     "which columns a step updates, and when, follows from all matrices of the model, and ranks "
     "that share experts have some of them alone",
     "leave one of both out",
     [](const Situation& s) { return shares_experts(s) && s.config.zero.zenflow; }},
    {kRefused, kDistillation, "a program's own parameters",
     "the library does not run their passes, so that it has no outputs to compare", "leave it out",
     [](const Situation& s) { return s.config.distillation.enabled && s.own_parameters(); }},
    {kWithoutEffect, kGraphs, "a model on the CPU", "the model is not on a GPU", "",
     [](const Situation& s) { return !s.gpu(); }},
    {kWithoutEffect, kGraphs, "zero_optimization.stage 3 on several ranks",
     "weights are gathered within the passes, and each gather is announced to the other ranks, "
     "counted and watched when the host queues it",
     "", stage_3},
    {kWithoutEffect, kGraphs, "zero_optimization.offload_param",
     "weights come from the host within the passes, as its order of them is known", "",
     [](const Situation& s) { return s.gpu() && offloads_weights(s); }},
    {kWithoutEffect, kGraphs, "a program's own parameters", "the passes are the caller's", "",
     [](const Situation& s) { return s.own_parameters(); }},
    {kWithoutEffect, kGraphs, "heads for regression and several labels",
     "the loss of this head is computed on the host", "",
     [](const Situation& s) {
       return s.model.architecture().info().loss != nn::LossKind::kCrossEntropy;
     }},
    {kWithoutEffect, kGraphs, "layers of experts",
     "in every pass the host reads how many tokens each expert got", "", experts},
    {kWithoutEffect, kGraphs, "activation_checkpointing.cpu_checkpointing",
     "cpu_checkpointing copies beside the work", "",
     [](const Situation& s) {
       const ActivationCheckpointingConfig& segments = s.config.activation_checkpointing;
       return segments.enabled && segments.cpu_checkpointing;
     }},
    {kWithoutEffect, kGraphs, kDistillation, "the teacher's part ends at a step of its own", "",
     [](const Situation& s) { return s.config.distillation.enabled; }},
    {kWithoutEffect, kGraphs, "fp8.enabled", "weights in fp8 are cast in some micro batches only",
     "", [](const Situation& s) { return s.config.precision.fp8.enabled; }},
    {kWithoutEffect, kGraphs, "wall_clock_breakdown and flops_profiler",
     "parts of a micro batch are timed", "",
     [](const Situation& s) {
       return s.config.wall_clock_breakdown || s.config.flops_profiler.enabled;
     }},
    {kWithoutEffect, kOffloadRatio,
     "device cpu, a model on a GPU, and super_offload, zenflow or Muon",
     "parts that are updated beside backward, chosen elements and whole matrices are updated on "
     "the "
     "host",
     "",
     [](const Situation& s) {
       const auto& offload = s.config.zero.offload_optimizer;
       return offloads(s) && !offload->in_files() && offload->ratio < 1 &&
              !keeps_share_on_device(s.config);
     }},
    {kWithoutEffect, kOffloadRatio, "device cpu and a model on the CPU",
     "device and host are the same memory there", "",
     [](const Situation& s) {
       const auto& offload = s.config.zero.offload_optimizer;
       return offload && !s.gpu() && !offload->in_files() && offload->ratio < 1;
     }},
    {kWithoutEffect, kOffloadWeights, "weights in fp32 whose optimizer is not in files",
     "the masters, which lie in memory, are the weights", "",
     [](const Situation& s) {
       return offloads_weights(s) && s.config.zero.offload_param->in_files() &&
              !weights_in_files(s.config);
     }},
    {kWithoutEffect, kSuperOffload, "a program's own parameters",
     "only the program knows when a gradient is complete: the update begins with the step", "",
     [](const Situation& s) { return super_offload(s) && s.own_parameters(); }},
    {kWithoutEffect, kSuperOffload, "graph_harvesting and a model on a GPU",
     "a recorded backward runs as a whole: the update begins with the step", "",
     [](const Situation& s) { return super_offload(s) && s.gpu() && s.config.graph_harvesting; }},
    {kWithoutEffect, kSuperOffload, "zero_optimization.mics_shard_size",
     "groups of ranks average their gradients when the step is made: the update begins then", "",
     [](const Situation& s) { return super_offload(s) && s.config.zero.mics_shard_size > 0; }},
    {kWithoutEffect, kSparse, "a program's own parameters",
     "the parameters are the caller's own, whose gradients travel whole", "",
     [](const Situation& s) { return s.own_parameters(); }},
    {kWithoutEffect, kSparse, "a token embedding that is tied to the output",
     "the token embedding is tied to the output, whose gradient has all rows", "",
     [](const Situation& s) { return s.model.architecture().info().lookup == nn::kNoParam; }},
    {kWithoutEffect, kSparse, "a model on a GPU", "the model is on a GPU", "",
     [](const Situation& s) { return s.gpu(); }},
};

[[noreturn]] void refuse(const Combination& row) {
  fail(Code::kUnsupported, row.what, " with ", row.with, ": ", row.why, "; ", row.instead);
}

}  // namespace

std::vector<Combination> combinations() {
  std::vector<Combination> all(std::begin(kStart), std::end(kStart));
  const auto calls = std::find_if(
      all.begin(), all.end(), [](const Combination& row) { return row.effect == kWithoutEffect; });
  all.insert(calls, std::begin(kCalls), std::end(kCalls));
  return all;
}

void check_combinations(const Situation& situation) {
  for (const Combination& row : kStart) {
    if (row.effect == kRefused && row.applies(situation)) refuse(row);
  }
}

void check_call(Refusal refusal, const Situation& situation) {
  const Combination& row = kCalls[static_cast<size_t>(refusal)];
  if (row.applies(situation)) refuse(row);
}

std::string without_effect(const char* key, const Situation& situation) {
  for (const Combination& row : kStart) {
    if (row.effect == kWithoutEffect && std::strcmp(row.what, key) == 0 && row.applies(situation)) {
      return row.why;
    }
  }
  return {};
}

std::string describe_combinations() {
  std::string out = "| what | with | | why | instead |\n| --- | --- | --- | --- | --- |\n";
  for (const Combination& row : combinations()) {
    const char* const effect = row.effect == kRefused        ? "refused"
                               : row.effect == kRefusedInUse ? "refused by the call"
                                                             : "without effect, with a warning";
    out += str_cat("| ", row.what, " | ", row.with, " | ", effect, " | ", row.why, " | ",
                   row.instead, " |\n");
  }
  return out;
}

}  // namespace ds
