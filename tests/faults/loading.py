#!/usr/bin/env python3
"""What loading reads and holds, in processes of their own, and what happens where it fails.

Ranks read what they hold and no more, counted in bytes at the calls of the C library; a model larger
than the memory that a process may have is converted, generates and begins to train; and each call that
fails while weights or a checkpoint are read ends in an error that names the file.

By hand, every call: DS_PROGRAM=... DS_LIBRARY=... DS_SOURCE=. DS_IO_FAULTS=... tests/faults/loading.py --calls 0
"""
import argparse
import array
import errno
import json
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile

import ranks

PROGRAM = str(pathlib.Path(os.environ["DS_PROGRAM"]).resolve())
SHIM = os.environ["DS_IO_FAULTS"]
WAIT_SECONDS = 200
MIB = 1 << 20


class Wrong(Exception):
    pass


def demand(condition, *what):
    if not condition:
        raise Wrong(" ".join(map(str, what)))


def llama(width, layers, vocabulary=256):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary,
            "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
            "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}


def mixtral(width, layers, experts):
    return {**llama(width, layers), "model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
            "intermediate_size": width, "num_local_experts": experts, "num_experts_per_tok": 2}


def shapes_of(config):
    width, inner, vocabulary = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    yield "model.embed_tokens.weight", [vocabulary, width]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        for one in "qkvo":
            yield f"{name}self_attn.{one}_proj.weight", [width, width]
        experts = config.get("num_local_experts", 0)
        for expert in range(experts):
            place = f"{name}block_sparse_moe.experts.{expert}."
            yield place + "w1.weight", [inner, width]
            yield place + "w2.weight", [width, inner]
            yield place + "w3.weight", [inner, width]
        if experts > 0:
            yield name + "block_sparse_moe.gate.weight", [experts, width]
        else:
            yield name + "mlp.gate_proj.weight", [inner, width]
            yield name + "mlp.up_proj.weight", [inner, width]
            yield name + "mlp.down_proj.weight", [width, inner]
        yield name + "input_layernorm.weight", [width]
        yield name + "post_attention_layernorm.weight", [width]
    yield "model.norm.weight", [width]
    yield "lm_head.weight", [vocabulary, width]


