// compression_training: quantisation, pruning, layer reduction.
#include "config/config_table.h"

namespace ds {
namespace {

using namespace keys;

using Rows = std::vector<Key>;

Key bits(const char* name, const char* description) {
  return integer(name, std::nullopt, description).must_be_given().at_least(1).at_most(32);
}
Key dense_ratio() {
  return number("dense_ratio", std::nullopt, "Share of weights kept.").above(0).below(1);
}
Key quantization_type() {
  return choice("quantization_type", {"symmetric", "asymmetric"}, "symmetric", "Grid.");
}
Key offset(int64_t value) {
  return integer("schedule_offset", value, "Step at which the method starts.").at_least(0);
}

// One method: switches for all groups, and groups with names chosen by the user.
KeyTable method(const char* description, const char* feature, Rows shared, Rows params) {
  Rows switches = {flag("enabled", false, "Turns the method on.").needs(feature)};
  for (Key& key : shared) switches.push_back(std::move(key));
  Key pattern = any_text();
  KeyTable group =
      table("", {
                    section("params", table("Parameters of the group.", std::move(params))),
                    list("modules", pattern, R"(["*"])", "Modules of the group, as patterns."),
                    anything("related_modules", "Modules whose input follows."),
                });
  return table(
      description,
      {
          section("shared_parameters", table("Switches for all groups.", std::move(switches))
                                           .gated_by("enabled")
                                           .ignores_other_keys()),
          named_sections("different_groups", std::move(group), "Groups by name."),
      });
}

KeyTable weight_quantization() {
  return method(
      "Quantisation of weights.", "weight quantisation",
      {
          flag("quantizer_kernel", false, "Use the fused kernel."),
          offset(0),
          integer("quantize_groups", 1, "Groups with their own scale.").at_least(1),
          flag("quantize_verbose", false, "Log changes."),
          quantization_type(),
          flag("quantize_weight_in_forward", false,
               "Quantise in forward; false does it in the optimizer step (fp16 only)."),
          choice("rounding", {"nearest", "stochastic"}, "nearest", "Rounding."),
          section("fp16_mixed_quantize",
                  table("Blend of quantised and fp16 weights.",
                        {
                            flag("enabled", false, "Turns it on.").needs("blended quantisation"),
                            number("quantize_change_ratio", 0.001, "Change per step.")
                                .at_least(0)
                                .at_most(1),
                        })),
      },
      {
          bits("start_bits", "Bits at the start."),
          bits("target_bits", "Bits in the end."),
          integer("quantization_period", 1, "Steps before a bit is removed.").at_least(1),
      });
}

KeyTable activation_quantization() {
  return method(
      "Quantisation of activations.", "activation quantisation",
      {
          quantization_type(),
          choice("range_calibration", {"dynamic", "static"}, "dynamic", "How ranges are found."),
          offset(1000),
      },
      {bits("bits", "Bits.")});
}

KeyTable sparse_pruning() {
  return method(
      "Pruning of single weights.", "sparse pruning",
      {
          choice("method", {"l1", "topk", "snip_momentum"}, "l1", "What is pruned."),
          offset(1000),
          integer("schedule_offset_end", std::nullopt,
                  "Step at which pruning ends; at least schedule_offset, which null means.")
              .at_least(0),
          integer("schedule_offset_stride", 1, "Steps between prunings.").at_least(1),
          text("block_pattern", "4x1", "Shape of pruned blocks."),
          number("dense_ratio", 0.1, "Share of weights kept.").above(0).below(1),
          list("excluded_modules", any_text(), "[]", "Modules left alone."),
      },
      {dense_ratio()});
}

KeyTable structured_pruning(const char* description, const char* feature) {
  return method(description, feature,
                {
                    choice("method", {"l1", "topk"}, "l1", "What is pruned."),
                    offset(1000),
                },
                {dense_ratio().must_be_given()});
}

KeyTable head_pruning() {
  return method("Pruning of attention heads.", "head pruning",
                {
                    choice("method", {"topk"}, "topk", "What is pruned."),
                    integer("num_heads", std::nullopt, "Heads of the model.")
                        .at_least(1)
                        .must_be_given_when_on(),
                    offset(1000),
                },
                {dense_ratio().must_be_given()});
}

KeyTable layer_reduction() {
  using Reduction = LayerReductionConfig;
  return table(
             "A new student begins with some of its teacher's layers; /distillation/teacher names "
             "the teacher, also where distillation is off (docs/experts.md).",
             {
                 flag("enabled", false, "Turns it on.").to(&Reduction::enabled),
                 integer("keep_number_layer", std::nullopt,
                         "Layers of the student, where they are to be checked.")
                     .at_least(1)
                     .to(&Reduction::keep_number_layer),
                 text("module_name_prefix", std::nullopt,
                      "What stands before a layer's number in its parameters' names, such as "
                      "bert.encoder.layer; null: as the model has it.")
                     .to(&Reduction::module_name_prefix),
                 list("teacher_layer", any_integer().at_least(0), "null",
                      "For each layer of the student the layer of the teacher that it begins as, "
                      "from 0.")
                     .to(&Reduction::teacher_layer),
                 list("other_module_name", any_text(), "null",
                      "Modules that are copied besides, such as bert.embeddings; null: all that "
                      "are no layers.")
                     .to(&Reduction::other_module_name),
             })
      .gated_by("enabled")
      .ignores_other_keys();
}

}  // namespace

KeyTable distillation_table() {
  using Weights = DistillationConfig::Weights;
  return table(
             "A student learns from a teacher's outputs besides the labels, as mixtures of "
             "students "
             "do (docs/experts.md): its loss is kd_alpha_ce x cross entropy + kd_beta_ce x "
             "kd_temp^2 "
             "x KL(teacher / kd_temp, student / kd_temp).",
             {
                 flag("enabled", false, "Turns it on.").to(&DistillationConfig::enabled),
                 text("teacher", std::nullopt,
                      "Folder of the teacher's model, of Hugging Face's files or a checkpoint.")
                     .must_be_given_when_on()
                     .to(&DistillationConfig::teacher),
                 number("kd_alpha_ce", 1.0, "What the cross entropy with the labels weighs.")
                     .at_least(0)
                     .to(&DistillationConfig::kd_alpha_ce),
                 number("kd_beta_ce", 1.0, "What the divergence from the teacher weighs.")
                     .at_least(0)
                     .to(&DistillationConfig::kd_beta_ce),
                 number("kd_temp", 1.0, "Temperature of both distributions of the divergence.")
                     .above(0)
                     .to(&DistillationConfig::kd_temp),
                 integer("stop_step", std::nullopt,
                         "Optimizer steps after which the teacher's memory is freed and the loss "
                         "is the cross entropy alone; null: never.")
                     .at_least(1)
                     .to(&DistillationConfig::stop_step),
                 choice("teacher_weights", {"auto", "fp32", "bf16", "int8", "int4"}, "auto",
                        "How each rank holds the matrices of the teacher; auto: fp32 where the "
                        "student computes in fp32, else bf16.")
                     .chooses(std::vector{Weights::kAuto, Weights::kFp32, Weights::kBf16,
                                          Weights::kInt8, Weights::kInt4},
                              &DistillationConfig::teacher_weights),
             })
      .gated_by("enabled");
}

KeyTable compression_table() {
  return table(
      "Compression during training.",
      {
          section("weight_quantization", weight_quantization()),
          section("activation_quantization", activation_quantization()),
          section("sparse_pruning", sparse_pruning()),
          section("row_pruning", structured_pruning("Pruning of rows.", "row pruning")),
          section("head_pruning", head_pruning()),
          section("channel_pruning", structured_pruning("Pruning of channels.", "channel pruning")),
          section("layer_reduction", layer_reduction()).to(&Config::layer_reduction),
      });
}

}  // namespace ds
