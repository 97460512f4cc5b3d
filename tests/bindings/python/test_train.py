"""Engines: training, own gradients, scopes, values, checkpoints."""

from __future__ import annotations

import argparse
import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ds

from conftest import CONFIG, SHAPE


def test_training_lowers_the_loss(engine: ds.Engine, dataset: ds.Dataset) -> None:
    before = engine.evaluate(dataset, 4)
    reports = list(engine.train(40))
    assert [report.step for report in reports] == list(range(1, 41))
    assert all(report.applied for report in reports)
    assert reports[-1].loss < 0.7 * reports[0].loss
    assert engine.evaluate(dataset, 4) < 0.7 * before
    assert engine.last_report == reports[-1]
    assert engine.global_steps == 40 and engine.global_samples == 160


def test_the_progress_bar_counts(engine: ds.Engine, capsys: Any) -> None:
    list(engine.train(3, progress=True))
    assert "3/3" in capsys.readouterr().err


def test_a_loop_that_is_left_early_leaves_a_usable_engine(engine: ds.Engine) -> None:
    for report in engine.train(100, progress=True):
        if report.step == 2:
            break
    assert engine.train_batch().step == 3


def test_batches_of_the_caller_give_the_same_step(dataset: ds.Dataset) -> None:
    """Forward, backward and step on the samples of train_batch are train_batch, bit for bit."""
    one, other = ds.Model(SHAPE, seed=1), ds.Model(SHAPE, seed=1)
    first, second = ds.Engine(one, CONFIG), ds.Engine(other, CONFIG)
    first.set_dataset(dataset)
    expected = first.train_batch()
    samples = np.stack([dataset[i].numpy() for i in range(4)])
    loss = second(samples[:, :-1], samples[:, 1:])
    assert loss.shape == () and loss.dtype == "float32"
    second.backward(loss)
    report = second.step()
    assert report.loss == expected.loss and report.tokens == expected.tokens
    for index in range(len(one)):
        assert one.get(index).tobytes() == other.get(index).tobytes()


def test_bool_members_and_names_of_reports(engine: ds.Engine) -> None:
    report = engine.train_batch()
    assert report.applied is True
    assert report._fields[0] == "step" and "struct_size" not in report._fields
    assert "loss=" in repr(report)


def own_model() -> tuple[ds.Model, dict[str, Any]]:
    values = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3) / 10,
        "b": np.zeros(3, dtype=np.float32),
    }
    return ds.Model.from_parameters([ds.Parameter(n, v, lend=True) for n, v in values.items()]), values


SGD = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
}


def test_own_gradients_reach_lent_arrays() -> None:
    model, values = own_model()
    engine = ds.Engine(model, SGD)
    before = copy.deepcopy(values)
    gradient = np.full((2, 3), 2.0, np.float32)
    engine.set_loss(7.5)
    engine.add_gradients({"w": gradient, "b": np.ones(3, np.float32)})
    report = engine.step()
    assert report.loss == 7.5
    assert np.array_equal(values["w"], before["w"] - 1.0)
    assert np.array_equal(values["b"], before["b"] - 0.5)
    engine.add_gradients([gradient])  # by position
    engine.step()
    assert np.array_equal(values["w"], before["w"] - 2.0)
    assert engine.get_values("w").tolist() == values["w"].tolist()


def test_views_are_the_memory_that_trains() -> None:
    """Nothing is copied: the same addresses from step to step, values that change under them."""
    model = ds.Model.from_parameters({"w": np.ones((2, 2), np.float32)})
    engine = ds.Engine(model, SGD)
    weight, gradient = model.view("w"), engine.view_gradient("w")
    array, slope = weight.numpy(), gradient.numpy()
    for step in range(3):
        slope += 1.0
        engine.step()
        assert np.all(slope == 0.0)
        assert np.all(array == 1.0 - 0.5 * (step + 1))
    assert model.view("w").data_ptr == weight.data_ptr == array.__array_interface__["data"][0]
    assert engine.view_gradient("w").data_ptr == gradient.data_ptr


