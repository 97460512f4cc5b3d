"""Exceptions: a class for each status, texts of the right thread, exceptions of callbacks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import ds
from ds import _native

from conftest import CONFIG, SHAPE


def test_every_status_has_its_class() -> None:
    codes = {
        getattr(_native, name): name
        for name in dir(_native)
        if name.startswith("DS_ERR_")
    }
    classes = {kind.status: kind for kind in ds.Error.__subclasses__()}
    assert set(classes) == set(codes)
    for code, kind in classes.items():
        assert kind("text").name == codes[code]
        assert kind.__name__ in ds.__all__


def test_classes_are_what_a_python_programmer_catches(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as wrong:
        ds.Engine(ds.Model(SHAPE), {**CONFIG, "gradient_cliping": 1.0})
    assert type(wrong.value) is ds.ConfigError
    assert "gradient_clipping" in str(wrong.value)  # the nearest key
    with pytest.raises(LookupError) as missing:
        ds.Model.open(tmp_path / "nothing")
    assert isinstance(missing.value, ds.NotFoundError)
    assert missing.value.name == "DS_ERR_NOT_FOUND"


def test_a_closed_object_says_so(model: ds.Model) -> None:
    model.close()
    model.close()
    assert model.closed and repr(model) == "ds.Model(closed)"
    with pytest.raises(ds.InvalidArgumentError):
        model.names()


def test_another_kind_of_object_is_refused(model: ds.Model) -> None:
    with pytest.raises(TypeError):
        _native.ds_tensor_describe(model._handle)


def test_text_with_a_null_character_is_refused() -> None:
    with pytest.raises(ValueError, match="null character"):
        ds.Tokenizer.open("a\0b")


def test_the_text_of_an_object_is_found_by_any_thread(model: ds.Model) -> None:
    with pytest.raises(ds.NotFoundError) as error:
        model.index("no.such.parameter")
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(model.last_error()))
    thread.start()
    thread.join()
    assert texts == [str(error.value)]


def test_64_threads_read_their_own_texts(model: ds.Model) -> None:
    """Each asks for a name of its own, many times; every exception has the name of its thread."""
    wrong: list[tuple[str, str]] = []
    start = threading.Barrier(64)

    def work(number: int) -> None:
        name = f"parameter.of.thread.{number}."
        start.wait()
        for turn in range(50):
            try:
                _native.ds_tokenizer_open(f"/nowhere/{name}{turn}.")
            except ds.NotFoundError as error:
                if f"{name}{turn}." not in str(error):
                    wrong.append((name, str(error)))
            else:
                wrong.append((name, "no error"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Refusal(Exception):
    pass


def test_what_a_progress_callback_raises_is_raised(engine: ds.Engine) -> None:
    def refuse(call: str, done: int, total: int) -> None:
        raise Refusal(call, done, total)

    engine.on_progress(refuse)
    with pytest.raises(Refusal) as error:
        engine.train_batch()
    assert error.value.args[0] == "train_batch"
    assert any(entry.name == "refuse" for entry in error.traceback)
    engine.on_progress(None)
    assert engine.train_batch().step == 1


def test_progress_is_heard(engine: ds.Engine, dataset: ds.Dataset, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    engine.on_progress(lambda *told: heard.append(told))
    engine.train_batch()
    engine.evaluate(dataset, 2)
    engine.save(tmp_path)
    engine.load(tmp_path)
    assert {call for call, _, _ in heard} == {"train_batch", "evaluate", "save", "load"}
    assert all(0 <= done <= total for _, done, total in heard)


def test_what_a_token_callback_raises_is_raised(model: ds.Model) -> None:
    def refuse(token: int) -> None:
        raise Refusal(token)

    generator = ds.Generator(model)
    with pytest.raises(Refusal):
        generator.generate([1, 2, 3], 4, on_token=refuse)
    heard: list[int] = []
    ids = generator.generate([1, 2, 3], 4, on_token=heard.append)
    assert ids.tolist() == heard and len(heard) == 4


def test_what_a_callback_of_several_texts_raises_is_raised(model: ds.Model) -> None:
    generator = ds.Generator(model)
    prompts = [[1, 2, 3], [4], [5, 6]]

    def refuse(text: int, token: int) -> None:
        if text == 1:
            raise Refusal(text)

    with pytest.raises(Refusal):
        generator.generate_batch(prompts, 4, on_token=refuse)
    # What file.write() gives is no answer.
    with pytest.raises(TypeError, match="returned 0;.*False ends"):
        generator.generate_batch(prompts, 4, on_token=lambda text, token: 0)  # type: ignore
    heard: list[int] = []
    texts = generator.generate_batch(prompts, 4, on_token=lambda text, token: heard.append(text))
    assert sorted(heard) == 4 * [0] + 4 * [1] + 4 * [2] and len(texts) == 3


def test_what_a_store_raises_is_raised() -> None:
    def put(key: str, value: bytes) -> None:
        raise Refusal(key)

    def get(key: str) -> bytes:
        raise Refusal(key)

    with pytest.raises(Refusal):
        ds.Comm(0, 2, {"transport": "sockets"}, store=ds.Store(put, get))


def test_the_log_goes_to_a_function(tmp_path: Path, capfd: Any) -> None:
    import logging

    heard: list[tuple[int, str, str]] = []
    ds.set_log_level("info")
    ds.set_log(lambda *message: heard.append(message))
    config = {**CONFIG, "steps_per_print": 1}
    text = tmp_path / "t.txt"
    text.write_text("abc" * 100, encoding="utf-8")
    engine = ds.Engine(ds.Model(SHAPE), config)
    engine.set_dataset(ds.Dataset(path=str(text), sequence_length=16))
    engine.train_batch()
    ds.set_log(None)
    assert any(level == logging.INFO and "loss" in text for level, _, text in heard)
    assert capfd.readouterr().err == ""
    with pytest.raises(ValueError, match="warning"):
        ds.set_log_level("loud")
