// The plan of memory beside the memory accounts of engines that train: within 5 % at the peak, from
// the making of the engine to the end of the third step, over sizes, stages, precisions,
// optimizers, checkpointing and state in files.
#include <mutex>
#include <thread>

#include "base/text.h"
#include "comm/factory.h"
#include "engine/plan.h"
#include "engine_world.h"

namespace ds::engine_test {
namespace {

constexpr int64_t kLength = 64;

struct AccuracyRow {
  const char* name;
  Json model;   // merged into that of gpt2()
  Json config;  // merged into planned_config()
  int world = 1;
};
void PrintTo(const AccuracyRow& row, std::ostream* out) { *out << row.name; }

Json gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 512}, {"n_positions", kLength},
          {"n_embd", 128},        {"n_layer", 4},      {"n_head", 4}};
}
Json llama() {
  return {{"model_type", "llama"},    {"vocab_size", 512},
          {"hidden_size", 128},       {"intermediate_size", 352},
          {"num_hidden_layers", 4},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", kLength}};
}
// Latent attention without experts, whose loads no plan knows.
Json deepseek() {
  return {{"model_type", "deepseek_v2"},
          {"vocab_size", 512},
          {"hidden_size", 128},
          {"intermediate_size", 352},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"q_lora_rank", 96},
          {"kv_lora_rank", 64},
          {"qk_nope_head_dim", 32},
          {"qk_rope_head_dim", 16},
          {"v_head_dim", 32},
          {"n_routed_experts", nullptr},
          {"max_position_embeddings", kLength}};
}
Json planned_config() {
  return {{"train_micro_batch_size_per_gpu", 4},
          {"gradient_accumulation_steps", 2},
          {"threads", 2},
          {"memory_plan", {{"sequence_length", kLength}}},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}}};
}

const Json kBf16 = {{"bf16", {{"enabled", true}}}};
const Json kCheckpoints = {{"activation_checkpointing", {{"enabled", true}}}};

// FOLDER stands for that of the test.
Json in_files(bool weights, bool pipeline) {
  Json zero = {{"stage", weights ? 3 : 1},
               {"sub_group_size", 131072},
               {"reduce_bucket_size", 131072},
               {"offload_optimizer",
                {{"device", "nvme"},
                 {"nvme_path", "FOLDER"},
                 {"pipeline_read", pipeline},
                 {"pipeline_write", pipeline}}}};
  if (weights) {
    zero["offload_param"] = {{"device", "nvme"}, {"nvme_path", "FOLDER"}, {"max_in_cpu", 0}};
    zero["stage3_max_live_parameters"] = 200000;
    zero["stage3_prefetch_bucket_size"] = 100000;
  }
  return {{"zero_optimization", zero}};
}

Json a_share(double ratio) {
  return {{"zero_optimization", {{"offload_optimizer", {{"ratio", ratio}}}}}};
}

Json zenflow(const Json& offload) {
  return {{"zero_optimization",
           {{"stage", 2},
            {"offload_optimizer", offload},
            {"zenflow",
             {{"topk_ratio", 0.3},
              {"update_interval", 2},
              {"select_strategy", "step"},
              {"select_interval", 4}}}}}};
}