def test_a_gradient_that_is_not_finite_is_told() -> None:
    model, values = own_model()
    engine = ds.Engine(model, SGD)
    gradient = np.zeros((2, 3), np.float32)
    gradient[1, 2] = math.inf
    engine.add_gradients({"w": gradient})
    report = engine.step()
    assert not report.applied and report.first_bad_parameter == model.index("w")
    assert report.first_bad_element == 5 and report.first_bad_value == math.inf


def test_scopes() -> None:
    model, values = own_model()
    engine = ds.Engine(model, SGD)
    with engine.scope(["b", "w"]) as (b, w):
        assert b.shape == (3,) and w.tolist() == values["w"].tolist()
    with engine.scope(["b"], "modify") as (b,):
        b.write([1.0, 2.0, 3.0])
    assert values["b"].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(KeyError):
        with engine.scope(["b"], "modify") as (b,):
            b.write([9.0, 9.0, 9.0])
            raise KeyError
    assert model.get("b").tolist() == [1.0, 2.0, 3.0]
    scope = engine.scope()
    assert len(scope) == 2 and "compute" in repr(scope)
    scope.end()
    with pytest.raises(ds.StateError):
        scope.tensor(0)


def test_values_of_gradients_and_states(engine: ds.Engine) -> None:
    engine.train_batch()
    name = engine.model.names()[0]
    assert engine.optimizer.state_names(name) == ["exp_avg", "exp_avg_sq"]
    moment = engine.get_values(name, "state", "exp_avg")
    assert moment.shape == tuple(engine.model.describe(name).shape)
    engine.set_values(name, np.zeros(moment.shape, np.float32), "state", "exp_avg")
    assert set(engine.get_values(name, "state", "exp_avg", local=True).tolist()) == {0.0}
    assert len(engine.local_range(name)) == moment.size
    with pytest.raises(ValueError, match="gradient"):
        engine.get_values(name, "moment")


def test_resume_is_bitwise(dataset: ds.Dataset, tmp_path: Path) -> None:
    config = {**CONFIG, "gradient_clipping": 1.0}
    whole = ds.Engine(ds.Model(SHAPE, seed=1), config)
    whole.set_dataset(dataset)
    for _ in whole.train(4):
        pass
    half = ds.Engine(ds.Model(SHAPE, seed=1), config)
    half.set_dataset(dataset)
    for _ in half.train(2):
        pass
    half.client_state = {"epoch": 3, "note": "ä"}
    half.set_blob("generator", b"\0\1\2")
    half.save(tmp_path)
    resumed = ds.Engine(ds.Model(SHAPE, seed=9), config)
    resumed.load(tmp_path)
    resumed.set_dataset(dataset)
    assert resumed.client_state == {"epoch": 3, "note": "ä"}
    assert resumed.blob("generator") == b"\0\1\2" and resumed.blobs() == {"generator": 3}
    for _ in resumed.train(2):
        pass
    for index in range(len(whole.model)):
        assert whole.model.get(index).tobytes() == resumed.model.get(index).tobytes()
    ds.checkpoint.verify(tmp_path)
    ds.checkpoint.verify(tmp_path)
    # Damage that a load only sees while it reads, into an engine whose training is given up.
    data = max(tmp_path.glob("global_step2/data-*.bin"), key=lambda file: file.stat().st_size)
    intact = data.read_bytes()
    data.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    with pytest.raises(ds.CorruptError):
        whole.load(tmp_path, "global_step2")
    assert whole.train_batch().step == 5
    with pytest.raises(ds.CorruptError):
        whole.load(tmp_path, "global_step2", restore_on_failure=False)
    with pytest.raises(ds.StateError):
        whole.train_batch()
    data.write_bytes(intact)
    whole.load(tmp_path, restore_on_failure=False)
    assert whole.train_batch().step == 3
    assert "global_step2" in str(ds.checkpoint.inspect(tmp_path)["tags"])
    ds.checkpoint.delete(tmp_path, "global_step2")
    with pytest.raises(ds.NotFoundError):
        resumed.load(tmp_path)


