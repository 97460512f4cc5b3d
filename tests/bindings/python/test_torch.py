"""PyTorch: exchange without copies, modules under the engine at every ZeRO stage. Needs torch 2.1
(scripts/test-python --torch)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ds

from conftest import ROOT, SHAPE

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test-python --torch")

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool"])
def test_tensors_are_shared_both_ways(dtype: str) -> None:
    theirs = torch.ones(2, 3, dtype=getattr(torch, dtype))
    ours = ds.asarray(theirs)
    assert ours.data_ptr == theirs.data_ptr() and ours.dtype == dtype
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == theirs.data_ptr() and back.dtype == theirs.dtype
    assert ours.torch().data_ptr() == theirs.data_ptr()
    theirs[1, 2] = 0
    assert ours.tolist()[1][2] == 0
    del theirs, back
    assert ours.tolist()[0] == [1, 1, 1]


def test_views_and_gradients() -> None:
    theirs = torch.arange(12.0).reshape(3, 4).t()
    assert ds.asarray(theirs).strides == (1, 4)
    leaf = torch.ones(3, requires_grad=True)
    assert ds.asarray(leaf).data_ptr == leaf.data_ptr()


def mlp(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 1)
    )


def batches(count: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 8, 10, generator=generator)
    return zip(x, x.sum(2, keepdim=True))


def train(engine: Any, count: int = 40) -> None:
    for x, y in batches(count):
        engine.backward(torch.nn.functional.mse_loss(engine(x), y))
        engine.step()


def test_a_module_trains_as_under_torch_optim() -> None:
    module, reference = mlp(), mlp()
    engine, optimizer, _, schedule = ds.initialize(model=module, config=CONFIG)
    theirs = torch.optim.AdamW(reference.parameters(), lr=0.01, weight_decay=0.01)
    for number, (x, y) in enumerate(batches(40)):
        assert engine.is_gradient_accumulation_boundary() == (number % 2 == 1)
        engine.backward(torch.nn.functional.mse_loss(engine(x), y))
        engine.step()
        (torch.nn.functional.mse_loss(reference(x), y) / 2).backward()
        if number % 2 == 1:
            theirs.step()
            theirs.zero_grad()
    for ours, other in zip(module.parameters(), reference.parameters()):
        assert (ours - other).abs().max().item() < 2e-5
    assert engine.global_steps == 20 and optimizer.steps == 20
    assert engine.get_lr() == [pytest.approx(0.01)] == schedule.get_last_lr()
    assert engine.last_report.loss > 0 and engine.get_global_grad_norm() > 0
    assert engine.module is module and engine.train_batch_size() == 16


def test_gradients_gather_where_the_engine_keeps_them() -> None:
    """No copy: PyTorch adds to the engine's memory, and updates arrive in the module's own."""
    module = mlp()
    places = [parameter.data_ptr() for parameter in module.parameters()]
    engine, *_ = ds.initialize(model=module, config=CONFIG)
    train(engine, 4)
    assert places == [parameter.data_ptr() for parameter in module.parameters()]
    for index, parameter in enumerate(module.parameters()):
        assert parameter.grad.data_ptr() == engine.view_gradient(index).data_ptr
    # Gradients that a program throws away or replaces are taken all the same.
    module.zero_grad(set_to_none=True)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    train(engine, 2)
    assert all((a != b).any() for a, b in zip(before, module.parameters()))


def test_resume_with_buffers_is_bitwise(tmp_path: Path) -> None:
    whole = mlp()
    engine, *_ = ds.initialize(model=whole, config=CONFIG)
    data = list(batches(12))
    for x, y in data[:6]:
        engine.backward(torch.nn.functional.mse_loss(engine(x), y))
        engine.step()
    engine.save_checkpoint(tmp_path, client_state={"epoch": 1})
    other = mlp(seed=7)
    resumed, *_ = ds.initialize(model=other, config=CONFIG)
    place, state = resumed.load_checkpoint(tmp_path)
    assert state == {"epoch": 1} and os.path.isdir(place)
    for run in (engine, resumed):
        for x, y in data[6:]:
            run.backward(torch.nn.functional.mse_loss(run(x), y))
            run.step()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert resumed.load_checkpoint(tmp_path / "nothing") == (None, None)


@pytest.mark.parametrize("section", ["bf16", "fp16"])
def test_precisions_of_16_bits(section: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    config = {**CONFIG, section: {"enabled": True}}
    engine, *_ = ds.initialize(model=module, config=config)
    dtype = torch.bfloat16 if section == "bf16" else torch.float16
    assert all(parameter.dtype == dtype for parameter in module.parameters())
    assert engine.bfloat16_enabled() == (section == "bf16")
    losses = []
    for x, y in batches(120):
        loss = torch.nn.functional.mse_loss(engine(x.to(dtype)).float(), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    # The masters are float32; the module has them rounded.
    master = engine.get_values(0).torch()
    first = next(module.parameters())
    assert torch.equal(master.to(dtype), first) and not torch.equal(master, first.float())


def test_groups_and_frozen_parameters() -> None:
    module = mlp()
    first, last = module[0], module[3]
    before = [parameter.detach().clone() for parameter in module.parameters()]
    groups = [
        {"params": [first.weight], "lr": 0.5},
        {"params": list(last.parameters()), "weight_decay": 0.0},
    ]
    engine, *_ = ds.initialize(model=module, config=CONFIG, model_parameters=groups)
    assert sorted(engine.get_lr()) == [0.01, 0.01, 0.5]
    train(engine, 2)
    changed = [bool((a != b).any()) for a, b in zip(before, module.parameters())]
    assert changed == [True, False, False, False, True, True]


def test_what_is_not_meant_is_refused() -> None:
    module = mlp()
    with pytest.raises(TypeError, match="configuration"):
        ds.initialize(model=module, config=CONFIG, optimizer=torch.optim.SGD(module.parameters(), 0.1))
    with pytest.raises(TypeError, match="config"):
        ds.initialize(model=module)
    with pytest.raises(ds.ConfigError):
        ds.initialize(model=module, config={**CONFIG, "optimiser": {}})


def test_a_data_set_of_torch_becomes_micro_batches() -> None:
    x = torch.randn(20, 10)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    engine, _, loader, _ = ds.initialize(model=mlp(), config=CONFIG, training_data=data)
    assert [len(inputs) for inputs, _ in loader] == [8, 8, 4]


def test_init_inference_takes_and_gives_torch() -> None:
    engine = ds.init_inference(ds.Model(SHAPE, seed=1), dtype=torch.bfloat16)
    ids = engine.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3)
    assert isinstance(ids, torch.Tensor) and ids.shape == (1, 6)


# A network with what makes ZeRO stage 3 hard: tied weights, a module that is used twice, a parameter that
# no loss depends on, frozen ones, a forward whose saved tensors are views of weights.
WORKER = """
import json, os, sys
import torch
import ds

