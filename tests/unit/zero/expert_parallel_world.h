// What tests of ranks that share experts have in common.
#pragma once

#include <vector>

#include "expert_models.h"

namespace ds::zero_test {

inline Json shared_by(int ranks) {
  return {{"expert_parallel", {{"enabled", true}, {"autoep_size", ranks}}}};
}

// Configurations of optimizers that look at whole tensors.
inline const Json kWholeTensors[] = {
    {{"optimizer", {{"type", "Lamb"}, {"params", {{"lr", 1e-2}, {"weight_decay", 0.01}}}}},
     {"zero_allow_untested_optimizer", true}},
    {{"optimizer", {{"type", "Muon"}, {"params", {{"lr", 2e-2}}}}},
     {"zero_optimization", {{"reduce_scatter", false}}}}};

// Nothing is dropped and no loss balances: then ranks make together what one makes alone.
inline Json free_model(const Json& change = Json::object()) {
  return gpt_moe(with(
      {{"moe_drop_tokens", false}, {"moe_loss_coeff", 0}, {"moe_top_k", 2}, {"num_experts", 8}},
      change));
}

inline Job free_job(int world, int ranks, int micro, int accumulation, int stage,
                    const Json& more = Json::object()) {
  Job job;
  job.world = world;
  job.steps = 50;
  job.model = free_model();
  job.config = with(base_config(), {{"train_micro_batch_size_per_gpu", micro},
                                    {"gradient_accumulation_steps", accumulation},
                                    {"seed", 11},
                                    {"scheduler", nullptr},
                                    {"zero_allow_untested_optimizer", true},
                                    {"zero_optimization", {{"stage", stage}}}});
  job.config["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0.1}}}};
  job.config.merge_patch(more);
  if (ranks > 1) job.config.merge_patch(shared_by(ranks));
  return job;
}

inline MicroBatch batch_of(int first, int count) {
  std::vector<int64_t> ids;
  for (int64_t i = first * 16; i < (first + count) * 16; ++i) ids.push_back(i * i * 7 % 61);
  MicroBatch batch;
  batch.ids = batch.labels = ids_tensor(ids, count);
  return batch;
}

}  // namespace ds::zero_test