def test_optimizer_and_rates(engine: ds.Engine) -> None:
    optimizer = engine.optimizer
    assert optimizer.lr == pytest.approx(0.003) and optimizer.steps == 0
    optimizer.lr = 0.01
    assert engine.train_batch().lr == 0.01
    assert optimizer.steps == 1 and optimizer.rates() == [0.01]
    assert "lr=0.01" in repr(optimizer)
    engine.close()
    with pytest.raises(ds.StateError):
        optimizer.steps


def test_configurations_come_as_dict_text_or_file(tmp_path: Path) -> None:
    import json

    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    for config in (CONFIG, json.dumps(CONFIG), path, str(path)):
        engine = ds.Engine(ds.Model(SHAPE), config)
        assert engine.train_batch_size() == 4
    path.write_text("{,", encoding="utf-8")
    with pytest.raises(ds.ConfigError, match="ds_config.json"):
        ds.Engine(ds.Model(SHAPE), path)
    engine = ds.Engine(ds.Model(SHAPE), CONFIG, set={"/optimizer/params/lr": 0.5})
    assert engine.get_lr() == [0.5]
    assert engine.config["given"]["train_micro_batch_size_per_gpu"] == 4


def test_questions_without_an_engine() -> None:
    told = ds.config.check({"train_batch_siz": 4})
    assert not told["accepted"] and "train_batch_size" in str(told["problems"])
    assert "properties" in ds.config.schema()
    assert ds.plan({"parameters": 1000000, "layers": 2}, CONFIG, world=2)["stage"] == 0
    assert "cpu" in str(ds.report()).lower()
    assert "process" in ds.memory_report()


def test_reports_and_reprs(engine: ds.Engine, dataset: ds.Dataset) -> None:
    assert repr(engine) == "ds.Engine(step=0, batch=4, zero_stage=0, dtype='float32')"
    assert repr(dataset).startswith("ds.Dataset(samples=")
    assert repr(engine.model).startswith("ds.Model(gpt2: ")
    assert engine.memory_report()
    assert engine.profile() is None
    assert repr(ds.Tokenizer()) == "ds.Tokenizer(vocab_size=256, end_of_text=None)"
    engine.close()
    assert repr(engine) == "ds.Engine(closed)"


def test_frozen_parameters_and_adapters(dataset: ds.Dataset, tmp_path: Path) -> None:
    model = ds.Model(SHAPE, seed=1)
    trainable = model.info.trainable_elements
    model.freeze("*.bias")
    assert model.info.trainable_elements < trainable
    model.unfreeze()
    model.add_lora("all-linear", r=2, lora_alpha=4)
    assert model.info.trainable_elements < trainable
    engine = ds.Engine(model, CONFIG)
    engine.set_dataset(dataset)
    for _ in engine.train(2):
        pass
    model.save_adapter(tmp_path / "adapter")
    other = ds.Model(SHAPE, seed=1)
    other.load_adapter(tmp_path / "adapter")
    engine.close()
    for each in (model, other):
        each.merge_lora()
    for index in range(len(model)):
        assert model.get(index).tobytes() == other.get(index).tobytes()


def test_models_are_written_read_and_copied(model: ds.Model, tmp_path: Path) -> None:
    model.export(tmp_path / "hf")
    model.save(tmp_path / "own")
    for other in (ds.Model.open(tmp_path / "hf"), ds.Model.open(tmp_path / "own"), model.copy()):
        assert other.names() == model.names()
        assert all(
            other.get(i).tobytes() == model.get(i).tobytes() for i in range(len(model))
        )
    state = model.state_dict()
    fresh = ds.Model(SHAPE, seed=5)
    fresh.load_state_dict(state)
    assert fresh.get(0).tobytes() == model.get(0).tobytes()
    assert model.config["n_embd"] == 32 and model.device == "cpu"
    with pytest.raises(ds.NotFoundError, match="wte"):
        model.get("wte.weigth")


