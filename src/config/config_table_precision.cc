// fp16, bf16, fp8, amp, torch_autocast, data_types.
#include "config/config_table.h"

namespace ds {

using namespace keys;

KeyTable fp16_table() {
  return table(
             "Training in fp16 with loss scaling. Not together with bf16.",
             {
                 flag("enabled", false, "Turns fp16 training on.").decided_by_caller(),
                 flag("auto_cast", false, "Cast inputs to fp16. Token ids need no cast."),
                 number("loss_scale", 0.0, "Static loss scale; 0 makes it dynamic.")
                     .at_least(0)
                     .or_numeric_text()
                     .to(&LossScaleConfig::loss_scale),
                 integer("initial_scale_power", 16, "The first dynamic scale is 2 to this power.")
                     .at_least(0)
                     .at_most(127)
                     .to(&LossScaleConfig::initial_scale_power),
                 integer("loss_scale_window", 1000,
                         "Clean steps before the scale doubles. Above 0 when the scale is in use.")
                     .to(&LossScaleConfig::loss_scale_window),
                 integer("hysteresis", 2,
                         "Overflows before the scale halves; with 0 it never does.")
                     .at_least(0)
                     .to(&LossScaleConfig::hysteresis),
                 flag("consecutive_hysteresis", false, "A clean step restores the hysteresis.")
                     .to(&LossScaleConfig::consecutive_hysteresis),
                 integer("min_loss_scale", 1,
                         "Lower bound of the scale. Above 0 when the scale is in use.")
                     .to(&LossScaleConfig::min_loss_scale),
                 choice("scaler", {"zero", "wrapper"}, "zero",
                        "Rules of the dynamic scale. zero: those of DeepSpeed's ZeRO, at stage 0 "
                        "too: hysteresis counts, and training ends when gradients overflow at the "
                        "lower bound. wrapper: those of DeepSpeed's fp16 optimizer, which it takes "
                        "at stage 0: every overflow halves the scale, and training goes on at the "
                        "lower bound; for stage 0 only. (Extension.)")
                     .chooses(std::vector{false, true}, &LossScaleConfig::wrapper),
                 flag("fp16_master_weights_and_grads", false,
                      "No masters beside the fp16 weights: updates compute in fp32 and round to "
                      "them, and gradients accumulate in fp16. ZeRO 1-3 with the optimizer "
                      "offloaded to the CPU. Not on a GPU so far."),
             })
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable bf16_table() {
  return table("Training in bf16 with fp32 masters.",
               {
                   flag("enabled", false, "Turns bf16 training on.").decided_by_caller(),
                   flag("immediate_grad_update", false,
                        "Accumulate as soon as each gradient exists. Gradients are always "
                        "accumulated so here."),
                   flag("check_grad_overflow", true,
                        "Skip steps whose gradients hold an infinity or NaN.")
                       .to(&PrecisionConfig::check_grad_overflow),
                   flag("bf16_master_weights_and_grads", false,
                        "No masters beside the bf16 weights: updates compute in fp32 and round to "
                        "them, and gradients accumulate in bf16. ZeRO 1-3 only, with "
                        "bf16_optimizer_states or the optimizer offloaded to the CPU. Not on a "
                        "GPU so far."),
                   flag("bf16_optimizer_states", false,
                        "Keep optimizer states in bf16: the same as state_dtype \"bf16\" of the "
                        "optimizer. bf16_master_weights_and_grads is not needed for it."),
                   flag("split_master", false,
                        "Keep each fp32 master as the model's bf16 weight and its low 16 bits: "
                        "the masters are exactly fp32 and take 2 bytes per parameter less. The "
                        "bf16 weight is the master rounded half up. (Extension.)"),
               })
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable fp8_table() {
  return table(
             "Linear layers of 8-bit codes with delayed scaling, in the words of Megatron and "
             "Transformer Engine; docs/fp8.md. Needs bf16, and weights that are not tiled "
             "(stage3_tile_size). "
             "(Extension.)",
             {
                 flag("enabled", false,
                      "Multiplies the linear layers inside of a model's blocks in fp8 while it "
                      "trains. Layers with a size that is no multiple of 16 stay in bf16.")
                     .to(&Fp8Config::enabled),
                 choice("format", {"hybrid", "e4m3"}, "hybrid",
                        "hybrid: inputs and weights in E4M3, gradients in E5M2; e4m3: all.")
                     .chooses(std::vector{true, false}, &Fp8Config::hybrid),
                 integer("margin", 0, "Scales are divided by 2 to this power.")
                     .at_least(0)
                     .at_most(32)
                     .to(&Fp8Config::margin),
                 integer("amax_history_len", 16, "Steps whose largest numbers decide a scale.")
                     .at_least(1)
                     .at_most(65536)
                     .to(&Fp8Config::amax_history_len),
                 choice("amax_compute_algo", {"max", "most_recent"}, "max",
                        "Which of these decides: the largest, or that of the last step.")
                     .chooses(std::vector{false, true}, &Fp8Config::most_recent),
                 flag("fast_accumulation", true,
                      "On a GPU, forward products may keep fewer than fp32's bits of their sums; "
                      "those of backward never do. On the CPU it changes nothing.")
                     .to(&Fp8Config::fast_accumulation),
             })
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable amp_table() {
  return table(
             "Apex mixed precision; keys other than enabled are passed on unchecked. Not "
             "together with ZeRO.",
             {
                 flag("enabled", false, "Turns it on.").needs("Apex mixed precision"),
             })
      .gated_by("enabled")
      .accepts_other_keys();
}

KeyTable torch_autocast_table() {
  return table("Automatic casting per operator.",
               {
                   flag("enabled", false, "Turns it on.").needs("automatic casting"),
                   choice("dtype",
                          {"fp32|float32|float|torch.float32", "fp16|float16|half|torch.float16",
                           "bf16|bfloat16|torch.bfloat16"},
                          std::nullopt, "Lower type of the operators."),
                   list("lower_precision_safe_modules", any_text(), "null",
                        "Classes whose weights are communicated in dtype."),
               })
      .gated_by("enabled");
}

KeyTable data_types_table() {
  const auto type = [](const char* name, const char* description) {
    return choice(name,
                  {"fp32|float32|float|torch.float32", "fp16|float16|half|torch.float16",
                   "bf16|bfloat16|torch.bfloat16", "int8|torch.int8"},
                  std::nullopt, description);
  };
  return table("Types of what the engine keeps besides the training precision.",
               {
                   type("grad_accum_dtype", "Type of accumulated gradients; null is fp32.")
                       .needs("gradient accumulation in int8", {"fp16", "bf16"})
                       .chooses(std::vector{Precision::kFp32, Precision::kFp16, Precision::kBf16},
                                &PrecisionConfig::grad_accum_dtype),
                   type("param_dtype", "Type of the parameters; must be the enabled precision."),
                   type("buffer_dtype", "Type of floating-point buffers; null keeps their own.")
                       .needs("conversion of buffers"),
                   list("keep_in_fp32_modules", any_text(), "null",
                        "Modules that stay in fp32 while the others train in a lower type.")
                       .needs("modules of a precision of their own", {Json::array()}),
               })
      .ignores_other_keys();
}

}  // namespace ds
