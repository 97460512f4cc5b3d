// checkpoint, nebula, datastates_ckpt, activation_checkpointing.
#include "config/config_table.h"

namespace ds {

using namespace keys;

KeyTable checkpoint_table() {
  constexpr const char* kWriter = "a choice of checkpoint writer";
  return table(
             "Saving and loading.",
             {
                 choice("tag_validation", {"Warn", "Ignore", "Fail"}, "Warn",
                        "What happens when ranks save under different tags.")
                     .in_any_case()
                     .chooses(std::vector{TagValidation::kWarn, TagValidation::kIgnore,
                                          TagValidation::kFail},
                              &CheckpointConfig::tag_validation),
                 flag("exclude_frozen_parameters", false,
                      "Save trainable parameters only: a run that loads the checkpoint starts from "
                      "a model "
                      "that has the frozen ones.")
                     .to(&CheckpointConfig::exclude_frozen_parameters),
                 integer(
                     "keep", std::nullopt,
                     "How many checkpoints of a run stay in its folder: after each save, and only "
                     "when "
                     "that is durable, its older ones are deleted, by their steps. null keeps all. "
                     "Another run's are never deleted. (Extension.)")
                     .at_least(1)
                     .to(&CheckpointConfig::keep),
                 flag("load_universal", false, "Load a universal checkpoint.")
                     .needs("the universal checkpoint format"),
                 flag("use_node_local_storage", false, "Every node writes to its own storage.")
                     .needs("node-local checkpoints"),
                 flag("checkpoint_serialization", true, "Use the serialised format.")
                     .needs("an unserialised format"),
                 section("parallel_write", table("Sharing of the writing.",
                                                 {
                                                     flag("pipeline_stage", false,
                                                          "Stages write their layers in parallel.")
                                                         .needs("pipeline parallelism"),
                                                 })),
                 section(
                     "writer",
                     table("The writer.",
                           {
                               choice("type", {"mock", "python", "fast"}, "fast", "Implementation.")
                                   .needs(kWriter),
                               integer("io_buffer_size", 64 * 1024 * 1024, "Bytes of the buffer.")
                                   .at_least(1)
                                   .needs(kWriter),
                               flag("io_buffer_double", true,
                                    "Fill one buffer while writing another.")
                                   .needs(kWriter),
                               integer("io_multiplier", 1, "Buffers per writer.")
                                   .at_least(1)
                                   .needs(kWriter),
                               flag("show_statistics", false, "Log the writing speed.")
                                   .needs(kWriter),
                               choice("data_parallel", {"replica", "socket", "machine"},
                                      std::nullopt, "Ranks that share the writing.")
                                   .needs("checkpoint writing shared between ranks"),
                               flag("decoupled", false,
                                    "Write beside the training: saving returns when a copy of the "
                                    "state was "
                                    "taken, in memory of the checkpoint's size that is kept for "
                                    "the next "
                                    "one. The next save, a load and the engine's end wait for the "
                                    "writing.")
                                   .to(&CheckpointConfig::decoupled),
                           })),
             })
      .ignores_other_keys();
}

KeyTable nebula_table() {
  return table("Asynchronous checkpoints of a cloud service.",
               {
                   flag("enabled", false, "Turns it on.").needs("the Nebula service"),
                   text("persistent_storage_path", std::nullopt, "Storage."),
                   integer("persistent_time_interval", 100, "Seconds between copies.").at_least(1),
                   integer("num_of_version_in_retention", 2, "Copies kept.").at_least(1),
                   flag("enable_nebula_load", true, "Load from the service."),
                   text("nebula_load_path", std::nullopt, "Storage to load from."),
               })
      .gated_by("enabled")
      .ignores_other_keys();
}

KeyTable datastates_table() {
  return table("Asynchronous checkpoints of the DataStates library. Any key is passed on.", {})
      .accepts_other_keys();
}

KeyTable activation_checkpointing_table() {
  return table(
             "Recomputation of activations in the backward pass instead of keeping them.",
             {
                 flag("enabled", false,
                      "Keep only the input of each segment and recompute the rest. (Extension: in "
                      "DeepSpeed the model decides.)")
                     .to(&ActivationCheckpointingConfig::enabled),
                 flag("partition_activations", false,
                      "Partition kept inputs over model-parallel ranks. There are none: every "
                      "rank keeps those of its own samples, and nothing changes."),
                 integer("number_checkpoints", std::nullopt,
                         "Number of segments; null makes every transformer block one.")
                     .at_least(1)
                     .to(&ActivationCheckpointingConfig::number_checkpoints),
                 integer("checkpoint_every_nth", std::nullopt,
                         "Recompute every n-th transformer block only and keep what the others "
                         "need; at most the number of blocks. Not with number_checkpoints. "
                         "(Extension.)")
                     .at_least(1)
                     .to(&ActivationCheckpointingConfig::checkpoint_every_nth),
                 flag("contiguous_memory_optimization", false,
                      "Copy kept inputs into one buffer. Requires partition_activations and "
                      "number_checkpoints. The arena keeps them together without a copy, and "
                      "nothing changes."),
                 flag("synchronize_checkpoint_boundary", false,
                      "Wait for the device at each segment. A CPU never runs ahead, so both values "
                      "mean "
                      "the same there."),
                 flag("profile", false, "Time each segment.")
                     .needs("timing of segments (flops_profiler times what is recomputed)"),
                 flag("cpu_checkpointing", false,
                      "Keep the inputs of segments in host memory, so that what a GPU holds of "
                      "them does "
                      "not grow with the number of segments. They travel beside the computation. "
                      "On the "
                      "CPU it changes nothing.")
                     .to(&ActivationCheckpointingConfig::cpu_checkpointing),
                 flag("nvme_checkpointing", false,
                      "Keep the inputs of segments in files of the host: written behind the "
                      "forward pass and read ahead of backward, as aio says. "
                      "(Extension.)")
                     .to(&ActivationCheckpointingConfig::nvme_checkpointing),
                 text("nvme_path", std::nullopt,
                      "Folder for nvme_checkpointing, which must be there. Files in it have no "
                      "names and go with the process. (Extension.)")
                     .to(&ActivationCheckpointingConfig::nvme_path),
             })
      .gated_by("enabled")
      .ignores_other_keys();
}

}  // namespace ds
