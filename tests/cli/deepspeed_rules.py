"""What DeepSpeed 0.19 trains with for a document, when Hugging Face's Trainer or Accelerate fill in
"auto": precision, optimizer, decay, clipping, batch, stage. A reference for tests, which knows
nothing of this engine.
"""
import json

AUTO = "auto"


def strip_liberties(text):
    """JSON text without comments and trailing commas."""
    out, at, in_string = [], 0, False
    while at < len(text):
        c = text[at]
        if in_string:
            if c == "\\":
                out.append(text[at:at + 2])
                at += 2
                continue
            in_string = c != '"'
        elif c == '"':
            in_string = True
        elif c == "#" or text.startswith("//", at):
            while at < len(text) and text[at] != "\n":
                at += 1
            continue
        elif text.startswith("/*", at):
            at = text.index("*/", at) + 2
            continue
        elif c in "}]":
            while out and (out[-1].isspace() or out[-1] == ","):
                if out.pop() == ",":
                    break
        out.append(c)
        at += 1
    return "".join(out)


def read(text):
    return json.loads(strip_liberties(text))


def switch(value):
    """A boolean of a typed section."""
    if isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    return bool(value)


# Keyword defaults of the optimizers that DeepSpeed calls.
DEFAULTS = {
    "adam": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "lamb": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "lion": {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.0},
    "adagrad": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
    "sgd": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
    "muon": {"lr": 0.02, "momentum": 0.95, "betas": [0.9, 0.95], "eps": 1e-10,
             "weight_decay": 0.0},
}
DEFAULTS["adamw"] = DEFAULTS["adam"]
# torch.optim.AdamW, which "torch_adam" asks for, decays on its own account.
TORCH_ADAMW = {**DEFAULTS["adam"], "weight_decay": 0.01}


class Arguments:
    """What the command line of a Trainer says; the defaults are the Trainer's."""

    def __init__(self, lr, micro_batch, precision, stage, world):
        self.lr, self.micro_batch, self.precision = lr, micro_batch, precision
        self.stage, self.world = stage, world
        self.betas, self.eps, self.weight_decay = [0.9, 0.999], 1e-8, 0.0
        self.clipping = 1.0


def optimizer(document, given):
    section = document.get("optimizer")
    if section is None:  # the Trainer makes torch.optim.AdamW of its arguments
        return {"type": "adamw", "decoupled": True, "lr": given.lr, "betas": given.betas,
                "eps": given.eps, "weight_decay": given.weight_decay}
    kind = section["type"].lower()
    params = dict(section.get("params", {}))
    filled = {"lr": given.lr, "betas": given.betas, "eps": given.eps,
              "weight_decay": given.weight_decay}
    for name, value in filled.items():
        if params.get(name) == AUTO:
            params[name] = value
    decoupled = kind == "adamw" or (kind == "adam" and params.get("adam_w_mode", True))
    defaults = TORCH_ADAMW if params.get("torch_adam") and decoupled else DEFAULTS[kind]
    out = {"type": kind}
    if kind in ("adam", "adamw"):
        out["decoupled"] = decoupled
    for name, value in defaults.items():
        out[name] = params.get(name, value)
    return out


def precision(document, given):
    fp16 = document.get("fp16", {}).get("enabled", False)
    bf16 = document.get("bf16", document.get("bfloat16", {})).get("enabled", False)
    if bf16 == AUTO:
        bf16 = given.precision == "bf16"
    if fp16 == AUTO:
        fp16 = given.precision == "fp16"
    assert not (switch(fp16) and switch(bf16)), "both precisions"
    return "fp16" if switch(fp16) else "bf16" if switch(bf16) else "fp32"


def batches(document, given):
    train, micro, steps = (document.get(key) for key in (
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    if micro == AUTO:
        micro = given.micro_batch
    if steps == AUTO:
        steps = 1
    if train == AUTO:
        train = given.world * micro * steps
    if train is not None and micro is not None and steps is None:
        steps = train // micro // given.world
    elif train is not None and micro is None:
        steps = steps or 1
        micro = train // given.world // steps
    elif train is None:
        steps = steps or 1
        train = micro * steps * given.world
    assert train == micro * steps * given.world, (train, micro, steps, given.world)
    return [train, micro, steps]


def training(document, given):
    zero = document.get("zero_optimization", {})
    stage = int(zero) if isinstance(zero, bool) else zero.get("stage", 0)
    clipping = document.get("gradient_clipping", 1.0)
    return {"precision": precision(document, given), "optimizer": optimizer(document, given),
            "clipping": given.clipping if clipping == AUTO else clipping or 0.0,
            "batch": batches(document, given),
            "stage": given.stage if stage == AUTO else int(stage)}
