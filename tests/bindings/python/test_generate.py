"""Generators: text, ids one by one, logits, prepared weights."""

from __future__ import annotations

import threading
from typing import Any, Optional

import numpy as np
import pytest

import ds

from conftest import SHAPE


@pytest.fixture
def generator(model: ds.Model) -> ds.Generator:
    return ds.Generator(model, tokenizer=ds.Tokenizer())


def test_ids_text_and_stream_agree(generator: ds.Generator) -> None:
    ids = generator.generate([72, 105], 8)
    assert ids.dtype == "int32" and ids.shape == (8,)
    assert generator.generate("Hi", 8).tolist() == ids.tolist()
    assert generator.text("Hi", 8) == ds.Tokenizer().decode(ids)
    assert list(generator.stream("Hi", 8)) == ids.tolist()


def test_sampling_is_reproducible(generator: ds.Generator) -> None:
    def draw(seed: int) -> list[int]:
        tokens: list[int] = generator.generate(
            "Hi", 16, temperature=1.0, top_k=50, top_p=0.95, seed=seed
        ).tolist()
        return tokens

    assert draw(1) == draw(1) != draw(2)


def test_a_stop_token_ends_the_text(generator: ds.Generator) -> None:
    ids = generator.generate("Hi", 8).tolist()
    stopped = generator.generate("Hi", 8, stop_token=ids[3]).tolist()
    assert stopped == ids[: ids.index(ids[3])]


def test_a_stream_that_is_left_ends_its_thread(generator: ds.Generator) -> None:
    for count, _ in enumerate(generator.stream("Hi", 10000), 1):
        if count == 3:
            break
    assert not [t for t in threading.enumerate() if t.name == "ds-generate"]
    assert generator.generate("Hi", 2).shape == (2,)


def test_errors_of_a_stream_are_told_where_it_is_read(generator: ds.Generator) -> None:
    with pytest.raises(ds.InvalidArgumentError):
        list(generator.stream([10**6], 4))


PROMPTS = [[72, 105], [1], list(range(20)), [5, 6, 7], [200] * 9]


