// What an engine measures of its steps beside their results: throughput, the FLOPS profile, memory.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "config/config.h"
#include "engine/expert_loads.h"
#include "engine/report.h"
#include "mesh/mesh.h"
#include "models/model.h"
#include "observe/module_profile.h"
#include "observe/monitor.h"
#include "observe/profile_report.h"
#include "observe/throughput.h"
#include "observe/timers.h"
#include "optim/optimizer.h"

namespace ds {

// Reads the time when the device has done its work.
ClockFn device_clock(const std::shared_ptr<Device>& device);

class StepMetrics {
 public:
  StepMetrics(const Config& config, models::Model& model, const Mesh& mesh);

  // For the tape of a forward pass of the step after `steps` others; null when nobody asks.
  ModuleProfile* profile_for(int64_t steps);
  // A forward pass over ids [B, T] is done.
  void count_batch(const Tensor& ids);
  // What the step's update did, where the optimizer leaves a part of the elements for later.
  void set_extent(const std::optional<optim::UpdateExtent>& extent) { extent_ = extent; }
  // What of it was made before the step, where the optimizer does that.
  void set_ahead(const std::optional<optim::Optimizer::Ahead>& ahead) { ahead_ = ahead; }
  // Of its layers of experts, if there are any.
  void count_experts(const nn::RouterRecord& routers) { experts_.add(routers); }
  // Collective, where the model has any: they become those of all ranks.
  void sum_experts(const Mesh& mesh);
  // The open step is given up.
  void drop_step();

  // After a step: adds what was measured, and ends the step's measurement. `timers` are of the
  // step's phases.
  void finish_step(const StepReport& report, const WallClockTimers& timers);

  // Scalars of the last step for the monitors.
  void add_to(std::vector<Metric>& metrics) const;
  // "12.0 samples/s (average 11.8), ..."; empty when throughput is not measured.
  std::string throughput_line() const;
  // "updated: 10.8 % of the elements, 2 steps of the others wait"; empty where all are updated.
  std::string extent_line() const;
  // Memory by tag: now, peak of the last step, peak. Measured with memory_breakdown.
  std::string memory_lines() const;
  // The peak of a tag, or of all.
  int64_t peak(MemoryTag tag) const;
  int64_t total_peak() const;

  // Of the last step, of the micro batches of all ranks: null where the model has no experts.
  const Json& experts() const { return experts_.report(); }
  const ExpertLoads& expert_loads() const { return experts_; }
  // Of the last profiled step, null before there is one.
  const Json& profile() const { return profile_json_; }

 private:
  using Peaks = std::array<int64_t, kMemoryTags + 1>;  // by tag, then of all together
  Peaks account_peaks() const;
  void finish_profile(const StepReport& report, const WallClockTimers& timers);

  const Config& config_;
  models::Model& model_;
  int64_t world_;  // ranks
  int64_t data_ranks_;
  bool first_rank_;
  DecoderShape shape_;

  ThroughputMeter meter_;
  // What this process computed in the open step.
  struct Batches {
    int64_t count = 0, samples = 0, tokens = 0;
    int64_t length = 0;  // of their sequences
  };
  Batches open_;
  ExpertLoads experts_;
  double six_n_tflops_ = 0, megatron_tflops_ = 0;  // per process, of the last step; 0 = unknown

  std::unique_ptr<ModuleProfile> profile_;  // while its step is open
  Json profile_json_;
  Peaks step_peaks_{}, peaks_{};
  std::optional<optim::UpdateExtent> extent_;     // of the last step
  std::optional<optim::Optimizer::Ahead> ahead_;  // likewise
};

}  // namespace ds
