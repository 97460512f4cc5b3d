"""Tensors: numbers with shape and type, shared with NumPy, PyTorch and others without a copy."""

from __future__ import annotations

import array
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from . import _native
from ._core import DTYPE_NAMES, device_name, dtype_code
from ._structs import TensorInfo

# Letters of buffers (module struct) to element types; "l" is 64 bits wide on the systems that ds runs on.
_FORMATS = {
    "f": "float32",
    "d": "float64",
    "e": "float16",
    "b": "int8",
    "h": "int16",
    "i": "int32",
    "l": "int64",
    "q": "int64",
    "B": "uint8",
    "H": "uint16",
    "I": "uint32",
    "L": "uint64",
    "Q": "uint64",
    "?": "bool",
}
# In module struct's standard sizes.
_CODES = {name: letter for letter, name in _FORMATS.items() if letter not in "lL"}
_LETTERS = {
    "float32": "<f4",
    "float64": "<f8",
    "float16": "<f2",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "bool": "|b1",
}
_DLPACK = (1, 1)
_CUDA_DEFAULT_STREAM = 1  # as DLPack's protocol for Python numbers it
_NO_STREAM = -1  # nobody waits, for the protocol and for the library


class Tensor:
    """Numbers with shape and type, row-major, in memory of the library or of somebody else.

    `Tensor(shape, dtype)` makes zeros in host memory. `ds.asarray` and `ds.from_dlpack` wrap arrays
    of other libraries without a copy; `numpy()`, `numpy.from_dlpack`, `torch.from_dlpack` and every
    other reader of DLPack see a tensor's own memory.
    """

    __slots__ = ("_handle", "_told", "__weakref__")
    _handle: Any
    _told: Optional[TensorInfo]

    def __init__(self, shape: Sequence[int], dtype: Any = "float32") -> None:
        self._told = None
        sizes = tuple(shape)
        self._handle = _native.ds_tensor_create(dtype_code(dtype), sizes, len(sizes))

    @classmethod
    def _of(cls, handle: Any) -> Tensor:
        tensor = cls.__new__(cls)
        tensor._handle = handle
        tensor._told = None
        return tensor

    def close(self) -> None:
        """Ends the tensor now. Memory that others see lives on until they let go of it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.disown()
            _native.ds_tensor_destroy(handle)

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- What it is ----------------------------------------------------------------------------

    @property
    def info(self) -> TensorInfo:
        """Everything about the tensor but its numbers, in one call."""
        if self._told is None:
            self._told = TensorInfo._make(_native.ds_tensor_describe(self._handle))
        return self._told

    def is_pinned(self) -> bool:
        """Whether its memory is that of `ds.pinned`, locked in its place."""
        return bool(_native.ds_tensor_is_pinned(self._handle))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in elements."""
        return self.info.strides

    @property
    def ndim(self) -> int:
        return self.info.ndim

    @property
    def dtype(self) -> str:
        """The element type by name, such as "float32" or "bfloat16"."""
        return DTYPE_NAMES.get(self.info.dtype, "unknown")

    @property
    def device(self) -> str:
        """Where it lies: "cpu" or such as "cuda:0"."""
        return device_name(self.info.device_kind, self.info.device_index)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.info.elements

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, packed."""
        return self.info.bytes

    @property
    def data_ptr(self) -> int:
        """Address of the first element, in the memory of its device; 0 for none."""
        return self.info.data

    @property
    def read_only(self) -> bool:
        return self.info.read_only

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        if self._handle is None:
            return "ds.Tensor(closed)"
        shown = f"ds.Tensor(shape={self.shape}, dtype={self.dtype!r}, device={self.device!r}"
        if self.read_only:
            shown += ", read_only=True"
        if self.size <= 8 and self.device == "cpu":
            shown += f", values={self.tolist()}"
        return shown + ")"

    # ---- Numbers -------------------------------------------------------------------------------

    def item(self) -> float:
        """The value of a tensor of one element."""
        return float(_native.ds_tensor_item(self._handle))

    def __float__(self) -> float:
        return self.item()

    def tobytes(self) -> bytes:
        """A copy of all elements, packed row-major."""
        buffer = bytearray(self.nbytes)
        _native.ds_tensor_read(self._handle, buffer)
        return bytes(buffer)

    def tolist(self) -> Any:
        """A copy as nested lists of numbers."""
        dtype = self.dtype
        flat: tuple[Any, ...]
        if dtype == "bfloat16":
            # The upper half of a float32, little-endian.
            wide = bytearray(4 * self.size)
            values = self.tobytes()
            wide[2::4], wide[3::4] = values[0::2], values[1::2]
            flat = struct.unpack(f"={self.size}f", wide)
        else:
            flat = struct.unpack(f"={self.size}{_CODES[dtype]}", self.tobytes())
        return _nested(iter(flat), self.shape)

    def write(self, values: Any) -> None:
        """Copies into the tensor: bytes of packed elements, or an array of the same type and size."""
        if isinstance(values, (bytes, bytearray)):
            _native.ds_tensor_write(self._handle, values)
            return
        source = asarray(values, dtype=self.dtype)
        if source.shape != self.shape:
            raise ValueError(f"values of shape {source.shape} for a tensor of shape {self.shape}")
        _native.ds_tensor_write(self._handle, source.tobytes())

    # ---- Exchange without a copy ---------------------------------------------------------------

    @property
    def __array_interface__(self) -> dict[str, Any]:
        info = self.info
        if self.dtype not in _LETTERS or self.device != "cpu":
            raise AttributeError(
                f"NumPy has no arrays of {self.dtype} on {self.device}: torch.from_dlpack takes them"
            )
        width = int(_LETTERS[self.dtype][2])
        return {
            "version": 3,
            "shape": info.shape,
            "typestr": _LETTERS[self.dtype],
            "data": (info.data, info.read_only),
            "strides": tuple(step * width for step in info.strides),
        }

    def numpy(self) -> Any:
        """A NumPy array of the same memory, which it keeps alive; not writable if the tensor is not.
        NumPy has no bfloat16: `torch.from_dlpack(tensor)` shows those."""
        import numpy

        if self.dtype not in _LETTERS or self.device != "cpu":
            raise TypeError(
                f"NumPy has no arrays of {self.dtype} on {self.device}: torch.from_dlpack takes them"
            )
        return numpy.asarray(self)

    def torch(self) -> Any:
        """A PyTorch tensor of the same memory, which it keeps alive."""
        import torch

        return torch.from_dlpack(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.info.device_kind, self.info.device_index

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor lies on {self.device} and is not copied elsewhere")
        source = self._copy() if copy else self
        if max_version is not None and max_version[0] >= 1:
            return _native.ds_tensor_to_dlpack(source._handle, stream)
        if source.read_only:
            raise BufferError(
                "a read-only tensor: the reader asks for DLPack before 1.0, which cannot say so"
            )
        return _native.ds_tensor_to_dlpack_legacy(source._handle, stream)

    def _copy(self) -> Tensor:
        copy = Tensor(self.shape, self.dtype)
        copy.write(self.tobytes())
        return copy


def _nested(values: Iterator[Any], shape: Sequence[int]) -> Any:
    if not shape:
        return next(values)
    return [_nested(values, shape[1:]) for _ in range(shape[0])]


def zeros(shape: Sequence[int], dtype: Any = "float32") -> Tensor:
    """A tensor of zeros in host memory."""
    return Tensor(shape, dtype)


def stream_address(stream: Any) -> Optional[int]:
    """The address of a CUDA stream: a `torch.cuda.Stream`, anything with `cuda_stream` or `ptr`, or a number, as
    DLPack's protocol counts them (1 and 2 are CUDA's default ones; 0 is taken for 1); None stays None."""
    address = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    return _CUDA_DEFAULT_STREAM if address == 0 else address


def from_dlpack(source: Any, *, stream: Any = None, wait: bool = True) -> Tensor:
    """Wraps an array of another library without copying it: any object with `__dlpack__`.

    Memory of a GPU is taken in the order of a CUDA stream: `source` makes `stream` wait for its work on the
    array, on the GPU, and then the host waits for `stream`. `stream` is a `torch.cuda.Stream`, anything with
    `cuda_stream` or `ptr`, or an address; None: CUDA's default stream; -1: nobody waits, because the array is known
    to be ready. With `wait` False the host does not wait: right for a stream that orders the calls that the tensor
    goes to (`Model.set_stream`). Host memory has no streams."""
    address = stream_address(stream)
    arguments: dict[str, Any] = {}
    if source.__dlpack_device__()[0] == _native.DS_DEVICE_CUDA:
        arguments["stream"] = _CUDA_DEFAULT_STREAM if address is None else address
    try:
        capsule = source.__dlpack__(max_version=_DLPACK, **arguments)
    except TypeError:  # a library from before DLPack 1.0
        capsule = source.__dlpack__(**arguments)
    return Tensor._of(_native.tensor_from_capsule(capsule, address if wait else _NO_STREAM))


def in_order(values: Any, stream: Optional[int]) -> Tensor:
    """`asarray` for a call on a model that has a stream of the program's, which orders memory of a GPU with
    that call: the host need not wait."""
    if stream is None or isinstance(values, Tensor) or not hasattr(values, "__dlpack_device__"):
        return asarray(values)
    if values.__dlpack_device__()[0] != _native.DS_DEVICE_CUDA:
        return asarray(values)
    source = values.detach() if hasattr(values, "detach") else values
    return from_dlpack(source, stream=stream, wait=False)


def asarray(values: Any, dtype: Any = None) -> Tensor:
    """A tensor of `values`: shared where they are an array (NumPy, PyTorch, anything with DLPack or a
    writable buffer), copied where they are a number, nested lists, or of another `dtype`.

    Without `dtype` lists of integers become int64 and lists of other numbers float32."""
    if isinstance(values, Tensor):
        tensor = values
    elif hasattr(values, "__dlpack__"):
        try:
            tensor = from_dlpack(values.detach() if hasattr(values, "detach") else values)
        except BufferError:  # a read-only array of a library from before DLPack 1.0: copied
            if not _has_buffer(values):
                raise
            tensor = _from_buffer(values)
    elif _has_buffer(values):
        tensor = _from_buffer(values)
    else:
        return _from_list(values, dtype)
    if dtype is None or dtype_code(dtype) == tensor.info.dtype:
        return tensor
    return _from_list(tensor.tolist(), dtype)


def pinned(shape: Sequence[int], dtype: Any = "float32") -> Tensor:
    """A tensor of zeros in locked memory, in huge pages where it is large: what files are read into and
    written from fastest."""
    sizes = tuple(shape)
    return Tensor._of(_native.ds_pinned_tensor(dtype_code(dtype), sizes, len(sizes)))


def _has_buffer(values: Any) -> bool:
    try:
        with memoryview(values):
            return True
    except TypeError:
        return False


def _from_buffer(values: Any) -> Tensor:
    with memoryview(values) as view:
        letter = view.format.lstrip("@=<")
        if letter not in _FORMATS:
            raise TypeError(f"a buffer of format {view.format!r} is no tensor")
        code = dtype_code(_FORMATS[letter])
        shape, steps = view.shape or (), view.strides or ()
        width = view.itemsize
        if view.readonly:
            tensor = Tensor(shape, _FORMATS[letter])
            tensor.write(view.tobytes())
            return tensor
    if any(step % width for step in steps):
        raise TypeError("a buffer whose elements do not lie on a grid of whole elements")
    strides = [step // width for step in steps]
    return Tensor._of(_native.tensor_from_buffer(values, code, shape, strides, len(shape)))


def _from_list(values: Any, dtype: Any) -> Tensor:
    shape: list[int] = []
    level = values
    while isinstance(level, (list, tuple, range)):
        shape.append(len(level))
        level = level[0] if len(level) else 0.0
    flat: list[Any] = []
    _flatten(values, shape, 0, flat)
    if dtype is None:
        dtype = "int64" if flat and all(isinstance(x, int) for x in flat) else "float32"
    name = DTYPE_NAMES[dtype_code(dtype)]
    tensor = Tensor(shape, name)
    if name == "bfloat16":
        tensor.write(_to_bfloat16(flat))
    else:
        numbers = flat if name.startswith("float") or name == "bool" else [int(x) for x in flat]
        tensor.write(struct.pack(f"={len(numbers)}{_CODES[name]}", *numbers))
    return tensor


def _flatten(values: Any, shape: Sequence[int], depth: int, flat: list[Any]) -> None:
    if depth == len(shape):
        if isinstance(values, (list, tuple, range)):
            raise ValueError("nested lists of different depths")
        flat.append(values)
        return
    if not isinstance(values, (list, tuple, range)) or len(values) != shape[depth]:
        raise ValueError("nested lists of different lengths")
    for value in values:
        _flatten(value, shape, depth + 1, flat)


def _to_bfloat16(flat: Sequence[float]) -> bytes:
    """The upper halves of float32 numbers, rounded to the nearest, ties to even."""
    out = bytearray()
    for bits in memoryview(array.array("f", flat).tobytes()).cast("I"):
        if bits & 0x7FFFFFFF > 0x7F800000:  # NaN stays NaN
            rounded = (bits >> 16) | 0x40
        else:
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        out += rounded.to_bytes(2, "little")
    return bytes(out)


def flatten(tensors: Sequence[Any]) -> Tensor:
    """A copy of tensors of one type, one after another, of one dimension."""
    held = [asarray(tensor) for tensor in tensors]
    return Tensor._of(_native.ds_tensor_flatten([t._handle for t in held], len(held)))


def unflatten(flat: Any, like: Sequence[Any]) -> list[Tensor]:
    """Views of the pieces of a flat tensor with the shapes of others, without a copy."""
    held = [asarray(tensor) for tensor in like]
    made = _native.tensor_unflatten(
        asarray(flat)._handle, [t._handle for t in held], len(held)
    )
    return [Tensor._of(handle) for handle in made]


def quantize(tensor: Any, bits: int = 8, block_size: int = 256) -> tuple[Tensor, Tensor]:
    """Codes (uint8) and scales (float32, one per block) of a tensor in 8 or 4 bits."""
    codes, scales = _native.ds_tensor_quantize(asarray(tensor)._handle, bits, block_size)
    return Tensor._of(codes), Tensor._of(scales)


def dequantize(codes: Any, scales: Any, output: Any, bits: int = 8, block_size: int = 256) -> Tensor:
    """Writes code * scale to every element of `output`, whose size says how many codes there are."""
    target = asarray(output)
    _native.ds_tensor_dequantize(
        asarray(codes)._handle, asarray(scales)._handle, bits, block_size, target._handle
    )
    return target


def quantize_groups(
    tensor: Any, bits: int = 8, group_size: int = 128, *, asymmetric: bool = False, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    """Codes (uint8) and scales (float32) of a tensor by groups of an even number of elements.

    Asymmetric groups have minima, in the second row of the scales. A seed means stochastic
    rounding, whose mean is the element; without one numbers are rounded to the nearest.
    """
    codes, scales = _native.ds_tensor_quantize_groups(
        asarray(tensor)._handle, bits, group_size, asymmetric, -1 if seed is None else seed
    )
    return Tensor._of(codes), Tensor._of(scales)


def dequantize_groups(
    codes: Any, scales: Any, output: Any, bits: int = 8, group_size: int = 128
) -> Tensor:
    """Writes what the codes stand for to every element of `output`."""
    target = asarray(output)
    _native.ds_tensor_dequantize_groups(
        asarray(codes)._handle, asarray(scales)._handle, bits, group_size, target._handle
    )
    return target


def fake_quantize(
    tensor: Any, bits: int = 8, group_size: int = 128, *, asymmetric: bool = False, seed: int | None = None
) -> Tensor:
    """A tensor after quantize_groups and dequantize_groups."""
    made = _native.ds_tensor_fake_quantize(
        asarray(tensor)._handle, bits, group_size, asymmetric, -1 if seed is None else seed
    )
    return Tensor._of(made)


def softmax(scores: Any, mask: Any = None, scale: float = 1.0, *, causal: bool = False) -> Tensor:
    """softmax(scale * scores) along the last dimension; the mask (uint8) is 0 where a key is hidden."""
    hides = None if mask is None else asarray(mask)
    handle = None if hides is None else hides._handle
    return Tensor._of(_native.ds_tensor_softmax(asarray(scores)._handle, handle, scale, causal))


def softmax_backward(softmax: Any, gradient: Any, scale: float = 1.0) -> Tensor:
    """The gradient of `softmax` with respect to its scores, from its result and that's gradient."""
    return Tensor._of(
        _native.ds_tensor_softmax_backward(
            asarray(softmax)._handle, asarray(gradient)._handle, scale
        )
    )


def split_heads(packed: Any, heads: int, bias: Any = None, parts: int = 1) -> Tensor:
    """[parts, batch, heads, tokens, size] of packed projections [batch, tokens, ...], plus a bias."""
    added = None if bias is None else asarray(bias)
    handle = None if added is None else added._handle
    return Tensor._of(
        _native.ds_tensor_split_heads(asarray(packed)._handle, handle, parts, heads)
    )


def merge_heads(split: Any) -> Tensor:
    """The inverse of split_heads without a bias."""
    return Tensor._of(_native.ds_tensor_merge_heads(asarray(split)._handle))