def write_folder(folder, config, shard_bytes):
    """A Hugging Face folder in bf16, in shards, whose numbers repeat after a while. Its bytes of tensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    chooser = random.Random(3)
    numbers = array.array("H", (chooser.randrange(0x3c00, 0x3d00) | chooser.choice((0, 0x8000)) for _ in range(1 << 16)))
    block = numbers.tobytes()
    shards, size = [{}], 0
    for name, shape in shapes_of(config):
        count = 2
        for one in shape:
            count *= one
        if shards[-1] and size + count > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = (shape, count)
        size += count
    places, total = {}, 0
    for number, tensors in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for name, (shape, count) in tensors.items():
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + count]}
            places[name] = file
            at += count
        text = json.dumps(header).encode()
        with open(folder / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for begin in range(0, at, len(block)):
                out.write(block[:min(len(block), at - begin)])
        total += at
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return total


def train_command(*arguments):
    return [PROGRAM, "train", *map(str, arguments), "--config", "config.json", "--data", "text.txt",
            "--split", "1", "--seed", "5", "--threads", "1", "--eval-interval", "0", "--sequence-length", "16",
            "--log-interval", "1000000"]


def generate_command(model, *more):
    return [PROGRAM, "generate", "--model", model, "--prompt", "ab", "--max-tokens", 3, "--temperature", 0,
            "--threads", 1, *more]


def shim(folder, **more):
    return {"LD_PRELOAD": SHIM, "DS_LIBAIO_LIBRARY": "off", "IO_FAULTS_FOLDER": str(folder),
            **{key: str(value) for key, value in more.items()}}


class Place:
    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="ds-loading-")).resolve()
        self.files = self.path / "files"
        self.files.mkdir()
        (self.path / "text.txt").write_text("abcdefgh " * 900)

    def configure(self, **more):
        config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "memory_plan": {"check": "off"}}
        (self.path / "config.json").write_text(json.dumps({**config, **more}))

    def run(self, command, environment=None, limit=None):
        def bound():
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        return subprocess.run(list(map(str, command)), cwd=self.path, timeout=WAIT_SECONDS, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env={**os.environ, **(environment or {})}, preexec_fn=bound)

    def done(self, command, environment=None, limit=None):
        done = self.run(command, environment, limit)
        demand(done.returncode == 0, *command[:2], "failed:", done.stderr.decode())
        return done.stdout.decode()

    def bytes_read(self, folder, world, *arguments):
        """Of the files of a folder by each rank that trains."""
        return self.bytes_read_by(folder, world, train_command(*arguments))

    def bytes_read_by(self, folder, world, command):
        job = self.path / "job"
        shutil.rmtree(job, ignore_errors=True)
        job.mkdir()
        for entry in self.path.iterdir():
            if entry != job:
                (job / entry.name).symlink_to(entry)
        commands = [["env", *(f"{key}={value}" for key, value in
                              shim(folder, IO_FAULTS_COUNT=job / f"{rank}.count").items()),
                     *map(str, command)] for rank in range(world)]
        with ranks.Job(commands, job) as running:
            status = running.wait(WAIT_SECONDS)
            demand(status == {rank: 0 for rank in range(world)}, "ranks do not", command[1], status,
                   *(running.error(rank) for rank in range(world)))
        return [int((job / f"{rank}.count").read_text().split()[2]) for rank in range(world)]


# ---- ranks read their slices ----

def count_slices(place):
    size = write_folder(place.path / "folder", llama(256, 8), 4 * MIB)
    world = 3
    for stage, shares in ((3, True), (1, True), (0, False)):
        place.configure(zero_optimization={"stage": stage})
        read = place.bytes_read(place.path / "folder", world, "--model", place.path / "folder", "--steps", "1")
        print(f"folder of {size} bytes, stage {stage}: ranks read {read}", flush=True)
        for one in read:
            # Besides tensors: headers and a few bytes of each that tell other files.
            expected = size / world if shares else size
            demand(abs(one - expected) < 0.03 * size, "stage", stage, "a rank reads", one, "of", size)

    # Experts of other ranks are not read, everything else is.
    config = mixtral(256, 4, 8)
    total = write_folder(place.path / "experts", config, 4 * MIB)
    experts = 4 * 8 * 3 * 256 * 256 * 2
    place.configure(zero_optimization={"stage": 0}, expert_parallel={"enabled": True, "autoep_size": 2})
    read = place.bytes_read(place.path / "experts", 2, "--model", place.path / "experts", "--steps", "1")
    print(f"experts of {experts} bytes among {total}, two ranks share them: ranks read {read}", flush=True)
    for one in read:
        demand(abs(one - (total - experts / 2)) < 0.03 * total, "a rank reads", one, "of", total)

    # The same of a generator, in any form.
    for sharing, form in ((2, "fp32"), (4, "int4")):
        read = place.bytes_read_by(place.path / "experts", sharing, generate_command(
            place.path / "experts", "--weights", form))
        print(f"{sharing} ranks that generate share them in {form}: ranks read {read}", flush=True)
        for one in read:
            demand(abs(one - (total - experts * (sharing - 1) / sharing)) < 0.03 * total, "a rank reads", one, "of", total)

    # Checkpoints are checked in chunks of 256 KiB, so that what two ranks share of one is read by both: the slices of
    # matrices are larger.
    write_folder(place.path / "wide", llama(768, 1), 4 * MIB)
    for stage, other in ((3, world), (1, 2)):
        place.configure(zero_optimization={"stage": stage})
        saved = place.path / f"begun-{stage}"
        place.bytes_read(saved, world, "--model", place.path / "wide", "--steps", "1", "--save", saved)
        tensors = sum(file.stat().st_size for file in saved.rglob("data-*.bin"))
        read = place.bytes_read(saved, other, "--load", saved, "--steps", "2", "--save", "ended")
        print(f"checkpoint of {tensors} bytes that {world} ranks saved, stage {stage}: {other} ranks read {read}", flush=True)
        # Masters twice: when the engine is made, and when the checkpoint is loaded into it.
        for one in read:
            demand(one < 1.15 * (4 / 3) * tensors / other, "stage", stage, "a rank reads", one, "of", tensors)
        demand(sum(read) > (4 / 3) * tensors * 0.95, "stage", stage, "ranks read", read, "of", tensors)


# ---- experts in a file ----

def count_experts(place):
    """What decoding reads of a file of weights: the experts that tokens chose, or less with a cache of them."""
    config = mixtral(256, 4, 8)
    model = place.path / "routed"
    write_folder(model, config, 4 * MIB)
    matrix, layers, chosen = 2 * 256 * 256, 4, 2
    dense, expert, tokens = layers * 4 * matrix + matrix, 3 * matrix, 32
    command = generate_command(model, "--weights", "bf16", "--ignore-end", "--stats")
    command[command.index("--max-tokens") + 1] = tokens
    expected = place.done(command)
    for cached, text in ((0, "0.0 %"), (2, None), (4, None)):
        count = place.path / "reads"
        in_file = [*command, "--weights-folder", place.files, "--read-ahead", 400_000, "--max-in-cpu",
                   (dense + layers * cached * expert) // 2 if cached else 0]
        done = place.run(in_file, shim(place.files, IO_FAULTS_COUNT=count))
        demand(done.returncode == 0, "experts in a file:", done.stderr.decode())
        demand(done.stdout.decode() == expected, "another text with", cached, "experts of a layer in memory")
        read = int(count.read_text().split()[2])
        # A pass over the prompt of two tokens, which may choose as many experts each, and one over each new token.
        used = [layers * chosen * expert * passes for passes in (tokens, tokens + 1)]
        print(f"{cached} experts of a layer in memory: {read} bytes read of a file, {used[0]} of experts used", flush=True)
        if cached:
            demand(read < previous, "more memory saves no reads:", read, "after", previous)
        else:
            least, most = (of_experts + tokens * dense for of_experts in used)
            demand(least <= read <= most + 4 * matrix, "a text reads", read, "of", least, "to", most)
        previous = min(read, used[0])
        said = done.stderr.decode()
        demand(text is None or text in said, "hits are not told:", said)
    shutil.rmtree(model)


# ---- larger than memory ----

def fit_into_memory(place):
    """A folder of more than twice the bytes that a process may have (RLIMIT_DATA)."""
    folder = place.path / "large"
    size = write_folder(folder, llama(1024, 5), 40 * MIB)
    limit = 72 * MIB
    demand(size > 2 * limit, "the model is of", size, "bytes")
    generate = [PROGRAM, "generate", "--model", folder, "--prompt", "ab", "--max-tokens", 3, "--temperature", 0,
                "--threads", 1]
    resident = place.run([*generate, "--weights", "bf16"], limit=limit)
    demand(resident.returncode == 1 and b"out of memory" in resident.stderr,
           "weights in memory are no error:", resident.returncode, resident.stderr.decode())
    for form in ("bf16", "int8", "int4"):
        in_files = [*generate, "--weights", form, "--weights-folder", place.files, "--read-ahead", 5_000_000]
        demand(place.done(in_files, limit=limit) == place.done([*generate, "--weights", form]), form,
               "gives another text from files")
        demand(not list(place.files.iterdir()), "left behind", list(place.files.iterdir()))
        print(f"{form} weights of {size} bytes in a file generate inside {limit}", flush=True)
    place.done([*generate, "--weights", "int4"], limit=limit)  # as codes it fits
    for kind in (["--to", "safetensors", "--dtype", "bfloat16", "--max-shard-size", "40MB"], ["--to", "checkpoint"]):
        shutil.rmtree(place.path / "converted", ignore_errors=True)
        place.done([PROGRAM, "convert", folder, "converted", *kind], limit=limit + 64 * MIB)
        print(f"converted inside {limit + 64 * MIB}: {' '.join(kind)}", flush=True)
    # Of bf16 weights that are their own masters, gradients and one moment in bf16: six bytes of each parameter.
    files = {"device": "nvme", "nvme_path": str(place.files)}
    place.configure(
        bf16={"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
        optimizer={"type": "Lion", "params": {"lr": 1e-5}}, activation_checkpointing={"enabled": True},
        zero_optimization={"stage": 3, "stage3_max_live_parameters": 5_000_000, "sub_group_size": 1_000_000,
                           "stage3_prefetch_bucket_size": 2_000_000, "reduce_bucket_size": 5_000_000,
                           "offload_optimizer": files, "offload_param": {**files, "max_in_cpu": 0}})
    place.done([*train_command("--model", "converted", "--steps", 1), "--set", "train_micro_batch_size_per_gpu=1"],
               limit=3 * limit)
    print(f"trained from a checkpoint of fp32 inside {3 * limit}", flush=True)
    for name in ("large", "converted"):
        shutil.rmtree(place.path / name)


# ---- calls that fail ----

def fail_calls(place, chooser, most):
    place.configure(zero_optimization={"stage": 1})
    model = place.path / "small"
    write_folder(model, llama(64, 2), MIB)
    place.done(train_command("--model", model, "--steps", "1", "--save", "small-begun"))
    saved = place.path / "small-begun"
    routed = place.path / "routed"
    write_folder(routed, mixtral(64, 2, 4), MIB)
    generate = ("generate", "--model", model, "--prompt", "ab", "--max-tokens", "2", "--temperature", "0",
                "--threads", "1", "--weights", "int8")
    for what, folder, command in (
            ("a folder trains", model, train_command("--model", model, "--steps", "1")),
            ("a folder generates", model, [PROGRAM, *generate]),
            ("experts in a file generate", place.files, generate_command(
                routed, "--weights", "int8", "--weights-folder", place.files, "--read-ahead", 5000)),
            ("a checkpoint goes on", saved, train_command("--load", saved, "--steps", "2")),
            ("a checkpoint is exported", saved, [PROGRAM, "export", saved, "out", "--force"])):
        count = place.path / "calls"
        expected = place.done(command, shim(folder, IO_FAULTS_COUNT=count))
        calls = int(count.read_text().split()[0])
        demand(calls > 10, what, "by", calls, "calls")
        tried = range(1, calls + 1) if most == 0 or calls <= most else sorted(chooser.sample(range(1, calls + 1), most))
        ended = 0
        for at in tried:
            done = place.run(command, shim(folder, IO_FAULTS_AT=at, IO_FAULTS_ERRNO=errno.EIO))
            said = done.stderr.decode()
            demand(done.returncode in (0, 1), what, "call", at, "ends with", done.returncode, said)
            if done.returncode == 0:
                # Another way was there: what reads past the page cache goes through it, a lock is not needed.
                demand(done.stdout.decode() == expected or command[1] == "train", what, "call", at, "changes the output")
                continue
            ended += 1
            demand("Input/output error" in said and str(folder) in said, what, "call", at,
                   "the error does not name the file and the reason:", said)
        demand(ended > 0, what, "no run failed")
        print(f"{what}: {len(tried)} of {calls} calls failed, {ended} runs ended", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=12, help="that fail, of each kind; 0: all")
    parser.add_argument("--only", choices=("slices", "experts", "memory", "calls"))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"--seed {options.seed}", flush=True)
    chooser = random.Random(options.seed)
    place = Place()
    try:
        if options.only in (None, "slices"):
            count_slices(place)
        if options.only in (None, "experts"):
            count_experts(place)
        if options.only in (None, "memory"):
            fit_into_memory(place)
        if options.only in (None, "calls"):
            fail_calls(place, chooser, options.calls)
    except Wrong as wrong:
        print(f"FAILED: {wrong}", flush=True)
        return 1
    finally:
        shutil.rmtree(place.path, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
