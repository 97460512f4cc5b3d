// Jobs whose training state lies in files, in every precision and with every kind of optimizer.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <string>

#include "zero_world.h"

namespace ds::zero_test {

// The message of the error that `body` ends with where no file may have more than 4 KiB.
template <class Body>
std::string error_of_full_files(const Body& body) {
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{4096, old.rlim_max};
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    message = error.message();
  }
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, before);
  return message;
}

struct Kind {
  const char* name;
  Json more;
};

inline Json optimizer(const char* type, const Json& params, const Json& more = Json::object()) {
  return with({{"optimizer", {{"type", type}, {"params", params}}},
               {"zero_allow_untested_optimizer", true}},
              more);
}

inline const Kind kKinds[] = {
    {"Fp32", Json::object()},
    {"Bf16", {{"bf16", {{"enabled", true}}}}},
    {"Split", {{"bf16", {{"enabled", true}, {"split_master", true}}}}},
    {"Bf16Gradients",
     {{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}}},
    {"Fp16", {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}}},
    {"States8Bit", {{"optimizer", {{"state_dtype", "int8"}}}}},
    {"Lamb", optimizer("Lamb", {{"lr", 1e-2}, {"weight_decay", 0.01}})},
    {"Muon",
     optimizer("Muon", {{"lr", 2e-2}}, {{"zero_optimization", {{"reduce_scatter", false}}}})},
};

// With embeddings of more elements than an update takes at a time here.
inline Json wide_model() {
  Json model = model_config();
  model["vocab_size"] = 3000;
  model["n_embd"] = 24;
  return model;
}

// Parts of arrays in files, which cut most tensors and buckets.
inline constexpr int64_t kPart = 1000;

inline void run_micro_batch(Engine& engine) {
  const int64_t rows = engine.config().batch.micro_batch;
  std::vector<int64_t> values(static_cast<size_t>(16 * rows));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i * 7 % 61);
  const Tensor ids = ids_tensor(values, rows);
  engine.backward(engine.forward({ids, ids, {}, {}, {}}));
  engine.step();
}

inline Job job(int world, int stage, const Json& more = Json::object()) {
  Job out{world, zero_config(stage, {{"reduce_bucket_size", 20'000}},
                             {{"train_micro_batch_size_per_gpu", 8 / world},
                              {"gradient_accumulation_steps", 2},
                              {"activation_checkpointing", {{"enabled", true}}}})};
  out.config.merge_patch(more);
  out.model = wide_model();
  return out;
}

inline Job in_files(Job of, const Folder& folder, bool pipelined = true) {
  of.config["zero_optimization"].merge_patch({{"sub_group_size", 40'000},
                                              {"offload_optimizer",
                                               {{"device", "nvme"},
                                                {"nvme_path", folder.path()},
                                                {"pipeline_read", pipelined},
                                                {"pipeline_write", pipelined}}}});
  return of;
}

inline Job with_ratio(Job of, double ratio) {
  of.config["zero_optimization"]["offload_optimizer"]["ratio"] = ratio;
  return of;
}

inline void expect_same(const Trained& stored, const Trained& plain) {
  EXPECT_TRUE(same_bits(stored.weights, plain.weights));
  EXPECT_EQ(stored.losses, plain.losses);
  EXPECT_EQ(stored.norms, plain.norms);
}

}  // namespace ds::zero_test