def test_data_sets(text_file: Path, tmp_path: Path) -> None:
    dataset = ds.Dataset(path=str(text_file), sequence_length=16)
    assert dataset[0].shape == (17,) and dataset[0].dtype == "int32"
    assert dataset[-1].tolist() == dataset[len(dataset) - 1].tolist()
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    assert len(list(dataset)) == len(dataset)
    tokenizer = ds.Tokenizer.train(text_file.read_text(), 300, special_tokens=["<|endoftext|>"])
    ds.build_dataset(text_file, tmp_path / "built", tokenizer)
    built = ds.Dataset({"path": str(tmp_path / "built"), "sequence_length": 8})
    assert built.sequence_length == 8
    assert ds.Dataset({"path": str(text_file)}, tokenizer, sequence_length=8)
    ds.merge_datasets([tmp_path / "built", tmp_path / "built"], tmp_path / "twice")
    once, twice = ((tmp_path / name).read_bytes() for name in ("built.bin", "twice.bin"))
    assert twice == once * 2


def test_arguments_of_launch_commands(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    assert ds.add_config_arguments(parser) is parser
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", "c.json", "--epochs", "3"])
    assert args.deepspeed is True and args.deepspeed_config == "c.json" and args.epochs == 3
    args = parser.parse_args([])
    assert args.deepspeed is False and args.deepspeed_config is None


def test_boundaries_of_a_ramp_are_reported_alone() -> None:
    config = {**CONFIG, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}
    config["rampup_batch_size"] = [1, 1, 6]
    with ds.Engine(ds.Model(SHAPE), config) as engine:
        assert (engine.train_batch_size(), engine.gradient_accumulation_steps()) == (1, 1)
        with pytest.raises(ds.UnsupportedError, match="rampup_batch_size"):
            engine.is_gradient_accumulation_boundary()


def test_tokenizers(tmp_path: Path) -> None:
    tokenizer = ds.Tokenizer.train("low lower lowest " * 50, 270, special_tokens=["<|end|>"])
    ids = tokenizer.encode("lower low")
    assert ids.dtype == "int32" and tokenizer.decode(ids) == "lower low"
    again = ds.Tokenizer.from_json(tokenizer.to_json())
    assert again.encode("lower low").tolist() == ids.tolist()
    assert again.id_to_token(again.token_to_id("<|end|>")) == "<|end|>"
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), encoding="utf-8")
    assert len(ds.Tokenizer.open(path)) == tokenizer.vocab_size
    assert ds.Tokenizer().encode(b"\xff\0a").tolist() == [255, 0, 97]
    with pytest.raises(ds.NotFoundError):
        tokenizer.token_to_id("no such token")


def test_a_group_of_one() -> None:
    with ds.Comm(0, 1) as comm:
        values = np.ones(4, np.float32)
        assert comm.all_reduce(values).data_ptr == values.__array_interface__["data"][0]
        comm.all_reduce_coalesced([values, values * 2], "max")
        output = np.zeros(4, np.float32)
        comm.all_gather(output, values)
        comm.all_gather_coalesced([output], [values])
        comm.reduce_scatter(output, values)
        comm.reduce_scatter_coalesced([output], [values])
        comm.all_to_all(output, values)
        comm.broadcast(values)
        assert output.tolist() == [1, 1, 1, 1]
        work = comm.start("all_gather", output, values, output_counts=[4], label="x", timeout=5)
        assert work.wait() == 1 and work.test()
        assert comm.shared_tensor((2, 2)).tolist() == [[0, 0], [0, 0]]
        part = comm.split(0)
        assert part is not None and (part.rank, part.size) == (0, 1)
        assert comm.split(-1) is None
        comm.join()
        comm.barrier()
        assert comm.report()["size"] == 1
        assert repr(comm) == "ds.Comm(rank=0, size=1)"
        with pytest.raises(ValueError, match="average"):
            comm.all_reduce(values, "median")
        with pytest.raises(ValueError, match="all_gather"):
            comm.start("all_scatter")
        comm.finalize()


class DefaultStream:
    """What PyTorch says of its default stream."""

    cuda_stream = 0


def test_streams_are_of_gpus(model: ds.Model) -> None:
    model.set_stream(None)
    for stream in (DefaultStream(), 0, 4096):  # CUDA's default stream is one, too
        with pytest.raises(ds.UnsupportedError, match="host memory, which has no streams"):
            model.set_stream(stream)
