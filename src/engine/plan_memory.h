// What training takes of memory on a rank, by what it is for: state that rests, and what comes and
// goes while backward or the update is at its fullest.
#pragma once

#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/plan_context.h"
#include "engine/plan_gathers.h"

namespace ds {

// Bytes.
struct MemoryTable {
  int64_t parameters = 0;  // weights, and masters beside them
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;    // and work space of operators
  int64_t communication = 0;  // gathered weights, buckets of gradients on their way
  int64_t io = 0;             // between memory and files
  int64_t states() const { return parameters + gradients + optimizer; }
  int64_t total() const { return states() + activations + communication + io; }
};

struct MemoryPlan {
  MemoryTable device;             // where the rank computes
  bool in_update = false;         // it is fullest there, else in backward
  bool activations_known = true;  // counted over passes; else a formula says roughly
  MemoryTable host;               // beside a GPU
  MemoryTable files;
  int64_t reserved = 0;      // of the system for `device`, as the CPU's arena grows; 0: unknown
  int64_t weight_files = 0;  // of `files`, those of weights that rest there
  MemoryAccount::ByTag by_tag{};  // of the device, as its account counts
};

// `pool`: of as many threads as training has, since scratch depends on them.
MemoryPlan plan_memory(const PlanContext& plan, ThreadPool& pool);

Json device_json(const MemoryPlan& plan);
Json host_json(const MemoryPlan& plan);
Json files_json(const MemoryPlan& plan);

// Of fp8 codes: how many weights have them.
struct CodedWeights {
  int64_t weights = 0;
  int64_t elements = 0;
  int64_t largest = 0;
};
CodedWeights coded_weights(const PlanContext& plan);
// The gathers of an optimizer step at stage 3, by gradient domain.
GatherCounts planned_gathers(const PlanContext& plan);

}  // namespace ds
