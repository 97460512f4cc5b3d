#!/usr/bin/env python3
"""Makes tests/data/families/bert_heads: losses and gradients of BERT's heads of numbers, from
Transformers in fp32 on the weights of tests/data/families/bert_classifier.

    python tests/parity/gen_head_vectors.py

Each FILE.json has {"config", "ids", "labels", "loss", "gradients": {name: values}}; the row of
padding of the embedding is among the gradients, and padding among the ids."""
import json
import pathlib
import shutil
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent / "data" / "families"
CASES = {
    "regression": dict(num_labels=1),
    "regression_wide": dict(num_labels=3, problem_type="regression"),
    "multi_label": dict(num_labels=3, problem_type="multi_label_classification"),
}
NAMES = ["classifier.weight", "classifier.bias", "bert.pooler.dense.bias",
         "bert.encoder.layer.0.attention.self.value.bias"]


def main():
    out = ROOT / "bert_heads"
    out.mkdir(exist_ok=True)
    base = json.loads((ROOT / "bert_classifier" / "config.default.json").read_text())
    for name, changes in CASES.items():
        document = {key: value for key, value in base.items()
                    if key not in ("id2label", "label2id", "problem_type")}
        document |= dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        classes = changes["num_labels"]
        document["id2label"] = {str(i): f"LABEL_{i}" for i in range(classes)}
        document["label2id"] = {f"LABEL_{i}": i for i in range(classes)}
        if "problem_type" in changes:
            document["problem_type"] = changes["problem_type"]
        with tempfile.TemporaryDirectory() as work:
            shutil.copy(ROOT / "bert_classifier" / "model.safetensors", work)
            (pathlib.Path(work) / "config.json").write_text(json.dumps(document))
            model = transformers.BertForSequenceClassification.from_pretrained(
                work, dtype=torch.float32, attn_implementation="eager",
                ignore_mismatched_sizes=True).train()
        torch.manual_seed(4)
        with torch.no_grad():
            for p in (model.classifier.weight, model.classifier.bias):
                p.copy_(torch.randn_like(p))
        weights = {key: getattr(model.classifier, key).detach().flatten().tolist()
                   for key in ("weight", "bias")}
        ids = torch.randint(1, 61, (4, 9))
        ids[1, -4:] = 0
        labels = torch.randn(4, classes) if "multi" not in name else \
            torch.rand(4, classes).round(decimals=1)
        if classes == 1:
            labels = labels.flatten()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        parameters = dict(model.named_parameters())
        gradients = {key: parameters[key].grad.flatten().tolist() for key in NAMES}
        words = parameters["bert.embeddings.word_embeddings.weight"].grad
        gradients["padding row"] = words[0].tolist()
        gradients["a row"] = words[int(ids[0, 0])].tolist()
        result = dict(config=document, ids=ids.tolist(), labels=labels.tolist(),
                      classifier=weights, loss=loss.item(), gradients=gradients)
        (out / f"{name}.json").write_text(json.dumps(result) + "\n")
        print(name, loss.item(), words[0].abs().max().item())


if __name__ == "__main__":
    main()
