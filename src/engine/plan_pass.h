// What the passes of a micro batch and the update of state in files take: the model's own operators
// run over memory that is only counted, with weights and gradients that come and go as in training.
#pragma once

#include <optional>

#include "base/thread_pool.h"
#include "device/counting_device.h"
#include "engine/plan_context.h"

namespace ds {

struct PassMemory {
  CountingDevice::ByTag fullest{};  // bytes by tag when most was held
  CountingDevice::ByTag after{};    // when the passes are over
  int64_t reserved = 0;             // of the system: places between are free
  bool in_update = false;           // most was held in the update of state in files
};

// The optimizer's states beside an element of the masters.
struct StateArraysOf {
  DType type = DType::kFloat32;
  int64_t arrays = 0;
  int64_t scratch = 0;  // bytes that an update of them needs besides
};

// `resting` bytes by tag are there all the while. None where there are no passes to run, or no
// addresses for them.
std::optional<PassMemory> count_passes(const PlanContext& plan,
                                       const CountingDevice::ByTag& resting,
                                       const StateArraysOf& states, ThreadPool& pool);

}  // namespace ds
