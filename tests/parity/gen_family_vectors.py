#!/usr/bin/env python3
"""Makes tests/data/families: tiny random models of every family and what Transformers computes
with them in fp32, for tests that need no Python.

Run with an interpreter that has torch, safetensors, transformers and (for the adapters) peft:

    python tests/parity/gen_family_vectors.py [NAME ...]

Each folder holds weights in bf16 as Transformers saves them; variants that share weights add
config.NAME.json. expected.NAME.safetensors holds the inputs (ids, mask, types), the logits or
hidden states, and for causal models the greedy continuation of the first six tokens."""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent / "data" / "families"
VOCAB, BATCH, LENGTH = 61, 2, 24
NEW_TOKENS = 12

LLAMA = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
    initializer_range=0.15, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None)
QWEN2 = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    initializer_range=0.15, bos_token_id=None, eos_token_id=None)
# Experts of 20 channels; five and seven of them, so that no count divides another.
MIXTRAL = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=20, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, num_local_experts=5,
    num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.02,
    initializer_range=0.15, bos_token_id=None, eos_token_id=None)
QWEN2_MOE = QWEN2 | dict(
    num_hidden_layers=3, moe_intermediate_size=20, shared_expert_intermediate_size=28,
    num_experts=7, num_experts_per_tok=3, output_router_logits=True)
QWEN3 = QWEN2 | dict(head_dim=16)
QWEN3_MOE = QWEN3 | dict(
    moe_intermediate_size=20, num_experts=7, num_experts_per_tok=3, norm_topk_prob=True,
    output_router_logits=True)
OLMO2 = QWEN2 | dict(pad_token_id=None)
OLMOE = OLMO2 | dict(intermediate_size=20, num_experts=7, num_experts_per_tok=3,
                     output_router_logits=True)
# Four channels of a head without a position, six with one, seven of values.
DEEPSEEK = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=44, moe_intermediate_size=12,
    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
    q_lora_rank=14, kv_lora_rank=10, qk_nope_head_dim=4, qk_rope_head_dim=6, v_head_dim=7,
    first_k_dense_replace=1, num_experts_per_tok=3, initializer_range=0.15, rms_norm_eps=1e-5,
    bos_token_id=None, eos_token_id=None)
DEEPSEEK_V2 = DEEPSEEK | dict(n_routed_experts=8, n_shared_experts=2, routed_scaling_factor=1.7)
DEEPSEEK_V3 = DEEPSEEK | dict(n_routed_experts=12, n_shared_experts=1, n_group=4, topk_group=2,
                              routed_scaling_factor=2.5)
DEEPSEEK_YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5,
                 "mscale": 1.2, "mscale_all_dim": 0.8, "original_max_position_embeddings": 16}
NEOX = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=52, num_hidden_layers=2,
    num_attention_heads=2, max_position_embeddings=64, initializer_range=0.15,
    bos_token_id=None, eos_token_id=None)
BERT = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=52, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=32, initializer_range=0.15)
GPT2 = dict(
    vocab_size=VOCAB, n_embd=32, n_inner=52, n_layer=2, n_head=4, n_positions=64,
    initializer_range=0.15, bos_token_id=None, eos_token_id=None)


def model_class(name):
    return getattr(transformers, name)


