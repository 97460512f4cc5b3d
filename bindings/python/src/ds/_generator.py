"""Generators: run a model without training it."""

from __future__ import annotations

import queue
import threading
from collections import abc
from collections.abc import Iterable
from typing import Any, Callable, Mapping, Optional, Union

from . import _native
from ._comm import Comm
from ._core import Handle, options
from ._errors import InvalidArgumentError
from ._model import Model, ParameterKey
from ._signals import interruptible
from ._structs import GeneratorInfo
from ._tensor import Tensor, asarray
from ._tokenizer import Tokenizer

_FORMS = {
    getattr(_native, name): name[len("DS_WEIGHTS_") :].lower()
    for name in dir(_native)
    if name.startswith("DS_WEIGHTS_")
}


class _TextEnded(Exception):
    """`on_token` returned False."""


def make_batch(**tensors: Any) -> tuple[Any, list[Tensor]]:
    """A ds_batch and what it points to, which the caller keeps for the call."""
    batch = _native.ds_batch()
    kept = []
    for member, values in tensors.items():
        if values is not None:
            tensor = asarray(values)
            setattr(batch, member, tensor._handle)
            kept.append(tensor)
    return batch, kept


def generate_options(
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop_token: Optional[int],
    no_graphs: bool,
) -> Any:
    chosen = _native.ds_generate_options()
    chosen.max_tokens, chosen.seed = max_tokens, seed
    chosen.temperature, chosen.top_k, chosen.top_p = temperature, top_k, top_p
    if stop_token is not None:
        chosen.stop_token, chosen.has_stop_token = stop_token, 1
    chosen.no_graphs = int(no_graphs)
    return chosen


def _split(ids: Tensor, counts: Tensor) -> list[Tensor]:
    """A copy of each text among the ids of all."""
    rest, texts = ids.tobytes(), []
    for count in counts.tolist():
        text = Tensor((count,), "int32")
        text.write(rest[: text.nbytes])
        rest = rest[text.nbytes :]
        texts.append(text)
    return texts