ds.set_log_level("error")
torch.set_num_threads(1)
stage, precision, output = int(sys.argv[1]), sys.argv[2], sys.argv[3]

class Block(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = torch.nn.LayerNorm(n)
        self.up = torch.nn.Linear(n, 4 * n)
        self.down = torch.nn.Linear(4 * n, n)
        self.scale = torch.nn.Parameter(torch.ones(n))
    def forward(self, x):
        return x + self.scale * self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

class Net(torch.nn.Module):
    def __init__(self, v=50, n=16):
        super().__init__()
        self.embed = torch.nn.Embedding(v, n)
        self.frozen = torch.nn.Linear(n, n)
        self.frozen.requires_grad_(False)
        self.blocks = torch.nn.ModuleList(Block(n) for _ in range(3))
        self.head = torch.nn.Linear(n, v, bias=False)
        self.head.weight = self.embed.weight
        self.unused = torch.nn.Linear(n, n)
    def forward(self, ids):
        x = self.frozen(self.embed(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(self.blocks[0](x))

torch.manual_seed(int(os.environ.get("RANK", 0)))  # rank 0's values count
config = {
    "train_batch_size": 8, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": stage},
}
if precision != "fp32":
    config[precision] = {"enabled": True}
engine, *_ = ds.initialize(model=Net(), config=config)
rank, world = engine.global_rank, engine.world_size
data = torch.randint(0, 50, (10, 8, 9), generator=torch.Generator().manual_seed(5))

def loss_of(rows):
    logits = engine(rows[:, :-1]).float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, 50), rows[:, 1:].reshape(-1))

share = 4 // world
for step in range(20):
    for micro in range(2):
        rows = data[step % 10][micro * 4 + rank * share : micro * 4 + (rank + 1) * share]
        engine.backward(loss_of(rows))
        report = engine.step()
    if step == 9:
        engine.save_checkpoint(output)
        engine.load_checkpoint(output)
values = {name: engine.get_values(name).tolist() for name in engine.model.names()}
engine.eval()
with torch.no_grad():
    evaluated = loss_of(data[0]).item()
if rank == 0:
    print(json.dumps({"values": values, "loss": report.loss, "evaluated": evaluated, "world": world,
                      "stage": engine.zero_optimization_stage()}))
engine.close()
"""


def launch(folder: Path, ranks: int, stage: int, precision: str = "fp32") -> dict[str, Any]:
    program = folder / "worker.py"
    program.write_text(WORKER, encoding="utf-8")
    arguments = [str(program), str(stage), precision, str(folder / f"{ranks}.{stage}.{precision}")]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        arguments = launcher + arguments
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert (told["world"], told["stage"]) == (ranks, stage)
    return told


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(
        float((torch.tensor(one["values"][name]) - torch.tensor(values)).abs().max())
        for name, values in other["values"].items()
    )


def test_zero_under_torchrun_trains_as_one_process(tmp_path: Path) -> None:
    """Stages 1 to 3 of two ranks have the same bits; one process differs by the order of sums."""
    alone = launch(tmp_path, 1, 0)
    sharded = [launch(tmp_path, 2, stage) for stage in (1, 2, 3)]
    assert all(difference(sharded[0], other) == 0.0 for other in sharded)
    assert difference(alone, sharded[0]) < 2e-3
    assert all(abs(other["evaluated"] - alone["evaluated"]) < 2e-3 for other in sharded)


def test_zero_stage_3_in_bf16(tmp_path: Path) -> None:
    fp32, bf16 = launch(tmp_path, 1, 0), launch(tmp_path, 2, 3, "bf16")
    assert abs(fp32["evaluated"] - bf16["evaluated"]) < 0.1


def test_a_parameter_outside_of_its_module_is_told(tmp_path: Path) -> None:
    """At stage 3 a placeholder is never computed with silently."""
    program = tmp_path / "outside.py"
    program.write_text(
        """
import torch, ds
ds.set_log_level("off")
class Outside(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.first = torch.nn.Linear(4, 4)
    def forward(self, x):
        return torch.nn.functional.linear(self.first(x), self.inner.weight)
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}
engine, *_ = ds.initialize(model=Outside(), config=config)
try:
    engine(torch.ones(1, 4))
except RuntimeError as error:
    if engine.global_rank == 0:
        print(error)
""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "outside the forward" in done.stdout, done.stderr


def test_the_example(tmp_path: Path) -> None:
    program = ROOT / "examples" / "python" / "torch_module.py"
    for launcher in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]):
        done = subprocess.run(
            [sys.executable, *launcher, str(program), "3", "48"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert float(done.stdout.split("loss")[1]) < 0.2


def test_experts_that_ranks_share_learn_as_those_of_one(tmp_path: Path) -> None:
    program = ROOT / "examples" / "python" / "expert_parallel.py"
    losses = []
    for launcher in ([], *(["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"] for n in (2, 4))):
        done = subprocess.run(
            [sys.executable, *launcher, str(program), "40", "0"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        losses.append([float(line.split("loss")[1]) for line in done.stdout.splitlines()])
    one, *others = losses
    assert len(one) == 4 and one[-1] < 0.6 * one[0]
    for other in others:
        assert max(abs(a - b) for a, b in zip(one, other)) < 2e-4
