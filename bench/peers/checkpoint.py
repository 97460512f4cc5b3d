"""Checkpoints: torch.save and torch.load beside saving and loading of a ds engine, in turn.

usage: checkpoint.py CHECKPOINT_BENCH_PROGRAM --folder DIR [--layers 12] [--rounds 5] [--stock]
Both sides hold the same fp32 tensors: a GPT-2 of width 768, its weights and Adam's two moments
(12 layers: 1.5 GB). torch.save is timed alone and with the fsync that makes it durable, as ours is.
Loads find nothing of the files in the page cache: in a process that has loaded before, and as the
first thing that a new process does (torch.load into fresh memory; ours into its new engine, whose
memory comes when it is made, so the last row counts both). Needs torch from PyPI.
Removes what it wrote.
"""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import common


def shapes(layers):
    """The parameters of a GPT-2 of width 768."""
    out = {"wte.weight": (50257, 768), "wpe.weight": (1024, 768), "ln_f.weight": (768,), "ln_f.bias": (768,)}
    for i in range(layers):
        for norm in ("ln_1", "ln_2"):
            out[f"h.{i}.{norm}.weight"] = out[f"h.{i}.{norm}.bias"] = (768,)
        for name, (rows, columns) in {"attn.c_attn": (768, 2304), "attn.c_proj": (768, 768),
                                      "mlp.c_fc": (768, 3072), "mlp.c_proj": (3072, 768)}.items():
            out[f"h.{i}.{name}.weight"], out[f"h.{i}.{name}.bias"] = (rows, columns), (columns,)
    return out


def drop_from_cache(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def sync(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


LOAD_ELSEWHERE = """
import sys, time, torch
began = time.perf_counter()
loaded = torch.load(sys.argv[1], map_location="cpu")
print((time.perf_counter() - began) * 1e3)
"""


class Peer:
    def __init__(self, layers, folder):
        import torch
        self.torch, self.path = torch, os.path.join(folder, "peer.pt")
        torch.manual_seed(1)
        self.state = {kind: {name: torch.randn(shape) for name, shape in shapes(layers).items()}
                      for kind in ("master", "exp_avg", "exp_avg_sq")}
        self.bytes = sum(4 * t.numel() for part in self.state.values() for t in part.values())

    def round(self):
        began = time.perf_counter()
        self.torch.save(self.state, self.path)
        saved = time.perf_counter()
        sync(self.path)
        durable = time.perf_counter()
        drop_from_cache(self.path)
        loading = time.perf_counter()
        loaded = self.torch.load(self.path, map_location="cpu")
        end = time.perf_counter()
        assert self.torch.equal(loaded["master"]["ln_f.bias"], self.state["master"]["ln_f.bias"])
        del loaded
        drop_from_cache(self.path)
        first = subprocess.run([sys.executable, "-c", LOAD_ELSEWHERE, self.path], check=True,
                               capture_output=True, text=True).stdout
        os.remove(self.path)
        return (saved - began) * 1e3, (durable - began) * 1e3, (end - loading) * 1e3, float(first)


def main():
    made = common.parser(__doc__)
    made.add_argument("program")
    made.add_argument("--folder", required=True)
    made.add_argument("--layers", type=int, default=12)
    args = common.parse(made)
    folder = tempfile.mkdtemp(dir=args.folder)
    try:
        peer = Peer(args.layers, folder)
        peer.torch.set_num_threads(args.threads)
        theirs, ours = [], []
        for _ in range(args.rounds):
            theirs.append(peer.round())
            ours.append(common.run_json([args.program, "--folder", folder, "--rounds", "1", "--layers",
                                         str(args.layers), "--batch", "1", "--length", "64",
                                         "--threads", str(args.threads)]))
    finally:
        shutil.rmtree(folder)
    save, durable, load, first = (statistics.median(column) for column in zip(*theirs))
    our_save, our_load, resume, make = (
        statistics.median(run[key][0] for run in ours)
        for key in ("save_ms", "load_ms", "resume_ms", "resume_create_ms"))
    most_write, most_read = (statistics.median(run[key] for run in ours)
                             for key in ("limit_write_gb_s", "limit_read_gb_s"))
    size = ours[0]["bytes"]
    report = common.Report(args, "checkpoints beside PyTorch " + peer.torch.__version__)
    for what, peer_ms, our_ms, limit in (("save, durable", durable, our_save, most_write),
                                         ("save, peer without fsync", save, our_save, most_write),
                                         ("cold load, again", load, our_load, most_read),
                                         ("cold load, new process", first, resume, most_read),
                                         ("the same with making the engine", first, resume + make,
                                          most_read)):
        report.row(what=what, torch_ms=peer_ms, torch_gb_s=peer.bytes / peer_ms / 1e6, ds_ms=our_ms,
                   ds_gb_s=size / our_ms / 1e6, ratio=(size / our_ms) / (peer.bytes / peer_ms),
                   limit_gb_s=limit, ds_of_limit=size / our_ms / 1e6 / limit)
    report.finish()


if __name__ == "__main__":
    main()
