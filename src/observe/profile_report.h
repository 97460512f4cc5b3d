// The FLOPS profile of a step as text, in the manner of DeepSpeed's report, and as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "observe/module_profile.h"

namespace ds {

// What the keys of `flops_profiler` ask of the report.
struct ProfileOptions {
  double recompute_fwd_factor = 0;  // share of forward that runs again unseen by the profile
  int64_t module_depth = -1;        // deepest modules shown; -1 = all
  int64_t top_modules = 1;          // modules listed per depth
  bool detailed = true;             // the module tree
};

// The step that was profiled. Times of phases contain what is not in any module.
struct ProfiledStep {
  int64_t step = 0;  // steps completed before it
  int64_t world_size = 1;
  int64_t data_parallel_size = 1;
  int64_t micro_batch = 0;  // samples of a micro batch of this process
  int64_t micro_batches = 0;
  int64_t samples = 0;  // of all processes
  int64_t tokens = 0;   // of all processes
  double forward_seconds = 0;
  double backward_seconds = 0;  // with recomputation
  double update_seconds = 0;
};

std::string format_profile(const ModuleProfile& profile, const ProfiledStep& step,
                           const ProfileOptions& options);
Json profile_json(const ModuleProfile& profile, const ProfiledStep& step,
                  const ProfileOptions& options);

// "1.23 G", "45.00": two decimals and a decimal unit T, G, M, K; `billions` is the unit's letter
// there, which is B for parameters.
std::string format_amount(double value, char billions = 'G');
// "1.23 s", "45.00 ms", "6.00 us".
std::string format_duration(double seconds);

}  // namespace ds
