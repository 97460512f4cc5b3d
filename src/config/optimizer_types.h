// Optimizers by the names that a configuration gives them: those that the library has.
#pragma once

namespace ds {

enum class OptimizerType { kAdam, kAdamW, kAdagrad, kLion, kLamb, kSgd, kMuon, kNadam, kRmsprop };
enum class MuRule { kNone, kAdam, kSgd };  // how widths scale rates

struct KnownOptimizer {
  const char* name;
  OptimizerType type;
  MuRule mu = MuRule::kNone;
};

inline constexpr KnownOptimizer kOptimizers[] = {
    {"Adam", OptimizerType::kAdam},
    {"AdamW", OptimizerType::kAdamW},
    {"Lamb", OptimizerType::kLamb},
    {"Lion", OptimizerType::kLion},
    {"Adagrad", OptimizerType::kAdagrad},
    {"Muon", OptimizerType::kMuon},
    {"MuAdam", OptimizerType::kAdam, MuRule::kAdam},
    {"MuAdamW", OptimizerType::kAdamW, MuRule::kAdam},
    {"MuSGD", OptimizerType::kSgd, MuRule::kSgd},
    {"SGD", OptimizerType::kSgd},
    {"NAdam", OptimizerType::kNadam},
    {"RMSprop", OptimizerType::kRmsprop},
};

}  // namespace ds