# folder -> (class, config class, base options, {variant: options as config.json writes them})
FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, {
        "default": {"rope_theta": 500.0},
        "linear": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
        "dynamic": {"max_position_embeddings": 16, "rope_theta": 500.0,
                    "rope_scaling": {"type": "dynamic", "factor": 4.0}},
        "llama3": {"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 24}},
        "yarn": {"rope_parameters": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 8.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 16}},
        "yarn_mscale": {"rope_theta": 500.0, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5, "mscale": 1.2,
            "mscale_all_dim": 0.8, "truncate": False, "original_max_position_embeddings": 16}},
    }),
    "llama_biased": ("LlamaForCausalLM", "LlamaConfig", LLAMA | dict(
        attention_bias=True, mlp_bias=True, hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True), {"default": {}}),
    "mistral": ("MistralForCausalLM", "MistralConfig", LLAMA, {
        "default": {"sliding_window": 7, "rope_theta": 1000.0}, "full": {"sliding_window": None}}),
    "qwen2_tied": ("Qwen2ForCausalLM", "Qwen2Config", QWEN2 | dict(tie_word_embeddings=True), {
        "default": {},
        "window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", QWEN2, {
        "default": {"rope_theta": 1e6},
        # The files hold another lm_head than the embedding: Transformers unties with a warning.
        "mistied": {"rope_theta": 1e6, "tie_word_embeddings": True}}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", MIXTRAL, {
        "default": {}, "window": {"sliding_window": 6, "num_experts_per_tok": 1}}),
    # The first layer has no experts.
    "qwen2_moe": ("Qwen2MoeForCausalLM", "Qwen2MoeConfig",
                  QWEN2_MOE | dict(mlp_only_layers=[0]),
                  {"default": {}, "normalised": {"norm_topk_prob": True}}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", QWEN3, {
        "default": {"rope_theta": 1e6},
        "window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig",
                  QWEN3_MOE | dict(num_hidden_layers=2, decoder_sparse_step=2), {"default": {}}),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", OLMO2, {"default": {}}),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", OLMOE, {"default": {}}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", "DeepseekV2Config", DEEPSEEK_V2, {
        "default": {"rope_theta": 500.0},
        "groups": {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                   "rope_theta": 500.0, "rope_scaling": DEEPSEEK_YARN}}),
    # As DeepSeek-V2-Lite: queries have no latent.
    "deepseek_v2_lite": ("DeepseekV2ForCausalLM", "DeepseekV2Config",
                         DEEPSEEK_V2 | dict(q_lora_rank=None, attention_bias=True),
                         {"default": {}}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK_V3, {
        "default": {"rope_theta": 500.0, "rope_scaling": DEEPSEEK_YARN},
        "halves": {"rope_interleave": False, "norm_topk_prob": False, "n_group": 1,
                   "topk_group": 1}}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX, {
        "parallel": {"use_parallel_residual": True},
        "serial": {"use_parallel_residual": False, "rotary_pct": 0.5, "rotary_emb_base": 500},
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0,
                                       "partial_rotary_factor": 0.75}}}),
    "bert": ("BertModel", "BertConfig", BERT, {"default": {}}),
    "bert_mlm": ("BertForMaskedLM", "BertConfig", BERT, {"default": {}}),
    "bert_mlm_untied": ("BertForMaskedLM", "BertConfig", BERT | dict(tie_word_embeddings=False),
                        {"default": {}}),
    "bert_classifier": ("BertForSequenceClassification", "BertConfig", BERT | dict(num_labels=3),
                        {"default": {}}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, {"default": {}}),
}


def disturb_biases(model):
    """Biases of routers, which are fp32 and no parameters."""
    for module in model.modules():
        if getattr(module, "e_score_correction_bias", None) is not None:
            bias = module.e_score_correction_bias
            module.e_score_correction_bias = torch.randn(bias.shape) * 0.1


