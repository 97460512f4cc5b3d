"""Every name of ds.h is reachable, or left out on purpose."""

from __future__ import annotations

import re

import ds
from ds import _native

from conftest import ROOT

# C names that the package does not call by these names, with the reason.
LEFT_OUT = {
    "ds_last_error_message": "every exception carries it, fetched within the call that failed",
    "ds_string_free": "texts are freed where they arrive, in the extension",
    "ds_allocator_set": "Python code inside every allocation of a device: for C programs with a pool",
    "ds_pinned_allocate": "ds.pinned makes tensors, which any library sees as arrays",
    "ds_pinned_free": "the memory goes with its last tensor",
    "ds_pinned_contains": "Tensor.is_pinned",
    "ds_tensor_from_buffer": "_native.tensor_from_buffer, which holds the Python object",
    "ds_tensor_unflatten": "_native.tensor_unflatten, which makes a list",
    "ds_tensor_from_dlpack": "_native.tensor_from_capsule takes both kinds of capsule",
    "ds_tensor_from_dlpack_legacy": "_native.tensor_from_capsule takes both kinds of capsule",
}
HEADERS = sorted((ROOT / "include" / "ds").glob("*.h"))
FUNCTION = re.compile(r"^(?:DS_EXPERIMENTAL )?DS_API [^;(]*?\b(ds_\w+)\(", re.M)
CONSTANT = re.compile(r"^  (DS_\w+) = -?\d+", re.M)


def names(pattern: re.Pattern[str]) -> set[str]:
    return {
        name for header in HEADERS for name in pattern.findall(header.read_text(encoding="utf-8"))
    }


def test_every_function_is_called_by_the_package_or_left_out() -> None:
    functions = names(FUNCTION)
    assert len(functions) > 140
    package = ROOT / "bindings" / "python" / "src" / "ds"
    text = "".join(file.read_text(encoding="utf-8") for file in package.glob("*.py"))
    called = set(re.findall(r"_native\.(ds_\w+)", text))
    assert functions - called == set(LEFT_OUT)
    assert called - functions == {
        "ds_batch", "ds_collective", "ds_generate_options", "ds_io_transfer", "ds_parameter", "ds_prompts", "ds_store"
    }  # fmt: skip
    for name in called:
        assert hasattr(_native, name)


def test_functions_are_those_that_the_library_exports() -> None:
    symbols = ROOT / "tests" / "abi" / "ds.symbols"
    assert set(symbols.read_text(encoding="utf-8").split()) == names(FUNCTION)


def test_every_constant_is_reachable() -> None:
    constants = names(CONSTANT)
    assert len(constants) > 50
    assert [name for name in sorted(constants) if not hasattr(_native, name)] == []


def test_everything_public_is_documented() -> None:
    for name in ds.__all__:
        thing = getattr(ds, name)
        assert thing.__doc__, name
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert value.__doc__ or member in SELF_EVIDENT, f"{name}.{member}"


SELF_EVIDENT = {
    "info", "shape", "ndim", "read_only", "device", "global_rank", "local_rank", "world_size",
    "gradient_accumulation_steps", "zero_optimization_stage", "zero_optimization",
    "bfloat16_enabled", "fp16_enabled", "get_last_lr", "status",
}  # fmt: skip
