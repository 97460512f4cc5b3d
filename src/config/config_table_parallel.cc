// sparse_attention, pipeline, tensor_parallel, expert_parallel, hybrid_engine, compile.
#include "config/config_table.h"

namespace ds {
namespace {

using namespace keys;

Key object_item(KeyTable table) {
  Key key = section("", std::move(table));
  return key;
}

KeyTable layer_spec_table() {
  return table(
      "How the weights of matching layers are split.",
      {
          list("patterns", any_text(), "null", "Name patterns.").must_be_given(),
          choice("partition_type", {"row", "column"}, std::nullopt, "Direction.").must_be_given(),
          anything("shape", "Logical shape of a fused weight."),
          integer("partition_dim", std::nullopt, "Dimension that is split."),
      });
}

}  // namespace

KeyTable sparse_attention_table() {
  Key block = any_integer();
  block = std::move(block).at_least(0);
  return table("Attention over a block pattern.",
               {
                   choice("mode", {"fixed", "dense", "variable", "bigbird", "bslongformer"},
                          "fixed", "Pattern."),
                   integer("block", 16, "Edge of a block.").at_least(1),
                   flag("different_layout_per_head", false, "Heads differ."),
                   integer("num_local_blocks", 4, "Local blocks.").at_least(1),
                   integer("num_global_blocks", 1, "Global blocks.").at_least(0),
                   choice("attention", {"unidirectional", "bidirectional"}, "bidirectional",
                          "Direction."),
                   flag("horizontal_global_attention", false, "Global rows too."),
                   integer("num_different_global_patterns", 1, "Global patterns over heads.")
                       .at_least(1),
                   integer("num_random_blocks", 0, "Random blocks.").at_least(0),
                   list("local_window_blocks", block, "[4]", "Local windows."),
                   list("global_block_indices", block, "[0]", "Global blocks."),
                   list("global_block_end_indices", block, "null", "Ends of global ranges."),
                   integer("num_sliding_window_blocks", 3, "Sliding window.").at_least(1),
               })
      .ignores_other_keys();
}

KeyTable pipeline_table() {
  constexpr const char* kFeature = "pipeline parallelism";
  return table(
             "Pipeline parallelism.",
             {
                 integer("stages", std::nullopt, "Stages.")
                     .at_least(1)
                     .or_word("auto")
                     .needs(kFeature, {1}),
                 text("partition", "best", "How layers are shared out.").needs(kFeature),
                 flag("seed_layers", false, "Seed each layer by its index.").needs(kFeature),
                 integer("activation_checkpoint_interval", 0, "Layers per kept input; 0 is none.")
                     .at_least(0)
                     .needs(kFeature),
                 flag("pipe_partitioned", true, "Partition activations on the wire.")
                     .needs(kFeature),
                 flag("grad_partitioned", true, "Partition gradients on the wire.").needs(kFeature),
             })
      .ignores_other_keys();
}

KeyTable tensor_parallel_table() {
  return table(
             "Automatic tensor parallelism.",
             {
                 integer("autotp_size", 0, "Ranks that share a layer; 0 disables.")
                     .at_least(0)
                     .needs("tensor parallelism", {1}),
                 choice("dtype",
                        {"fp32|float32|float|torch.float32", "fp16|float16|half|torch.float16",
                         "bf16|bfloat16|torch.bfloat16"},
                        "fp16", "Type of the layers."),
                 flag("tp_overlap_comm", false, "Overlap collectives with compute."),
                 section(
                     "tp",
                     table("Sizes.",
                           {
                               integer("tp_size", 1, "Ranks that share a layer.")
                                   .at_least(1)
                                   .needs("tensor parallelism"),
                               integer("tp_grain_size", 1, "Granularity of the split.").at_least(1),
                           })
                         .gated_by("tp_size", true)
                         .accepts_auto()),
                 optional_section(
                     "partition_config",
                     table("Own rules of the split.",
                           {
                               flag("use_default_specs", true, "Keep the built-in rules too."),
                               list("layer_specs", object_item(layer_spec_table()), "[]", "Rules."),
                           })
                         .accepts_auto()),
                 choice("preset_model",
                        {"llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"},
                        std::nullopt, "Built-in rules."),
                 flag("keep_module_on_host", false, "Leave the weights in host memory."),
             })
      .gated_by("autotp_size")
      .accepts_auto();
}

KeyTable expert_parallel_table() {
  constexpr const char* kOfTheModel = "a router other than that of the model's config.json";
  return table(
             "Expert parallelism: ranks share the experts of each layer, and rows of tokens go to "
             "those that hold the experts they chose (docs/experts.md). The model says itself "
             "what its layers and routers are.",
             {
                 flag("enabled", false, "Turns it on.").to(&ExpertParallelConfig::enabled),
                 integer("autoep_size", 1,
                         "Ranks that share the experts; divides the world and the experts of "
                         "every layer.")
                     .at_least(1)
                     .to(&ExpertParallelConfig::autoep_size),
                 flag("hierarchical_all_to_all", std::nullopt,
                      "Rows go between nodes first and then within them, in fewer messages; null: "
                      "where the ranks that share experts sit on several nodes, as many and more "
                      "than one on each.")
                     .to(&ExpertParallelConfig::hierarchical_all_to_all),
                 integer("expert_tensor_parallel_size", 1, "Ranks that share one expert.")
                     .at_least(1)
                     .needs("tensor parallelism"),
                 flag("validate_folding_routing", false,
                      "Check routing where tensor-parallel ranks are folded into expert-parallel "
                      "ones.")
                     .needs("tensor parallelism"),
                 choice("preset_model",
                        {"mixtral", "qwen3_moe", "qwen3_5_moe", "deepseek_v2", "deepseek_v3"},
                        std::nullopt, "Known model; without effect."),
                 text("moe_layer_pattern", std::nullopt,
                      "Pattern of mixture layers; without effect."),
                 text("expert_pattern", std::nullopt, "Pattern of experts; without effect."),
                 text("router_pattern", std::nullopt, "Pattern of routers; without effect."),
                 flag("use_grouped_mm", true,
                      "One matrix product for all experts; without effect on results."),
                 integer("top_k", std::nullopt, "Experts per token.")
                     .at_least(1)
                     .or_word("auto")
                     .needs(kOfTheModel),
                 choice("score_func", {"auto", "softmax", "sigmoid"}, "auto", "Scores.")
                     .needs(kOfTheModel),
                 choice("score_apply", {"auto", "pre", "post"}, "auto", "Where scores multiply.")
                     .needs(kOfTheModel),
                 choice("combine_impl", {"auto", "weighted_sum", "legacy_bmm"}, "auto",
                        "How outputs combine; they are added up in fp32 in any case."),
                 number("routed_scaling_factor", std::nullopt, "Factor of routed outputs.")
                     .or_word("auto")
                     .needs(kOfTheModel),
                 flag("route_norm", std::nullopt, "Normalise the scores.").needs(kOfTheModel),
                 number("route_scale", 1.0, "Factor of the scores.").needs(kOfTheModel),
                 integer("num_expert_groups", std::nullopt, "Groups of experts.")
                     .at_least(1)
                     .needs(kOfTheModel),
                 integer("num_limited_groups", std::nullopt, "Groups chosen per token.")
                     .at_least(1)
                     .needs(kOfTheModel),
             })
      .gated_by("enabled");
}

KeyTable hybrid_engine_table() {
  return table("Training and generation in one engine.",
               {
                   flag("enabled", false, "Turns it on.").needs("the hybrid engine"),
                   integer("max_out_tokens", 512, "Tokens of prompt and output.").at_least(1),
                   integer("inference_tp_size", 1, "Ranks that share generation.").at_least(1),
                   flag("release_inference_cache", false, "Free the cache after generation."),
                   flag("pin_parameters", true, "Use page-locked memory."),
                   integer("tp_gather_partition_size", 8, "Partitions gathered at a time.")
                       .at_least(1),
                   flag("enable_cuda_graph", false, "Replay CUDA graphs."),
               })
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable compile_table() {
  return table("Compiler passes over the training graph.",
               {
                   flag("deepcompile", false, "Turns it on.").needs("graph compilation"),
                   flag("free_activation", false, "Free activations early."),
                   integer("free_activation_threshold", 10 * 1024 * 1024, "Only above these bytes.")
                       .at_least(0),
                   flag("offload_activation", false, "Move activations to the host."),
                   flag("offload_activation_pin_memory", true,
                        "Move them through page-locked memory."),
                   flag("autoep_non_moe", false, "Expert parallelism of other layers."),
                   flag("offload_opt_states", false, "Move optimizer states to the host."),
                   flag("offload_parameters", false, "Move parameters to the host."),
                   flag("double_buffer", true, "Two communication buffers."),
                   flag("symmetric_memory", false, "Use symmetric memory."),
                   flag("debug_log", false, "Log the passes."),
                   flag("sync_before_reduce", false, "Synchronise there."),
                   flag("sync_after_reduce", false, "Synchronise there."),
                   flag("sync_before_allgather", false, "Synchronise there."),
                   flag("sync_after_allgather", false, "Synchronise there."),
                   flag("keep_int_input_tensors", true, "Keep integer inputs."),
                   flag("keep_all_input_tensors", false, "Keep all inputs."),
                   list("passes", choice("", {"z1", "z3", "autosp", "autotp"}, "z1", ""), "null",
                        "Passes."),
               })
      .gated_by("deepcompile")
      .accepts_auto();
}

}  // namespace ds
