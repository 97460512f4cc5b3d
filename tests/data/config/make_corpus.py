"""Writes the corpus of configurations in the manner in which people publish them.

    python3 make_corpus.py FOLDER

The documents are invented. Their forms, and about how often each occurs, are those of published
DeepSpeed documents: most leave values to Hugging Face's Trainer or to Accelerate by "auto", many
carry keys that ask for nothing, remarks, or text where JSON has none. manifest.json says of each
what DeepSpeed 0.19 would need besides ("world": ranks that its batch sizes fit) and, of the few that
ask for something that this engine lacks, which feature ("lacks": words of its name).
"""
import json
import pathlib
import sys

AUTO = "auto"
documents = []


def add(name, document, world=1, lacks=None):
    text = document if isinstance(document, str) else json.dumps(document, indent=2) + "\n"
    documents.append((name, text, world, lacks))


def adamw(**params):
    return {"type": "AdamW", "params": params}


def auto_adamw(**more):
    return adamw(lr=AUTO, betas=AUTO, eps=AUTO, weight_decay=AUTO, **more)


def batch(**more):
    return {"train_batch_size": AUTO, "train_micro_batch_size_per_gpu": AUTO,
            "gradient_accumulation_steps": AUTO, "gradient_clipping": AUTO, **more}


def warmup(kind="WarmupLR", **more):
    params = {"warmup_min_lr": AUTO, "warmup_max_lr": AUTO, "warmup_num_steps": AUTO, **more}
    if kind == "WarmupDecayLR":
        params["total_num_steps"] = AUTO
    return {"type": kind, "params": params}


FP16 = {"enabled": AUTO, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
        "hysteresis": 2, "min_loss_scale": 1}
BF16 = {"enabled": AUTO}
CPU = {"device": "cpu", "pin_memory": True}


def zero2(**more):
    return {"stage": 2, "allgather_partitions": True, "allgather_bucket_size": 2e8,
            "overlap_comm": True, "reduce_scatter": True, "reduce_bucket_size": 2e8,
            "contiguous_gradients": True, **more}


