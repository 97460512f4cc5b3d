"""What the peer scripts for a GPU share: timing, a GPT-2 in plain PyTorch, contenders, skipping."""
import json
import statistics
import subprocess
import sys
import time

import common

CPU_WORDS = "to try the script itself on a machine without a GPU: tiny sizes, figures without meaning"


def parser(doc):
    made = common.parser(doc)
    made.add_argument("--device", default="cuda:0")
    made.add_argument("--tiny", action="store_true", help=CPU_WORDS)
    made.add_argument("--no-compile", action="store_true", help="PyTorch runs eagerly")
    made.set_defaults(stock=True, threads=0)
    return made


def parse(made):
    args = made.parse_args()
    args.stock = True  # the host's heap is not what is measured
    return args


def need_torch(device):
    """PyTorch with a device of that name, or the end of the script with the reason (status 3)."""
    try:
        import torch
    except ImportError as error:
        skip(f"PyTorch is not installed: {error}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    return torch


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(3)


def synchronize(torch, device):
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def median_ms(torch, device, body, repeats=5, least_ms=30):
    """Milliseconds of one of many calls, queued one after another from an idle GPU until it is idle
    again; the median of several turns. As bench/gpu_bench.cc does it."""
    def turn(calls):
        synchronize(torch, device)
        began = time.perf_counter()
        for _ in range(calls):
            body()
        synchronize(torch, device)
        return (time.perf_counter() - began) * 1e3 / calls

    turn(3)
    calls = max(1, min(2000, int(least_ms / max(turn(1), 1e-6))))
    return statistics.median(turn(calls) for _ in range(repeats))


def contender(command, **options):
    """A contender that says why when it cannot start."""
    try:
        return common.Contender(command, **options)
    except common.NotStarted as error:
        return str(error)


def small_gpt2(torch, config):
    """GPT-2 as Hugging Face's, with the names of its files; attention is PyTorch's SDPA."""
    nn, functional = torch.nn, torch.nn.functional
    width, heads = config["n_embd"], config["n_head"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
            q, k, v = (part.view(batch, length, heads, width // heads).transpose(1, 2)
                       for part in (q, k, v))
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn_proj(seen.transpose(1, 2).reshape(batch, length, width))
            inner = functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
            return x + self.mlp_proj(inner)

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(config["vocab_size"], width)
            self.wpe = nn.Embedding(config["n_positions"], width)
            self.h = nn.ModuleList(Block() for _ in range(config["n_layer"]))
            self.ln_f = nn.LayerNorm(width)
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, ids, labels):
            x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
            for block in self.h:
                x = block(x)
            return self.head(x, labels)

        def head(self, x, labels):
            logits = functional.linear(self.ln_f(x), self.wte.weight)
            return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    return Gpt2()


# Hugging Face's name -> the module's here, and whether the file holds the transpose.
def file_names(config):
    names = {"wte.weight": ("wte.weight", False), "wpe.weight": ("wpe.weight", False),
             "ln_f.weight": ("ln_f.weight", False), "ln_f.bias": ("ln_f.bias", False)}
    parts = {"ln_1": "ln_1", "ln_2": "ln_2", "attn.c_attn": "c_attn", "attn.c_proj": "attn_proj",
             "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}
    for layer in range(config["n_layer"]):
        for theirs, ours in parts.items():
            for kind in ("weight", "bias"):
                names[f"h.{layer}.{theirs}.{kind}"] = (
                    f"h.{layer}.{ours}.{kind}", kind == "weight" and not theirs.startswith("ln"))
    return names


def read_safetensors(torch, path):
    """name -> fp32 tensor; the format is a length, a JSON table and the bytes."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(size))
        data = bytearray(file.read())
    table.pop("__metadata__", None)
    out = {}
    for name, entry in table.items():
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, not F32")
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=begin)
        out[name.removeprefix("transformer.")] = values.reshape(entry["shape"]).clone()
    return out


def load_gpt2(torch, folder, config):
    """The small GPT-2 with the weights of a Hugging Face folder."""
    model = small_gpt2(torch, config)
    files = read_safetensors(torch, f"{folder}/model.safetensors")
    weights = {}
    for theirs, (ours, transposed) in file_names(config).items():
        weights[ours] = files[theirs].T.contiguous() if transposed else files[theirs]
    model.load_state_dict(weights)
    return model


def gpt2_parameters(config):
    width, layers = config["n_embd"], config["n_layer"]
    return ((config["vocab_size"] + config["n_positions"]) * width +
            layers * (12 * width * width + 13 * width) + 2 * width)


def gpt2_config(width, layers, heads, vocab=50304, positions=1024):
    """Without dropout. 50304 rows, as is usual: 50257 would only slow PyTorch down."""
    return {"vocab_size": vocab, "n_positions": positions, "n_embd": width, "n_layer": layers,
            "n_head": heads, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def limits_of(program, args):
    """The GPU's limits as gpu_bench measures them, now."""
    command = [program, "--device", args.device, "--filter", "add/", "--repeats", "3"]
    out = subprocess.run(command + (["--tiny"] if args.tiny else []), check=True,
                         capture_output=True, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])["limits"]