def one_by_one(generator: ds.Generator, seed: int, **sampling: Any) -> list[list[int]]:
    return [
        generator.generate(prompt, 12, seed=seed + i, **sampling).tolist()
        for i, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("at_once", [0, 1, 2])
def test_texts_together_are_those_of_one_after_the_other(
    generator: ds.Generator, at_once: int
) -> None:
    expected = one_by_one(generator, 11, temperature=1.0, top_k=50)
    assert expected != one_by_one(generator, 12, temperature=1.0, top_k=50)
    texts = generator.generate_batch(
        PROMPTS, 12, at_once=at_once, temperature=1.0, top_k=50, seed=11
    )
    assert [text.tolist() for text in texts] == expected
    assert all(text.dtype == "int32" and text.shape == (12,) for text in texts)


def test_prompts_may_be_text_and_arrays_of_both_types(generator: ds.Generator) -> None:
    given = ["Hi", np.array([1], np.int32), range(20), ds.asarray([5, 6, 7]), np.full(9, 200)]
    texts = generator.generate_batch((prompt for prompt in given), 12)
    assert [text.tolist() for text in texts] == one_by_one(generator, 0)
    rows = generator.generate_batch(np.array([[1, 2], [3, 4]]), 3)
    assert rows[1].tolist() == generator.generate([3, 4], 3).tolist()


def test_texts_end_at_their_stop_token_and_may_be_empty(generator: ds.Generator) -> None:
    whole = one_by_one(generator, 0)
    stop = whole[1][0]
    expected = one_by_one(generator, 0, stop_token=stop)
    texts = generator.generate_batch(PROMPTS, 12, at_once=2, stop_token=stop)
    assert [text.tolist() for text in texts] == expected
    assert texts[1].shape == (0,)


def test_a_callback_hears_all_texts_and_ends_one(generator: ds.Generator) -> None:
    expected = one_by_one(generator, 3, temperature=1.0)
    heard: list[list[int]] = [[] for _ in PROMPTS]

    def on_token(text: int, token: int) -> Optional[bool]:
        heard[text].append(token)
        if text == 2:
            return len(heard[text]) < 4
        return None

    texts = generator.generate_batch(
        PROMPTS, 12, at_once=2, temperature=1.0, seed=3, on_token=on_token
    )
    assert [text.tolist() for text in texts] == heard
    assert heard[2] == expected[2][:4]
    assert heard[:2] + heard[3:] == expected[:2] + expected[3:]


def test_a_callback_ends_its_text(generator: ds.Generator) -> None:
    whole = generator.generate([1, 2, 3], 12, temperature=1.0, seed=5).tolist()
    heard: list[int] = []

    def on_token(token: int) -> bool:
        heard.append(token)
        return len(heard) < 4

    new = generator.generate([1, 2, 3], 12, temperature=1.0, seed=5, on_token=on_token)
    assert (new.dtype, new.tolist(), heard) == ("int32", whole[:4], whole[:4])
    # Only False ends a text: functions that write return how much they wrote, which may be 0.
    assert generator.generate([1, 2, 3], 4, on_token=lambda token: 0).shape == (4,)


def test_a_stream_that_is_left_early_ends(generator: ds.Generator) -> None:
    whole = generator.generate([1, 2, 3], 12).tolist()
    stream = generator.stream([1, 2, 3], 12)
    assert [next(stream), next(stream)] == whole[:2]
    stream.close()
    assert not [t for t in threading.enumerate() if t.name == "ds-generate"]
    assert list(generator.stream([1, 2, 3], 12)) == whole


def test_wrong_prompts_are_named(generator: ds.Generator) -> None:
    assert generator.generate_batch([], 12) == []
    with pytest.raises(ds.InvalidArgumentError, match=r"counts\[1\]|prompt 1"):
        generator.generate_batch([[1, 2], [], [3]], 12)
    with pytest.raises(ds.InvalidArgumentError, match="prompt 2: .*1000000"):
        generator.generate_batch([[1, 2], [3], [10**6]], 12)
    with pytest.raises(ds.InvalidArgumentError, match=r"prompt 1 is float32 \[2\]"):
        generator.generate_batch([[1, 2], [1.5, 2.5]], 12)
    with pytest.raises(ds.InvalidArgumentError, match=r"prompt 0 is int64 \[\]"):
        generator.generate_batch([1, 2, 3], 12)
    with pytest.raises(ds.InvalidArgumentError, match="at_once"):
        generator.generate_batch(PROMPTS, 12, at_once=-1)
    with pytest.raises(TypeError, match="list"):
        generator.generate_batch("Hi", 12)
    with pytest.raises(TypeError, match="tokenizer"):
        ds.Generator(ds.Model(SHAPE)).generate_batch(["Hi"], 12)


def test_logits_and_hidden_states(generator: ds.Generator, model: ds.Model) -> None:
    ids = np.arange(12).reshape(2, 6)
    logits = generator.logits(ids, attention_mask=np.ones((2, 6), np.uint8))
    states = generator.hidden_states(ids)
    assert logits.shape == (2, 6, 256) and states.shape == (2, 6, 32)
    # The head is the embedding: its product with the states gives the logits.
    expected = states.numpy() @ model.get("wte.weight").numpy().T
    assert np.allclose(logits.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8", "int4"])
def test_prepared_weights_outlive_their_model(weights: str) -> None:
    model = ds.Model(SHAPE, seed=1)
    expected = ds.Generator(model).logits([[1, 2, 3]]).numpy()
    generator = ds.Generator(model, weights, threads=1)
    model.close()
    close = {"fp32": 1e-4, "bf16": 0.05, "int8": 0.05, "int4": 0.3}[weights]
    assert np.abs(generator.logits([[1, 2, 3]]).numpy() - expected).max() < close
    assert generator.info.bytes > 0 and generator.get_parameter(0).ndim == 2
    assert generator.weights in repr(generator)


def test_another_thread_interrupts(generator: ds.Generator) -> None:
    heard: list[int] = []

    def on_token(token: int) -> None:
        heard.append(token)
        if len(heard) == 3:
            # From outside of this call, as another thread would at this moment.
            thread = threading.Thread(target=generator.interrupt)
            thread.start()
            thread.join()

    with pytest.raises(ds.AbortedError):
        generator.generate("Hi", 100, on_token=on_token)
    assert len(heard) < 6
    heard.clear()
    with pytest.raises(ds.AbortedError):
        generator.generate_batch(PROMPTS, 100, on_token=lambda text, token: on_token(token))
    assert len(heard) < 6


def test_deepspeed_names(model: ds.Model) -> None:
    engine = ds.init_inference(model, dtype="int8")
    whole = engine.generate([[1, 2, 3]], max_new_tokens=4)
    assert whole.shape == (1, 7) and whole.tolist()[0][:3] == [1, 2, 3]
    assert engine.forward([[1, 2, 3]]).shape == (1, 3, 256)
    with pytest.raises(ValueError, match="known are"):
        ds.init_inference(model, dtype="float8")


def test_deepspeed_names_with_several_rows(model: ds.Model) -> None:
    engine = ds.init_inference(model)
    prompts = [[1, 2, 3, 4], [7, 8], [9, 10, 11]]
    alone = [engine.generate(prompt, max_new_tokens=6).tolist()[0] for prompt in prompts]
    padded = [[0] * (4 - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (4 - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    whole = engine.generate(padded, max_new_tokens=6, attention_mask=mask)
    assert whole.shape == (3, 10) and whole.dtype == "int64"
    for row, prompt, text in zip(whole.tolist(), prompts, alone):
        assert row == [0] * (4 - len(prompt)) + text

    # Where a text ends its end is kept and the row is filled up.
    new = [text[len(prompt) :] for prompt, text in zip(prompts, alone)]
    end = new[1][2]
    ends = [ids.index(end) if end in ids else 6 for ids in new]
    longest = max(min(at + 1, 6) for at in ends)
    for pad in (None, 5):
        whole = engine.generate(
            padded, max_new_tokens=6, attention_mask=mask, eos_token_id=end, pad_token_id=pad
        )
        assert whole.shape == (3, 4 + longest)
        for row, before, ids, at in zip(whole.tolist(), padded, new, ends):
            expected = before + ids[: at + 1]
            fill = end if pad is None else pad
            assert row == expected + [fill] * (4 + longest - len(expected))
    assert engine.generate(prompts[1], 6, eos_token_id=end).tolist() == [
        prompts[1] + new[1][: ends[1] + 1]
    ]
    sampled = engine.generate(padded, 6, attention_mask=mask, do_sample=True, seed=3)
    for i, (row, prompt) in enumerate(zip(sampled.tolist(), prompts)):
        text = engine.generate(prompt, 6, do_sample=True, seed=3 + i).tolist()[0]
        assert row[4 - len(prompt) :] == text
    with pytest.raises(ValueError, match=r"attention_mask is \[3, 3\]"):
        engine.generate(padded, attention_mask=[[1, 1, 1]] * 3)
    with pytest.raises(ds.InvalidArgumentError, match="prompt 1"):
        engine.generate(padded, attention_mask=[[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    with pytest.raises(ValueError, match="count"):
        engine.generate([[[1]]])


def test_a_group_shares_experts() -> None:
    config = {
        "model_type": "mixtral", "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "num_local_experts": 4, "max_position_embeddings": 16,
    }
    values: dict[str, bytes] = {}
    there = threading.Condition()

    def put(key: str, value: bytes) -> None:
        with there:
            values[key] = value
            there.notify_all()

    def get(key: str) -> bytes:
        with there:
            assert there.wait_for(lambda: key in values, 60)
            return values[key]

    texts: dict[int, list[int]] = {}

    def rank(number: int) -> None:
        with ds.Comm(number, 2, store=ds.Store(put, get)) as comm:
            model = ds.Model(config, seed=5)
            whole, shared = ds.Generator(model, "fp32"), ds.Generator(model, comm=comm)
            assert shared.info.bytes < whole.info.bytes
            if number == 0:
                texts[0] = shared.generate([1, 2, 3], 6).tolist()
            else:
                shared.take_part()
                texts[1] = whole.generate([1, 2, 3], 6).tolist()
            comm.finalize()

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(60)
    assert len(texts[0]) == 6 and texts[0] == texts[1]