def zero3(**more):
    return {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9,
            "reduce_bucket_size": AUTO, "stage3_prefetch_bucket_size": AUTO,
            "stage3_param_persistence_threshold": AUTO, "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True, **more}


def trainer_documents():
    """What goes with Hugging Face's Trainer."""
    zeros = {"zero2": zero2(), "zero2-offload": zero2(offload_optimizer=CPU),
             "zero2-offload-param": zero2(offload_optimizer=CPU, offload_param=CPU),
             "zero3": zero3(), "zero3-offload": zero3(offload_optimizer=CPU),
             "zero3-offload-all": zero3(offload_optimizer=CPU, offload_param=CPU),
             "zero3-none": zero3(offload_optimizer={"device": "none"},
                                 offload_param={"device": "none"}),
             "zero1": {"stage": 1, "reduce_bucket_size": AUTO}}
    precisions = {"both": {"fp16": FP16, "bf16": BF16}, "bf16": {"bf16": BF16},
                  "fp16": {"fp16": FP16}, "bf16-on": {"bf16": {"enabled": True}},
                  "bfloat16": {"bfloat16": BF16, "fp16": FP16}}
    schedules = {"warmup": warmup(), "decay": warmup("WarmupDecayLR"), "none": None}
    wanted = [("both", "warmup"), ("both", "decay"), ("bf16", "none"), ("bf16-on", "decay")]
    for zero, section in zeros.items():
        for precision, schedule in wanted:
            document = {**precisions[precision], "optimizer": auto_adamw(),
                        "zero_optimization": section, **batch(steps_per_print=2000,
                                                              wall_clock_breakdown=False)}
            if schedules[schedule]:
                document["scheduler"] = schedules[schedule]
            add(f"trainer-{zero}-{precision}-{schedule}", document)
    for precision in ["fp16", "bfloat16"]:
        add(f"trainer-{precision}", {**precisions[precision], "optimizer": auto_adamw(),
                                     "scheduler": warmup(), "zero_optimization": zero2(),
                                     **batch()})
    add("trainer-no-optimizer", {"bf16": BF16, "zero_optimization": zero3(), **batch()})
    add("trainer-no-optimizer-clipping", {"fp16": FP16, "zero_optimization": zero2(),
                                          **batch(gradient_clipping=0.5)})
    add("trainer-own-decay", {"bf16": BF16, **batch(), "optimizer":
                              adamw(lr=AUTO, betas=[0.9, 0.95], eps=1e-6, weight_decay=0.1),
                              "scheduler": warmup(), "zero_optimization": zero2()})
    add("trainer-own-rate", {"bf16": BF16, **batch(), "optimizer":
                             adamw(lr=2e-5, betas=AUTO, weight_decay=AUTO),
                             "scheduler": warmup(), "zero_optimization": {"stage": 1}})
    add("trainer-own-batch", {"bf16": BF16, "train_micro_batch_size_per_gpu": 4,
                              "gradient_accumulation_steps": 8, "train_batch_size": AUTO,
                              "optimizer": auto_adamw(), "zero_optimization": zero2()})
    add("trainer-cosine", {"bf16": BF16, **batch(), "optimizer": auto_adamw(), "scheduler":
                           {"type": "WarmupCosineLR", "params":
                            {"total_num_steps": AUTO, "warmup_num_steps": AUTO}}})


def accelerate_documents():
    add("accelerate", {"bf16": BF16, **batch(), "zero_optimization": {
        "stage": AUTO, "offload_optimizer": {"device": AUTO}, "offload_param": {"device": AUTO}}})
    add("accelerate-optimizer", {"fp16": FP16, "bf16": BF16, **batch(),
                                 "optimizer": auto_adamw(), "scheduler": warmup(),
                                 "zero_optimization": {"stage": AUTO}})
    add("accelerate-unused", {"bf16": BF16, **batch(steps_per_print=10 ** 9),
                              "optimizer": auto_adamw(torch_adam=True),
                              "zero_optimization": zero3(offload_param=CPU)})
    add("accelerate-untested", {"bf16": {"enabled": True}, **batch(),
                                "zero_allow_untested_optimizer": True,
                                "zero_force_ds_cpu_optimizer": False,
                                "zero_optimization": {"stage": AUTO, "overlap_comm": AUTO}})


def complete_documents():
    """Everything is said; the batch sizes often fit one world alone."""
    add("complete-fp16", {"train_batch_size": 32, "steps_per_print": 10, "fp16": {
        "enabled": True, "loss_scale": 0, "initial_scale_power": 12}, "optimizer": {
            "type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8,
                                       "weight_decay": 3e-7}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3,
                                                     "warmup_num_steps": 1000}}})
    add("complete-super-offload", {
        "train_batch_size": 8, "fp16": {"enabled": True}, "optimizer": adamw(lr=1e-4),
        "zero_optimization": {"stage": 3, "offload_optimizer": {
            "device": "cpu", "super_offload": True}}})
    for world, sizes in [(8, (256, 8, 4)), (64, (512, 8, 1)), (128, (1024, 4, 2)),
                         (16, (1536, 96, 1)), (4, (64, 1, 16)), (2, (8, 4, 1))]:
        add(f"complete-world-{world}", {
            "train_batch_size": sizes[0], "train_micro_batch_size_per_gpu": sizes[1],
            "gradient_accumulation_steps": sizes[2], "bf16": {"enabled": True},
            "optimizer": adamw(lr=6e-4, betas=[0.9, 0.95], weight_decay=0.1),
            "zero_optimization": {"stage": 1}}, world)
    add("complete-fp32", {"train_micro_batch_size_per_gpu": 16, "optimizer": adamw(lr=3e-4)})
    add("complete-l2", {"train_batch_size": 8, "optimizer": {
        "type": "Adam", "params": {"lr": 1e-4, "weight_decay": 0.01, "adam_w_mode": False}}})
    add("complete-sgd", {"train_batch_size": 8, "gradient_clipping": 0, "optimizer": {
        "type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}}})
    add("complete-lion", {"train_batch_size": 8, "bf16": {"enabled": True}, "optimizer": {
        "type": "Lion", "params": {"lr": 1e-4, "betas": [0.95, 0.98], "weight_decay": 1.0}},
        "zero_optimization": {"stage": 2}})
    add("complete-lamb", {"train_batch_size": 64, "fp16": {"enabled": True}, "optimizer": {
        "type": "Lamb", "params": {"lr": 1e-2, "weight_decay": 0.01, "max_coeff": 0.3}}})
    add("complete-layer-reduction", {
        "train_batch_size": 32, "train_micro_batch_size_per_gpu": 32, "steps_per_print": 200,
        "gradient_clipping": 1.0, "wall_clock_breakdown": False, "optimizer": adamw(lr=5e-5),
        "fp16": {"enabled": False}, "compression_training": {"layer_reduction": {
            "enabled": True, "keep_number_layer": 6, "module_name_prefix": "bert.encoder.layer",
            "teacher_layer": [1, 3, 5, 7, 9, 11], "other_module_name": [
                "bert.pooler", "bert.embeddings", "classifier"]}}})
    add("complete-nvme", {"train_batch_size": 16, "bf16": {"enabled": True},
        "optimizer": adamw(lr=1e-4), "zero_optimization": {
            "stage": 3, "overlap_comm": True, "contiguous_gradients": True,
            "sub_group_size": 1e9, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e8,
            "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme",
                                  "pin_memory": True, "buffer_count": 4, "fast_init": False},
            "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True,
                              "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9}},
        "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1,
                "single_submit": False, "overlap_events": True}})
    # Megatron-DeepSpeed's example of offload by half: a share of the update on the host.
    add("complete-twin-flow", {"train_batch_size": 8, "fp16": {"enabled": True},
        "optimizer": adamw(lr=1e-4), "zero_optimization": {
            "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.3}}})
    add("complete-nvme-share", {"train_batch_size": 8, "bf16": {"enabled": True},
        "optimizer": adamw(lr=1e-4), "zero_optimization": {
            "stage": 3, "sub_group_size": 1e5, "offload_optimizer": {
                "device": "nvme", "nvme_path": "/local_nvme", "ratio": 0.5, "pipeline_read": True,
                "pipeline_write": True, "buffer_count": 5, "fast_init": True},
            "offload_param": {"device": "cpu", "pin_memory": True}},
        "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 4,
                "intra_op_parallelism": 2, "single_submit": True, "overlap_events": False}})
    add("complete-offload-0", {"train_batch_size": 8, "optimizer": adamw(lr=1e-4),
                               "zero_optimization": {
        "stage": 0, "offload_optimizer": {"device": "cpu", "pin_memory": True}}})
    add("complete-adagrad", {"train_batch_size": 16, "optimizer": {
        "type": "adagrad", "params": {"lr": 0.01}}})
    add("complete-muon", {"train_batch_size": 16, "bf16": {"enabled": True}, "optimizer": {
        "type": "Muon", "params": {"lr": 0.02, "weight_decay": 0.1}}})
    add("complete-onecycle", {"train_batch_size": 16, "fp16": {"enabled": True},
                              "optimizer": adamw(lr=1e-4), "scheduler": {
        "type": "OneCycle", "params": {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3,
                                       "cycle_first_step_size": 500}}})
    add("complete-rangetest", {"train_batch_size": 16, "optimizer": adamw(lr=1e-4), "scheduler": {
        "type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-4,
                                          "lr_range_test_step_size": 200}}})
    add("complete-static-scale", {"train_batch_size": 4, "fp16": {
        "enabled": True, "loss_scale": "128", "min_loss_scale": 1}, "optimizer": adamw(lr=1e-5)})
    add("complete-zero3-numbers", {"train_micro_batch_size_per_gpu": 2,
                                   "bf16": {"enabled": True}, "optimizer": adamw(lr=1e-5),
                                   "zero_optimization": {
        "stage": 3, "prefetch_bucket_size": 5e7, "max_live_parameters": 1e9}})
    add("complete-old-offload", {"train_batch_size": 8, "fp16": {"enabled": True},
                                 "optimizer": adamw(lr=1e-5),
                                 "zero_optimization": {"stage": 2, "cpu_offload": True}})
    add("complete-bool-zero", {"train_batch_size": 8, "fp16": {"enabled": True},
                               "optimizer": adamw(lr=1e-5), "zero_optimization": True})
    add("complete-no-clipping", {"train_batch_size": 8, "gradient_clipping": None,
                                 "optimizer": adamw(lr=1e-5)})
    add("complete-monitors", {"train_batch_size": 8, "optimizer": adamw(lr=1e-5),
                              "tensorboard": {"enabled": True, "output_path": "logs"},
                              "wandb": {"enabled": False, "project": "p"},
                              "flops_profiler": {"enabled": False, "profile_step": 5},
                              "comms_logger": {"enabled": False}})
    add("complete-zenflow", {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True}, "optimizer": adamw(lr=2e-5),
        "zero_optimization": {
            "stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu",
                                                                   "pin_memory": True},
            "zenflow": {"topk_ratio": 0.05, "select_strategy": "auto", "select_interval": "auto",
                        "update_interval": 4, "full_warm_up_rounds": 0, "overlap_step": True}}})


def inert_documents():
    """Keys that ask for nothing here, or that DeepSpeed itself passes over."""
    base = {"train_batch_size": 8, "bf16": {"enabled": True}}
    add("inert-torch-adam", {**base, "optimizer": adamw(lr=1e-4, torch_adam=True)})
    add("inert-torch-adam-decay", {**base, "optimizer": adamw(lr=1e-4, weight_decay=0.05,
                                                              torch_adam=True)})
    add("inert-torch-adam-l2", {**base, "optimizer": {
        "type": "Adam", "params": {"lr": 1e-4, "torch_adam": True, "adam_w_mode": False}}})
    add("inert-foreach", {**base, "optimizer": adamw(lr=1e-4, set_grad_none=True)})
    add("inert-checkpointing", {**base, "optimizer": adamw(lr=1e-4), "activation_checkpointing": {
        "partition_activations": True, "cpu_checkpointing": True, "number_checkpoints": 4,
        "contiguous_memory_optimization": True, "synchronize_checkpoint_boundary": True}})
    add("inert-profile", {**base, "optimizer": adamw(lr=1e-4),
                          "activation_checkpointing": {"profile": True}})
    add("inert-aio", {**base, "optimizer": adamw(lr=1e-4), "aio": {
        "block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": False,
        "overlap_events": True}})
    add("inert-param-offload-1", {**base, "optimizer": adamw(lr=1e-4), "zero_optimization": {
        "stage": 1, "offload_param": {"device": "nvme", "nvme_path": "/local"}}})
    add("inert-allgather", {**base, "optimizer": adamw(lr=1e-4), "disable_allgather": True,
                            "prescale_gradients": False, "sparse_gradients": False})
    add("inert-print", {**base, "optimizer": adamw(lr=1e-4), "steps_per_print": 0,
                        "disable_python_gc": True, "dump_state": False})
    add("inert-hysteresis", {"train_batch_size": 8, "optimizer": adamw(lr=1e-4),
                             "fp16": {"enabled": True, "hysteresis": 0}})
    add("inert-off", {**base, "optimizer": adamw(lr=1e-4),
                      "elasticity": {"enabled": False, "max_train_batch_size": 100},
                      "curriculum_learning": {"enabled": False}, "autotuning": {"enabled": False},
                      "data_efficiency": {"enabled": False}, "nebula": {"enabled": False}})
    add("inert-types", {**base, "optimizer": adamw(lr=1e-4),
                        "data_types": {"grad_accum_dtype": "torch.float32"},
                        "communication_data_type": "torch.bfloat16"})
    add("inert-zero", {**base, "optimizer": adamw(lr=1e-4), "zero_optimization": {
        "stage": 2, "compute_grad_norm": True, "parameter_alignment": 8,
        "round_robin_gradients": True, "ignore_unused_parameters": True}})


def text_documents():
    """Numbers and switches as text, where DeepSpeed's typed sections read them."""
    add("text-bf16", {"train_batch_size": 8, "bf16": {"enabled": "true"},
                      "optimizer": adamw(lr=1e-4)})
    add("text-fp16", {"train_batch_size": 8, "fp16": {"enabled": "True", "loss_scale": "0",
                                                      "initial_scale_power": "16"},
                      "bf16": {"enabled": "false"}, "optimizer": adamw(lr=1e-4)})
    add("text-buckets", {"train_batch_size": 8, "bf16": {"enabled": True},
                         "optimizer": adamw(lr=1e-4), "zero_optimization": {
        "stage": "2", "reduce_bucket_size": "500000000", "overlap_comm": "false"}})


def unknown_documents():
    """Keys that DeepSpeed does not know, where it passes over them."""
    for i, more in enumerate([
            {"run_label": "a"}, {"model_architecture": "decoder"}, {"use_flash_attention": True},
            {"logging_config": {"every": 10}}, {"max_seq_length": 4096},
            {"trust_remote_code": True}, {"tokenizer_path": "tok", "lora_rank": 8},
            {"tp_size": 1}]):
        document = {"bf16": BF16, **batch(), "optimizer": auto_adamw(), "scheduler": warmup(),
                    "zero_optimization": zero2(), **more}
        add(f"unknown-{i}", document)
    add("unknown-optimizer-key", {"train_batch_size": 8, "optimizer": {
        **adamw(lr=1e-4), "comment": "chosen by hand"}})
    add("unknown-checkpointing", {"train_batch_size": 8, "optimizer": adamw(lr=1e-4),
                                  "activation_checkpointing": {"granularity": "full"}})


def loose_documents():
    """Text that is not quite JSON, and remarks."""
    add("loose-trailing", """{
  "train_batch_size": 16,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.0001, "weight_decay": 0.01,},},
  "bf16": {"enabled": true,},
}
""")
    add("loose-hash", """{
  # batch
  "train_micro_batch_size_per_gpu": "auto",   # from the command line
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
  "fp16": {"enabled": "auto"},
  "zero_optimization": {"stage": 2}
}
""")
    add("loose-slashes", """{
  // what follows was tuned
  "train_batch_size": 16, /* per step */
  "optimizer": {"type": "Adam", "params": {"lr": 3e-5}},
  "fp16": {"enabled": true}
}
""")
    add("loose-all", """# a document
{
  "_comment": "an experiment",
  "#": "second remark",
  "train_batch_size": 16,
  "optimizer": {"type": "Lion", "params": {"lr": 3e-5, "betas": [0.9, 0.99,],},},
  "bf16": {"enabled": true},
  "zero_optimization": {"_why": "small model", "stage": 1,},
}
""")
    add("loose-comment-keys", {"_name": "x", "_about": {"who": "us"}, "//": "see the paper",
                               "train_batch_size": 8, "optimizer": adamw(lr=1e-4),
                               "fp16": {"_note": "off", "enabled": False}})
    add("loose-hash-in-text", """{
  "train_batch_size": 8,
  "tensorboard": {"enabled": true, "job_name": "run #3, second try"},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1,}}
}
""")


def lacking_documents():
    base = {"train_batch_size": 8, "fp16": {"enabled": True}}
    add("lacks-onebit", {**base, "optimizer": {"type": "OneBitAdam", "params": {
        "lr": 1e-4, "freeze_step": 400}}}, lacks="OneBitAdam")
    add("lacks-compression", {**base, "optimizer": adamw(lr=1e-4), "compression_training": {
        "layer_reduction": {"enabled": True, "keep_number_layer": 5, "teacher_layer": [
            2, 4, 6, 8, 10], "module_name_prefix": "bert.encoder.layer", "other_module_name": [
                "bert.pooler", "bert.embeddings", "classifier"]},
        "row_pruning": {"shared_parameters": {"enabled": True, "method": "topk"},
                        "different_groups": {"rows": {"params": {"dense_ratio": 0.5}, "modules": [
                            "intermediate.dense"]}}}}}, lacks="row pruning")
    add("lacks-tensor-parallel", {**base, "optimizer": adamw(lr=1e-4),
                                  "tensor_parallel": {"autotp_size": 4}},
        lacks="tensor parallelism")
    add("lacks-sparse", {**base, "optimizer": adamw(lr=1e-4), "sparse_attention": {
        "mode": "fixed", "block": 16}}, lacks="block-sparse attention")


def main(folder):
    for make in [trainer_documents, accelerate_documents, complete_documents, inert_documents,
                 text_documents, unknown_documents, loose_documents, lacking_documents]:
        make()
    manifest = {}
    for name, text, world, lacks in documents:
        (folder / f"{name}.json").write_text(text)
        manifest[name] = {"world": world, **({"lacks": lacks} if lacks else {})}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