class Generator(Handle):
    """Runs a model without training it: text, logits, hidden states.

    Without `weights` it runs the model's own weights as they are at each call, also between the steps of
    an engine. `weights` "fp32", "bf16", "int8" or "int4" makes a prepared copy, which needs the model no
    longer; `group_size`, `symmetric`, `threads`, `int8_activations` and `offload_param` belong to those.
    `int8_activations` True rounds activations of prompts to 8 bits, "all" those of tokens, too.
    `kv_block_tokens` keeps keys and values in blocks, which hold `kv_pool_tokens` at most;
    `kv_cache` "int8" keeps them as 8-bit codes (docs/inference.md).

    With `comm` the ranks of a group share the model's experts, each with a prepared copy of its part ("fp32"
    unless `weights` says another form): every rank makes the generator and each of its calls, with texts of
    its own or `take_part`. `expert_parallel` {"autoep_size": n} lets so many of them share (docs/experts.md).
    """

    _destroy = _native.ds_generator_destroy

    def __init__(
        self,
        model: Model,
        weights: Optional[str] = None,
        *,
        group_size: Optional[int] = None,
        symmetric: Optional[bool] = None,
        threads: Optional[int] = None,
        int8_activations: Union[bool, str, None] = None,
        offload_param: Optional[Mapping[str, Any]] = None,
        kv_block_tokens: Optional[int] = None,
        kv_pool_tokens: Optional[int] = None,
        kv_cache: Optional[str] = None,
        comm: Optional[Comm] = None,
        expert_parallel: Optional[Mapping[str, Any]] = None,
        tokenizer: Optional[Tokenizer] = None,
    ) -> None:
        given = options(
            weights=weights,
            group_size=group_size,
            symmetric=symmetric,
            threads=threads,
            int8_activations=int8_activations,
            offload_param=offload_param,
            kv_block_tokens=kv_block_tokens,
            kv_pool_tokens=kv_pool_tokens,
            kv_cache=kv_cache,
            expert_parallel=expert_parallel,
        )
        if comm is None:
            super().__init__(_native.ds_generator_create(model._handle, given))
        else:
            with interruptible(comm.abort):
                handle = _native.ds_generator_create_shared(model._handle, given, comm._handle)
            super().__init__(handle)
        self.comm = comm
        """The group whose ranks share the model's experts."""
        self._model = model if comm is None and weights in (None, "model") else None
        self.tokenizer = tokenizer
        """Turns prompts that are text into ids, and new ids into text."""

    @property
    def info(self) -> GeneratorInfo:
        return GeneratorInfo._make(_native.ds_generator_describe(self._handle))

    @property
    def weights(self) -> str:
        """The form of the weights: "model", "float32", "bfloat16", "int8" or "int4"."""
        return _FORMS.get(self.info.weights, "unknown")

    def get_parameter(self, parameter: ParameterKey) -> Tensor:
        """A copy of a parameter as the generator's products see it, float32. A name is looked up in the
        model, which must be alive; an index always works."""
        if isinstance(parameter, str):
            if self._model is None:
                raise TypeError("a prepared generator knows parameters by index")
            parameter = self._model.index(parameter)
        return Tensor._of(_native.ds_generator_get_parameter(self._handle, parameter))

    def _prompt(self, prompt: Any) -> Tensor:
        if isinstance(prompt, (str, bytes)):
            if self.tokenizer is None:
                raise TypeError("a prompt that is text needs a tokenizer: Generator(tokenizer=...)")
            return self.tokenizer.encode(prompt)
        return asarray(prompt)

    def _prompts(self, prompts: Iterable[Any]) -> tuple[Tensor, Tensor]:
        """Ids of all prompts, one behind the other, and how many there are of each."""
        if isinstance(prompts, (str, bytes)):
            raise TypeError("prompts are a list; generate() takes a single one")
        ids: list[int] = []
        counts: list[int] = []
        for prompt in prompts:
            tensor = self._prompt(prompt)
            if tensor.size and (tensor.ndim != 1 or tensor.dtype not in ("int32", "int64")):
                raise InvalidArgumentError(
                    f"prompt {len(counts)} is {tensor.dtype} {list(tensor.shape)}; "
                    "ids are needed, int32 or int64 [count]"
                )
            ids += tensor.tolist()
            counts.append(tensor.size)
        return asarray(ids, "int64"), asarray(counts, "int64")

    def generate(
        self,
        prompt: Any,
        max_tokens: int = 64,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 0.0,
        seed: int = 0,
        stop_token: Optional[int] = None,
        no_graphs: bool = False,
        on_token: Optional[Callable[[int], object]] = None,
    ) -> Tensor:
        """Continues a prompt: ids [count], or text where there is a tokenizer.

        Gives the new ids, int32 [new tokens], without the prompt and the stop token. Temperature 0 takes
        always the likeliest token. `on_token` hears of each one at once: False ends the text with it,
        anything else lets it go on, and what it raises ends the call and is raised by it, and so does
        Ctrl-C."""
        chosen = generate_options(
            max_tokens, temperature, top_k, top_p, seed, stop_token, no_graphs
        )
        ids = self._prompt(prompt)
        heard: list[int] = []

        def hear(token: int) -> None:
            heard.append(token)
            if on_token is not None and on_token(token) is False:
                raise _TextEnded

        try:
            return Tensor._of(
                _native.ds_generator_generate(
                    self._handle, ids._handle, chosen, on_token and hear
                )
            )
        except _TextEnded:
            return asarray(heard, "int32")

    def generate_batch(
        self,
        prompts: Iterable[Any],
        max_tokens: int = 64,
        *,
        at_once: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 0.0,
        seed: int = 0,
        stop_token: Optional[int] = None,
        no_graphs: bool = False,
        on_token: Optional[Callable[[int, int], Optional[bool]]] = None,
    ) -> list[Tensor]:
        """Continues several prompts together, each as `generate` takes and continues it, with `seed` + i
        for prompt i: a list of what `generate` gives.

        At most `at_once` of them (0: 16) go through the model together; where one ends the next takes its
        place. On a CPU with `at_once` up to 16 each text is that of `generate`, bit for bit.
        `on_token(text, token)` hears of each new token of prompt number `text` at once; False ends that
        text with the token, None or True lets it go on, and what it raises ends the call and is raised by
        it, and so does Ctrl-C."""
        chosen = generate_options(
            max_tokens, temperature, top_k, top_p, seed, stop_token, no_graphs
        )
        ids, counts = self._prompts(prompts)
        given = _native.ds_prompts()
        given.ids, given.counts, given.at_once = ids._handle, counts._handle, at_once
        new, lengths = _native.ds_generator_generate_batch(self._handle, given, chosen, on_token)
        return _split(Tensor._of(new), Tensor._of(lengths))

    def text(self, prompt: Union[str, bytes], max_tokens: int = 64, **sampling: Any) -> str:
        """Continues a text; the new text. Keywords are those of `generate`."""
        if self.tokenizer is None:
            raise TypeError("text needs a tokenizer: Generator(tokenizer=...)")
        if "stop_token" not in sampling:
            sampling["stop_token"] = self.tokenizer.end_of_text
        return self.tokenizer.decode(self.generate(prompt, max_tokens, **sampling))

    def stream(self, prompt: Any, max_tokens: int = 64, **sampling: Any) -> abc.Generator[int, None, None]:
        """New ids one by one, as they come; another thread generates. Ending the loop early ends it."""
        ids = self._prompt(prompt)
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stop = threading.Event()

        def on_token(token: int) -> bool:
            arrived.put(token)
            return not stop.is_set()

        def work() -> None:
            try:
                self.generate(ids, max_tokens, on_token=on_token, **sampling)
                arrived.put(None)
            except BaseException as error:  # told where the tokens are read
                arrived.put(error)

        thread = threading.Thread(target=work, name="ds-generate", daemon=True)
        thread.start()
        try:
            while True:
                got = arrived.get()
                if isinstance(got, BaseException):
                    raise got
                if got is None:
                    return
                yield got
        finally:
            stop.set()
            thread.join()

    def take_part(self) -> None:
        """Of a rank without a text, among ranks that share experts: computes what the others' texts need of
        its experts, until every rank's `generate` and `generate_batch` is done. Without other ranks it
        returns at once."""
        with interruptible(None if self.comm is None else self.comm.abort):
            _native.ds_generator_take_part(self._handle)

    def interrupt(self) -> None:
        """Ends the `generate` or `generate_batch` that runs in another thread before its next token, with
        AbortedError."""
        _native.ds_generator_interrupt(self._handle)

    def logits(
        self,
        ids: Any,
        *,
        attention_mask: Any = None,
        segments: Any = None,
        token_types: Any = None,
    ) -> Tensor:
        """Logits of ids [batch, length]: float32 [batch, length, vocabulary], or [batch, classes] of a
        model that classifies. Masks and segments are [batch, length] too."""
        batch, kept = make_batch(
            ids=ids, attention_mask=attention_mask, segments=segments, token_types=token_types
        )
        logits = Tensor._of(_native.ds_generator_logits(self._handle, batch))
        del kept
        return logits

    __call__ = logits

    def hidden_states(
        self,
        ids: Any,
        *,
        attention_mask: Any = None,
        segments: Any = None,
        token_types: Any = None,
    ) -> Tensor:
        """Hidden states after the last norm, before the head: float32 [batch, length, width]."""
        batch, kept = make_batch(
            ids=ids, attention_mask=attention_mask, segments=segments, token_types=token_types
        )
        states = Tensor._of(_native.ds_generator_hidden_states(self._handle, batch))
        del kept
        return states

    def __repr__(self) -> str:
        if self.closed:
            return "ds.Generator(closed)"
        return f"ds.Generator(weights={self.weights!r}, bytes={self.info.bytes:,})"


__all__ = ["Generator", "make_batch"]
