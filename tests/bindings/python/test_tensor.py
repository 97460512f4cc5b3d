"""Tensors: exchange without copies, proved by addresses; lifetimes; values."""

from __future__ import annotations

import array
import gc
import math
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import ds

NUMPY_TYPES = [
    "float32", "float64", "float16", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip


def address(values: Any) -> int:
    return int(values.__array_interface__["data"][0])


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_numpy_array_becomes_a_tensor_without_a_copy(dtype: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = ds.from_dlpack(values)
    assert tensor.data_ptr == address(values)
    assert (tensor.shape, tensor.dtype, tensor.device) == ((2, 3), dtype, "cpu")
    assert tensor.tolist() == values.tolist()


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_tensor_becomes_a_numpy_array_without_a_copy(dtype: str) -> None:
    tensor = ds.zeros((2, 3), dtype)
    for values in (tensor.numpy(), np.from_dlpack(tensor), np.asarray(tensor)):
        assert address(values) == tensor.data_ptr
        assert (values.shape, values.dtype.name) == ((2, 3), dtype)
    tensor.numpy()[1, 2] = 1
    assert tensor.tolist() == [[0, 0, 0], [0, 0, 1]]


def test_strided_views_keep_their_steps() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, 1::2]
    tensor = ds.from_dlpack(values)
    assert tensor.data_ptr == address(values)
    assert tensor.strides == (12, 2)
    assert tensor.tolist() == values.tolist()
    assert np.array_equal(tensor.numpy(), values)


def test_old_dlpack_is_read_and_written() -> None:
    class Old:
        """A library from before DLPack 1.0: it knows no max_version."""

        def __init__(self, values: np.ndarray[Any, Any]) -> None:
            self.values = values

        def __dlpack__(self, stream: Any = None) -> Any:
            return self.values.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    values = np.arange(4, dtype=np.float32)
    tensor = ds.from_dlpack(Old(values))
    assert tensor.data_ptr == address(values)
    assert "dltensor_versioned" not in repr(tensor.__dlpack__())
    assert "dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 0)))


class OnGpu:
    """Says that it lies on a GPU, and keeps which streams it was asked to order its work with."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: Any, max_version: Any = None) -> Any:
        self.asked.append(stream)
        return self.values.__dlpack__(max_version=max_version)


class Stream:
    def __init__(self, cuda_stream: int) -> None:
        self.cuda_stream = cuda_stream


@pytest.mark.parametrize(
    ("given", "asked"),
    [({}, 1), ({"stream": -1}, -1)]
    + [({"stream": s, "wait": False}, a) for s, a in ((None, 1), (0, 1), (2, 2), (Stream(4096), 4096))],
)  # fmt: skip
def test_a_producer_hears_the_stream(given: Any, asked: int) -> None:
    source = OnGpu(np.arange(3, dtype=np.float32))
    assert ds.from_dlpack(source, **given).tolist() == [0, 1, 2]
    assert source.asked == [asked]


@pytest.mark.parametrize("stream", [0, 4096, Stream(0), Stream(4096)])
def test_the_library_hears_the_stream_that_it_waits_for(stream: Any) -> None:
    source = OnGpu(np.arange(3, dtype=np.float32))
    owners = sys.getrefcount(source.values)
    with pytest.raises(ds.InvalidArgumentError, match="host memory has no streams") as refused:
        ds.from_dlpack(source, stream=stream)  # what came is not on a GPU
    del refused
    gc.collect()
    assert source.asked == [getattr(stream, "cuda_stream", stream) or 1]
    left = sys.getrefcount(source.values)
    assert left == owners  # what was not taken was given back
    with pytest.raises(ds.InvalidArgumentError, match="host memory has no streams"):
        ds.from_dlpack(source.values, stream=stream)


def test_calls_take_arrays_in_the_order_of_the_models_stream() -> None:
    model = ds.Model.from_parameters({"w": [0.0, 0.0]})
    engine = ds.Engine(model, {"train_micro_batch_size_per_gpu": 1})
    source = OnGpu(np.ones(2, np.float32))
    engine.add_gradients([source])
    model._stream = 4096  # as set_stream leaves it for a model on a GPU
    engine.add_gradients({"w": source})
    engine.set_values("w", source)
    model.set("w", source)
    engine.add_gradients([source.values])  # host memory has no order
    assert source.asked == [1, 4096, 4096, 4096]
    assert engine.view_gradient("w").tolist() == [3, 3]
    assert model.get("w").tolist() == [1, 1]


def test_capsules_that_nobody_takes_end() -> None:
    for _ in range(100):
        tensor = ds.zeros((4,))
        tensor.__dlpack__()
        tensor.__dlpack__(max_version=(1, 1))


def test_a_capsule_is_taken_once() -> None:
    class Once:
        capsule = np.zeros(3, np.float32).__dlpack__(max_version=(1, 1))

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    source = Once()
    ds.from_dlpack(source)
    with pytest.raises(ValueError):
        ds.from_dlpack(source)


def test_buffers_are_wrapped_without_a_copy() -> None:
    values = array.array("i", [1, 2, 3])
    tensor = ds.asarray(values)
    assert tensor.data_ptr == values.buffer_info()[0]
    values[0] = 7
    assert tensor.tolist() == [7, 2, 3]
    with pytest.raises(BufferError):  # the tensor holds its memory
        values.append(4)
    tensor.close()
    gc.collect()
    values.append(4)


def test_memory_lives_as_long_as_somebody_sees_it() -> None:
    class Owner(bytearray):
        pass

    owner = Owner(b"\1\2\3")
    gone = weakref.ref(owner)
    tensor = ds.asarray(owner)
    view = tensor.numpy()
    del owner, tensor
    gc.collect()
    assert gone() is not None
    assert view.tolist() == [1, 2, 3]
    del view
    gc.collect()
    assert gone() is None


def test_numpy_memory_outlives_the_array() -> None:
    tensor = ds.from_dlpack(np.full((1000,), 3.0, np.float32))
    gc.collect()
    assert set(tensor.tolist()) == {3.0}


def test_read_only_arrays_stay_read_only() -> None:
    values = np.arange(3, dtype=np.float32)
    values.flags.writeable = False
    tensor = ds.asarray(values)
    assert tensor.read_only and tensor.data_ptr == address(values)
    assert not tensor.numpy().flags.writeable
    with pytest.raises(BufferError):
        tensor.__dlpack__()
    with pytest.raises(ds.StateError):
        tensor.write([1.0, 2.0, 3.0])
    assert ds.asarray(b"\1\2").tolist() == [1, 2]


def test_lists_become_tensors() -> None:
    assert ds.asarray([[1, 2], [3, 4]]).dtype == "int64"
    assert ds.asarray([[1, 2.5]]).dtype == "float32"
    assert ds.asarray(3).shape == ()
    assert ds.asarray([1, 0], dtype="bool").tolist() == [True, False]
    assert ds.asarray([1, 2], dtype=np.dtype("int16")).dtype == "int16"
    assert ds.asarray([1.5], dtype="float16").item() == 1.5
    assert ds.asarray([], dtype="int32").shape == (0,)
    with pytest.raises(ValueError, match="different lengths"):
        ds.asarray([[1, 2], [3]])
    with pytest.raises(ValueError, match="no element type"):
        ds.asarray([1], dtype="float128")


def test_bfloat16_rounds_to_even_and_comes_back() -> None:
    values = [1.0, -2.5, 3.0e38, 1.00390625, 1.01171875, math.inf]
    tensor = ds.asarray(values, dtype="bfloat16")
    assert tensor.tolist() == [1.0, -2.5, tensor.tolist()[2], 1.0, 1.015625, math.inf]
    assert abs(tensor.tolist()[2] / 3.0e38 - 1) < 2**-8
    assert math.isnan(ds.asarray([math.nan], dtype="bfloat16").tolist()[0])
    with pytest.raises(TypeError, match="torch.from_dlpack"):
        tensor.numpy()


def test_flatten_and_unflatten_share_memory() -> None:
    parts = [np.arange(3, dtype=np.float32), np.ones((2, 2), np.float32)]
    flat = ds.flatten(parts)
    assert flat.tolist() == [0, 1, 2, 1, 1, 1, 1]
    views = ds.unflatten(flat, parts)
    assert [view.shape for view in views] == [(3,), (2, 2)]
    assert views[1].data_ptr == flat.data_ptr + 12
    with pytest.raises(ds.InvalidArgumentError):
        ds.unflatten(flat, parts[:1])


def test_quantized_numbers_come_back_within_half_a_step() -> None:
    values = np.linspace(-1, 1, 512, dtype=np.float32)
    for bits in (8, 4):
        codes, scales = ds.quantize(values, bits, 64)
        back = ds.dequantize(codes, scales, np.empty_like(values), bits, 64).numpy()
        assert np.abs(back - values).max() <= 1.0 / 2 ** (bits - 1)


def test_groups_come_back_within_half_a_step_or_a_step() -> None:
    values = np.linspace(0.5, 2, 256, dtype=np.float32)
    for asymmetric, steps in ((False, 127), (True, 255)):
        codes, scales = ds.quantize_groups(values, 8, 64, asymmetric=asymmetric)
        assert scales.shape == ((2, 4) if asymmetric else (4,))
        back = ds.dequantize_groups(codes, scales, np.empty_like(values), 8, 64).numpy()
        assert np.array_equal(back, ds.fake_quantize(values, 8, 64, asymmetric=asymmetric).numpy())
        assert np.abs(back - values).max() <= 0.5 * 2 / steps + 1e-6
        drawn = ds.fake_quantize(values, 8, 64, asymmetric=asymmetric, seed=3).numpy()
        assert np.abs(drawn - values).max() <= 2 / steps + 1e-6
        assert not np.array_equal(drawn, back)


def test_softmax_and_heads() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    mask = np.ones((1, 3, 4), np.uint8)
    mask[..., 1] = 0
    y = ds.softmax(scores, mask, 0.5, causal=True).numpy()
    seen = np.logical_and(mask != 0, np.tril(np.ones((3, 4)), 1))
    exact = np.exp(0.5 * scores) * seen
    exact /= exact.sum(-1, keepdims=True)
    assert np.abs(y - exact).max() < 1e-6
    dy = np.ones_like(y)
    assert np.abs(ds.softmax_backward(y, dy, 0.5).numpy()).max() < 1e-6  # rows sum to 1 anyway
    packed = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    split = ds.split_heads(packed, 2, np.ones(8, np.float32), parts=2)
    assert np.array_equal(
        split.numpy(), (packed + 1).reshape(2, 3, 2, 2, 2).transpose(2, 0, 3, 1, 4)
    )
    assert np.array_equal(ds.merge_heads(ds.split_heads(packed, 4)).numpy(), packed)


def test_experts_choose_dispatch_and_combine() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(10, 4)).astype(np.float32)
    gate = ds.experts.gate(logits, top_k=2, route_norm=True)
    scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    best = np.argsort(-scores, axis=1)[:, :2]
    assert np.array_equal(gate.chosen.numpy(), best)
    weights = np.take_along_axis(scores, best, 1)
    weights /= weights.sum(1, keepdims=True)
    assert np.abs(gate.weights.numpy() - weights).max() < 1e-6
    counts = np.bincount(best.ravel(), minlength=4)
    assert gate.counts.numpy().tolist() == [counts.tolist()] * 3
    assert abs(gate.losses.numpy()[0] - 4 * (scores.mean(0) * counts / counts.sum()).sum()) < 1e-5
    routes = ds.experts.sort(gate.chosen, 4)
    assert routes.offsets.numpy().tolist() == [0, *np.cumsum(counts)]
    x = rng.normal(size=(10, 3)).astype(np.float32)
    rows = ds.experts.dispatch(x, routes.order, 2)
    y = ds.experts.combine(rows, routes.places, gate.weights)
    assert np.abs(y.numpy() - x).max() < 1e-6  # the weights of a token add up to 1
    dweights = ds.experts.weights_backward(rows, routes.places, x).numpy()
    assert np.abs(dweights - (x * x).sum(1, keepdims=True)).max() < 1e-5
    dx = ds.experts.gate_backward(
        logits, gate.chosen, gate.counts, np.ones_like(weights), top_k=2, route_norm=True
    )
    assert np.abs(dx.numpy()).max() < 1e-6  # whatever the logits, they add up to 1
    with pytest.raises(ds.ConfigError, match="did you mean"):
        ds.experts.gate(logits, topk=2)


def test_repr_tells_what_it_is() -> None:
    assert repr(ds.zeros((2,))) == (
        "ds.Tensor(shape=(2,), dtype='float32', device='cpu', values=[0.0, 0.0])"
    )
    assert "values" not in repr(ds.zeros((100,)))
    tensor = ds.zeros((1,))
    tensor.close()
    assert repr(tensor) == "ds.Tensor(closed)"
    tensor.close()