std::vector<AccuracyRow> rows() {
  const auto stage = [](int number) {
    return Json{{"zero_optimization", {{"stage", number}, {"reduce_bucket_size", 200000}}}};
  };
  return {
      {"fp32", Json::object(), Json::object()},
      {"wide", {{"n_embd", 256}, {"n_layer", 2}}, {{"train_micro_batch_size_per_gpu", 1}}},
      {"many_samples", Json::object(), {{"train_micro_batch_size_per_gpu", 32}}},
      {"bf16", Json::object(), kBf16},
      {"split_masters_and_bf16_gradients",
       Json::object(),
       {{"bf16", {{"enabled", true}, {"split_master", true}}},
        {"data_types", {{"grad_accum_dtype", "bf16"}}}}},
      {"bf16_checkpointed", Json::object(),
       with(with(kBf16, kCheckpoints), {{"train_micro_batch_size_per_gpu", 16}})},
      {"fp16_every_other_block",
       Json::object(),
       {{"fp16", {{"enabled", true}}},
        {"train_micro_batch_size_per_gpu", 16},
        {"activation_checkpointing", {{"enabled", true}, {"checkpoint_every_nth", 2}}}}},
      {"rounded_masters",
       Json::object(),
       {{"bf16",
         {{"enabled", true},
          {"bf16_master_weights_and_grads", true},
          {"bf16_optimizer_states", true}}},
        {"data_types", {{"grad_accum_dtype", "bf16"}}},
        {"zero_optimization", {{"stage", 2}}}}},
      {"llama_muon", llama(), with(kBf16, {{"optimizer", {{"type", "Muon"}}}})},
      {"latent_attention", deepseek(), kBf16},
      {"lamb", Json::object(), {{"optimizer", {{"type", "Lamb"}}}}},
      {"optimizer_in_files", Json::object(), in_files(false, false)},
      {"optimizer_in_files_bf16_pipelined", Json::object(),
       with(with(in_files(false, true), kBf16), {{"data_types", {{"grad_accum_dtype", "bf16"}}}})},
      {"a_share_in_files", Json::object(), with(in_files(false, false), a_share(0.4))},
      {"a_share_in_files_bf16_pipelined", Json::object(),
       with(with(in_files(false, true), kBf16), a_share(0.65))},
      {"a_share_in_files_weights_too", Json::object(), with(in_files(true, true), a_share(0.5))},
      {"a_share_in_files_weights_too_bf16", Json::object(),
       with(with(in_files(true, true), a_share(0.3)), kBf16)},
      {"all_in_files", Json::object(), with(in_files(true, true), kBf16)},
      {"all_in_files_fp32_checkpointed", Json::object(), with(in_files(true, false), kCheckpoints)},
      {"super_offload", Json::object(),
       with(kBf16, {{"zero_optimization",
                     {{"stage", 2},
                      {"offload_optimizer", {{"device", "cpu"}, {"super_offload", true}}}}}})},
      {"zenflow", Json::object(), with(kBf16, zenflow({{"device", "cpu"}}))},
      {"zenflow_in_files", Json::object(),
       with(kBf16, zenflow({{"device", "nvme"}, {"nvme_path", "FOLDER"}}))},
      {"zenflow_a_share_in_files", Json::object(),
       with(kBf16, zenflow({{"device", "nvme"}, {"nvme_path", "FOLDER"}, {"ratio", 0.5}}))},
      {"stage_2", Json::object(), with(stage(2), kBf16), 2},
      {"stage_3", Json::object(), stage(3), 2},
      {"stage_3_in_files", Json::object(), with(in_files(true, true), kBf16), 2},
      {"stage_3_a_share_in_files", Json::object(),
       with(with(in_files(true, true), a_share(0.5)), kBf16), 2},
  };
}

struct Measured {
  int64_t total = 0;
  std::string tags;  // peaks, for messages
};

// The peak of the fullest rank.
Measured measure(const Json& model, const Json& config, int world) {
  const auto group = make_local_group(world, {});
  Measured most;
  std::mutex mutex;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto trained = models::Model::create(model, 1);
      const auto comm = world > 1 ? group[static_cast<size_t>(rank)] : nullptr;
      Engine engine(dump_json(config), trained, comm);
      const auto samples = config.at("train_micro_batch_size_per_gpu").get<int64_t>();
      std::vector<int64_t> tokens(static_cast<size_t>(samples * kLength), 1);
      MicroBatch batch;
      batch.ids = batch.labels = ids_tensor(tokens, samples);
      for (int step = 0; step < 6; ++step) {
        engine.backward(engine.forward(batch));
        engine.step();
      }
      const std::lock_guard lock(mutex);
      const MemoryAccount& account = trained->device()->account();
      if (account.total_peak() <= most.total) return;
      most = {account.total_peak(), {}};
      for (int i = 0; i < kMemoryTags; ++i) {
        const auto tag = static_cast<MemoryTag>(i);
        most.tags += str_cat("  ", memory_tag_name(tag), " ", account.peak(tag), "\n");
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return most;
}

class PlanAccuracy : public testing::TestWithParam<AccuracyRow> {};

TEST_P(PlanAccuracy, WithinFivePercentOfThePeak) {
  const AccuracyRow& row = GetParam();
  const Folder folder;
  const bool complete = row.model.contains("model_type");
  const Json model = complete ? row.model : with(gpt2(), row.model);
  Json config = with(planned_config(), row.config);
  for (const char* key : {"offload_optimizer", "offload_param"}) {
    if (!config.contains("zero_optimization")) continue;
    Json& zero = config["zero_optimization"];
    if (zero.contains(key) && zero[key]["device"] == "nvme") zero[key]["nvme_path"] = folder.path();
  }
  PlanOptions options;
  options.world = row.world;
  options.on_gpu = false;
  const Json plan = plan_training(model, dump_json(config), options);
  const auto planned = plan["memory_per_rank"]["total"].get<double>();
  const Measured measured = measure(model, config, row.world);
  const auto peak = static_cast<double>(measured.total);
  RecordProperty("planned", std::to_string(planned));
  RecordProperty("measured", std::to_string(peak));
  EXPECT_NEAR(planned / peak, 1, 0.05) << dump_json(plan["memory_per_rank"], 2) << "\nmeasured "
                                       << measured.total << ", peaks by tag\n"
                                       << measured.tags;
}

INSTANTIATE_TEST_SUITE_P(Configurations, PlanAccuracy, testing::ValuesIn(rows()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace ds::engine_test
