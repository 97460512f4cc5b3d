// curriculum_learning (legacy form) and data_efficiency.
#include "config/config_table.h"

namespace ds {
namespace {

using namespace keys;

Key positive_list(const char* name, const char* description) {
  Key item = any_integer();
  item = std::move(item).at_least(0);
  return list(name, std::move(item), "null", description).items(1, 1 << 20);
}

Key difficulty(const char* name, const char* description) {
  return integer(name, std::nullopt, description).at_least(0);
}

Key schedule_type() {
  return choice("schedule_type", {"fixed_linear", "fixed_root", "fixed_discrete", "custom"},
                std::nullopt, "Growth of the difficulty.");
}

KeyTable schedule_config_table() {
  return table(
      "Parameters of the schedule.",
      {
          integer("total_curriculum_step", std::nullopt,
                  "Steps until the final difficulty (linear, root).")
              .at_least(1),
          integer("difficulty_step", std::nullopt,
                  "Difficulties are multiples of this (linear, root).")
              .at_least(1),
          number("root_degree", std::nullopt, "Degree of the root (root).").above(0),
          positive_list("difficulty", "Difficulties (discrete)."),
          positive_list("max_step", "Last step of each difficulty but the final one (discrete)."),
      });
}

KeyTable metric_table() {
  return table(
      "One measure of difficulty.",
      {
          text("index_to_sample_path", std::nullopt, "Samples by difficulty."),
          text("index_to_metric_path", std::nullopt, "Difficulty by sample."),
          choice("difficulty_type", {"value", "percentile"}, "value", "What a difficulty means."),
          choice("clustering_type", {"single_cluster", "schedule_based"}, "schedule_based",
                 "How samples are grouped."),
          difficulty("min_difficulty", "First difficulty."),
          difficulty("max_difficulty", "Final difficulty."),
          schedule_type(),
          section("schedule_config", schedule_config_table()),
      });
}

KeyTable dynamic_batching_table() {
  return table("Batches of about equal token count.",
               {
                   flag("enabled", false, "Turns it on.").needs("dynamic batching"),
                   choice("lr_scaling_method", {"linear", "sqrt", "none"}, "linear",
                          "How the learning rate follows the batch."),
                   integer("min_batch_size", 1, "Smallest batch.").at_least(1),
                   integer("max_batch_size", std::nullopt, "Largest batch.").at_least(1),
                   choice("sequence_picking_order", {"dataloader", "random", "seqlen"},
                          "dataloader", "Order of sequences."),
                   integer("max_tokens", std::nullopt, "Tokens per batch.")
                       .at_least(1)
                       .must_be_given_when_on(),
                   flag("verbose", false, "Log each batch."),
               })
      .gated_by("enabled")
      .ignores_other_keys();
}

KeyTable data_sampling_table() {
  return table(
             "Choice of samples.",
             {
                 flag("enabled", false, "Turns it on.").needs("the curriculum sampler"),
                 integer("num_epochs", 1000, "Epochs.").at_least(1),
                 integer("num_workers", 0, "Loader workers.").at_least(0),
                 flag("pin_memory", false, "Use page-locked memory."),
                 section(
                     "curriculum_learning",
                     table("Curriculum over samples.",
                           {
                               flag("enabled", false, "Turns it on.").needs("curriculum learning"),
                               text("data_cluster_path", std::nullopt, "Folder of clusters."),
                               named_sections("curriculum_metrics", metric_table(),
                                              "Measures of difficulty by name."),
                           })
                         .gated_by("enabled")
                         .ignores_other_keys()),
                 section("dynamic_batching", dynamic_batching_table()),
             })
      .gated_by("enabled")
      .ignores_other_keys();
}

KeyTable random_ltd_table() {
  Key layer = any_integer();
  layer = std::move(layer).at_least(0);
  return table(
             "Random layerwise token dropping.",
             {
                 flag("enabled", false, "Turns it on.").needs("random layerwise token dropping"),
                 integer("total_layer_num", std::nullopt, "Layers.").at_least(1),
                 integer("random_ltd_layer_num", std::nullopt, "Layers that drop.").at_least(0),
                 list("random_ltd_layer_id", std::move(layer), "null", "Which layers drop."),
                 text("model_mask_name", std::nullopt, "Argument name of the mask."),
                 choice("model_type", {"encoder", "decoder"}, std::nullopt, "How masks are cut."),
                 choice("hidden_state_order", {"batch_seq_dim", "seq_batch_dim"}, std::nullopt,
                        "Order of dimensions."),
                 section(
                     "random_ltd_schedule",
                     table("Number of tokens kept.",
                           {
                               integer("min_value", std::nullopt, "First length.").at_least(1),
                               integer("max_value", std::nullopt, "Final length.").at_least(1),
                               choice("schedule_type", {"fixed_linear"}, "fixed_linear", "Growth."),
                               section("schedule_config",
                                       table("Parameters.",
                                             {
                                                 integer("seq_per_step", std::nullopt,
                                                         "Lengths are multiples of this.")
                                                     .at_least(1),
                                                 integer("require_steps", std::nullopt,
                                                         "Steps until the final length.")
                                                     .at_least(1),
                                             })),
                           })),
                 section("layer_token_lr_schedule",
                         table("Learning rate by layer tokens.",
                               {
                                   flag("enabled", false, "Turns it on.")
                                       .needs("learning rates by layer tokens"),
                               })
                             .gated_by("enabled")
                             .ignores_other_keys()),
             })
      .gated_by("enabled")
      .ignores_other_keys();
}

}  // namespace

KeyTable curriculum_learning_table() {
  return table("Legacy curriculum over the sequence length.",
               {
                   flag("enabled", false, "Turns it on.").needs("curriculum learning"),
                   choice("curriculum_type", {"seqlen"}, "seqlen", "What grows."),
                   difficulty("min_difficulty", "First difficulty.").must_be_given_when_on(),
                   difficulty("max_difficulty", "Final difficulty.").must_be_given_when_on(),
                   schedule_type().must_be_given_when_on(),
                   section("schedule_config", schedule_config_table()),
               })
      .gated_by("enabled")
      .ignores_other_keys();
}

KeyTable data_efficiency_table() {
  return table("Curricula and token dropping.",
               {
                   flag("enabled", false, "Turns it on.").needs("the data-efficiency library"),
                   integer("seed", 1234, "Seed of the sampler.").at_least(0),
                   section("data_sampling", data_sampling_table()),
                   section("data_routing",
                           table("Which tokens pass which layers.",
                                 {
                                     flag("enabled", false, "Turns it on.").needs("token dropping"),
                                     section("random_ltd", random_ltd_table()),
                                 })
                               .gated_by("enabled")
                               .ignores_other_keys()),
               })
      .gated_by("enabled")
      .ignores_other_keys();
}

}  // namespace ds