def make_weights(name, cls, config_cls, options):
    torch.manual_seed(sum(map(ord, name)))
    config = model_class(config_cls)(**options)
    model = model_class(cls)(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:  # biases and norms too must matter
                p.add_(torch.randn_like(p) * 0.2)
    model = model.to(torch.bfloat16)
    disturb_biases(model)
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    for extra in folder.glob("generation_config.json"):
        extra.unlink()


def write_variant(name, variant, cls, changes):
    folder = ROOT / name
    base = json.loads((folder / "config.json").read_text())
    document = dict(base)
    if {"rope_theta", "rope_scaling", "rotary_pct", "rope_parameters"} & set(changes):
        document.pop("rope_parameters", None)
    if "use_sliding_window" in changes:
        document.pop("layer_types", None)
    document.update(changes)
    path = folder / f"config.{variant}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    work = folder / "work"
    work.mkdir()
    shutil.copy(folder / "model.safetensors", work)
    shutil.copy(path, work / "config.json")
    model = model_class(cls).from_pretrained(work, dtype=torch.float32,
                                             attn_implementation="eager").eval()
    torch.manual_seed(1)
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH))
    mask = torch.ones_like(ids)
    causal = "CausalLM" in cls or "LMHead" in cls
    if causal:
        mask[1, :5] = 0
    else:
        mask[1, -7:] = 0
    expected = {"ids": ids.int(), "mask": mask.int()}
    inputs = dict(input_ids=ids, attention_mask=mask)
    if name.startswith("bert"):
        inputs["token_type_ids"] = (torch.arange(LENGTH) >= 9).long().expand(BATCH, LENGTH)
        expected["types"] = inputs["token_type_ids"].int().contiguous()
    else:
        inputs["position_ids"] = torch.arange(LENGTH).expand(BATCH, LENGTH)
    with torch.no_grad():
        out = model(**inputs)
        if getattr(out, "aux_loss", None) is not None:
            expected["balance"] = out.aux_loss.reshape(1).float()
        expected["logits"] = (out.logits if hasattr(out, "logits") else out.last_hidden_state)
        if causal:
            text = model.generate(ids[:1, :6], max_new_tokens=NEW_TOKENS, do_sample=False,
                                  pad_token_id=0, eos_token_id=None)
            expected["generated"] = text[0, 6:].int().contiguous()
    expected["logits"] = expected["logits"].contiguous()
    save_file(expected, folder / f"expected.{variant}.safetensors", metadata={"format": "pt"})
    shutil.rmtree(work)
    print(f"{name}/{variant}: logits up to {expected['logits'].abs().max():.2f}")


# base folder -> (variant, adapter options)
ADAPTERS = {
    "gpt2": ("default", dict(r=3, lora_alpha=7, lora_dropout=0.1, fan_in_fan_out=True,
                             target_modules=["c_attn", "mlp.c_proj"])),
    "llama": ("default", dict(r=4, lora_alpha=6, use_rslora=True, target_modules="all-linear")),
}


def write_adapter(base, variant, options):
    import peft

    folder = ROOT / f"{base}_lora"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    work = folder / "work"
    work.mkdir()
    shutil.copy(ROOT / base / "model.safetensors", work)
    shutil.copy(ROOT / base / f"config.{variant}.json", work / "config.json")
    model = model_class(FAMILIES[base][0]).from_pretrained(work, dtype=torch.float32)
    torch.manual_seed(2)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.3)
        ids = torch.randint(0, VOCAB, (BATCH, LENGTH))
        logits = model(input_ids=ids).logits
    model.save_pretrained(folder)
    document = json.loads((folder / "adapter_config.json").read_text())
    document["base_model_name_or_path"] = None
    (folder / "adapter_config.json").write_text(json.dumps(document, indent=1) + "\n")
    save_file({"ids": ids.int(), "logits": logits.contiguous()}, folder / "expected.safetensors",
              metadata={"format": "pt"})
    shutil.rmtree(work)
    for extra in folder.glob("README.md"):
        extra.unlink()
    print(f"{base}_lora: logits up to {logits.abs().max():.2f}")


def main():
    chosen = sys.argv[1:] or list(FAMILIES)
    for name in chosen:
        cls, config_cls, options, variants = FAMILIES[name]
        make_weights(name, cls, config_cls, options)
        for variant, changes in variants.items():
            write_variant(name, variant, cls, changes)
        (ROOT / name / "config.json").unlink()
    for name in ADAPTERS:
        if name in chosen:
            write_adapter(name, *ADAPTERS[name])


if __name__ == "__main__":
    main()
