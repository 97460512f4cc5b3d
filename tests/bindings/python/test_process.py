"""Threads, signals, forks and lifetimes: what a process around the library does."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import ds

from conftest import CONFIG, SHAPE

TRAIN = """
    import os, signal, sys, threading, time
    import ds
    ds.set_log_level("error")
    SHAPE = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 256, "n_embd": 256,
             "n_layer": 4, "n_head": 4}
    CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 500,
              "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}
    text = sys.argv[1]
    model = ds.Model(SHAPE, seed=1)
    data = ds.Dataset(path=text, sequence_length=256)
    engine = ds.Engine(model, CONFIG)
    engine.set_dataset(data)
    def press_after(seconds):
        def press():
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=press, daemon=True).start()
"""


@pytest.fixture
def long_text(tmp_path: Path) -> str:
    path = tmp_path / "long.txt"
    path.write_text("to be or not to be, that is the question. " * 20000, encoding="utf-8")
    return str(path)


def test_ctrl_c_ends_one_long_call(run_python: Callable[..., Any], long_text: str) -> None:
    """A step of 500 micro batches, which would take minutes, ends within one micro batch."""
    done = run_python(
        TRAIN
        + """
    press_after(0.5)
    begin = time.monotonic()
    try:
        engine.train_batch()
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - begin < 20)
    # The engine goes on with the open step.
    print("micro", 0 < engine.micro_steps < 500, engine.global_steps)
    """,
        long_text,
    )
    assert done.stdout.split("\n")[:2] == ["interrupted True", "micro True 0"], done.stderr


def test_ctrl_c_ends_generation_and_loops(run_python: Callable[..., Any], long_text: str) -> None:
    done = run_python(
        TRAIN
        + """
    generator = ds.Generator(model)
    press_after(0.3)
    try:
        generator.generate([1, 2, 3], 10**7)
    except KeyboardInterrupt:
        print("generate")
    press_after(0.3)
    try:
        generator.generate_batch([[1, 2, 3], [4]], 10**7)
    except KeyboardInterrupt:
        print("generate_batch")
    engine = ds.Engine(ds.Model(SHAPE, seed=1), {**CONFIG, "gradient_accumulation_steps": 1})
    engine.set_dataset(data)
    press_after(0.5)
    try:
        for report in engine.train(10**6):
            pass
    except KeyboardInterrupt:
        print("train", engine.train_batch().applied)
    """,
        long_text,
    )
    told = done.stdout.split("\n")[:3]
    assert told == ["generate", "generate_batch", "train True"], done.stderr


def test_ctrl_c_ends_waiting_for_a_process_that_does_not_come(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    """Two processes meet; one waits in a barrier that the other never enters."""
    done = run_python(
        """
        import multiprocessing, os, signal, sys, threading, time
        import ds
        ds.set_log_level("off")

        def other(folder):
            comm = ds.Comm(1, 2, {"transport": "sockets"}, store=store(folder))
            time.sleep(20)

        def store(folder):
            def put(key, value):
                with open(folder + "/tmp" + str(os.getpid()), "wb") as file:
                    file.write(value)
                os.rename(file.name, folder + "/" + key.replace("/", "_"))
            def get(key):
                path = folder + "/" + key.replace("/", "_")
                for _ in range(1000):
                    if os.path.exists(path):
                        with open(path, "rb") as file:
                            return file.read()
                    time.sleep(0.01)
                raise KeyError(key)
            return ds.Store(put, get)

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=other, args=(sys.argv[1],))
            process.start()
            comm = ds.Comm(0, 2, {"transport": "sockets"}, store=store(sys.argv[1]))
            def press():
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=press, daemon=True).start()
            begin = time.monotonic()
            try:
                comm.barrier()
            except KeyboardInterrupt:
                print("interrupted", time.monotonic() - begin < 10)
            process.terminate()
            process.join()
        """,
        str(tmp_path),
    )
    assert done.stdout == "interrupted True\n", done.stderr


def test_two_threads_train_two_engines(dataset: ds.Dataset) -> None:
    """Both do what each would do alone; whether steps overlap is printed, not asserted."""

    def train(spans: list[tuple[float, float]]) -> bytes:
        engine = ds.Engine(ds.Model(SHAPE, seed=3), CONFIG)
        engine.set_dataset(dataset)
        for _ in range(20):
            begin = time.perf_counter()
            engine.train_batch()
            spans.append((begin, time.perf_counter()))
        return engine.model.get(0).tobytes()

    alone = train([])
    results: dict[int, bytes] = {}
    spans: list[list[tuple[float, float]]] = [[], []]

    def work(number: int) -> None:
        results[number] = train(spans[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: alone, 1: alone}
    overlaps = sum(any(a < d and c < b for c, d in spans[1]) for a, b in spans[0])
    print(f"{overlaps} of {len(spans[0])} steps overlapped one of the other thread")


def test_the_gil_is_free_while_an_engine_computes(engine: ds.Engine) -> None:
    """Python code of another thread runs during calls.

    The interpreter takes the GIL from no thread here, so that the other one has it only when a call lets go of it;
    steps go on until it had its turns, however busy the machine is.
    """
    turn = threading.Event()
    ran: list[bool] = []

    def other() -> None:
        while not turn.is_set():
            ran.append(True)
            time.sleep(0.0001)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    thread = threading.Thread(target=other)
    try:
        thread.start()
        before = len(ran)
        for _ in range(2000):
            engine.train_batch()
            if len(ran) > before + 5:
                break
        during = len(ran) - before
    finally:
        sys.setswitchinterval(interval)
        turn.set()
        thread.join()
    assert during > 5


def test_an_engine_that_is_busy_says_so(engine: ds.Engine) -> None:
    errors: list[BaseException] = []

    def progress(call: str, done: int, total: int) -> None:
        def enter() -> None:
            try:
                engine.train_batch()
            except ds.Error as error:
                errors.append(error)

        if not errors:
            thread = threading.Thread(target=enter)
            thread.start()
            thread.join()

    engine.on_progress(progress)
    engine.train_batch()
    assert [type(error) for error in errors] == [ds.StateError]


def test_a_forked_worker_ends_cleanly(run_python: Callable[..., Any], tmp_path: Path) -> None:
    """Workers forked by multiprocessing inherit engines; they read data, end, and the parent goes on."""
    text = tmp_path / "text.txt"
    text.write_text("abcdefgh" * 2000, encoding="utf-8")
    done = run_python(
        TRAIN.replace('"gradient_accumulation_steps": 500', '"gradient_accumulation_steps": 1')
        + """
    import gc, multiprocessing
    engine.train_batch()
    tensor = ds.zeros((4,))
    def work(number):
        sample = data[number].tolist()
        with ds.Dataset(path=text, sequence_length=16) as own:
            assert len(own) > 0
        return sum(sample)
    def drop():
        global engine, model, tensor
        engine.close()
        del engine, model, tensor
        gc.collect()
        sys.exit(0)  # with finalizers
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        print("sums", len(pool.map(work, range(8))))
    child = context.Process(target=drop)
    child.start()
    child.join()
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # through Python's own end, with everything alive
    print("codes", child.exitcode, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print("parent", engine.train_batch().step)
    """,
        str(text),
    )
    assert done.stdout.split("\n")[:3] == ["sums 8", "codes 0 7", "parent 2"], done.stderr
    assert done.returncode == 0


def test_the_interpreter_ends_with_everything_alive(run_python: Callable[..., Any], long_text: str) -> None:
    done = run_python(
        TRAIN
        + """
    ds.set_log(print)
    engine.on_progress(print)
    kept = [ds.zeros((3,)), ds.Generator(model), engine.optimizer, ds.Comm(0, 1)]
    cycle = [kept]
    cycle.append(cycle)
    """,
        long_text,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_log_function_may_end_objects(dataset: ds.Dataset) -> None:
    """What garbage ends inside a log message is ended after it: the library is not called there."""
    kept = [ds.zeros((4,)) for _ in range(3)]
    ds.set_log_level("info")
    ds.set_log(lambda *message: kept.clear())
    engine = ds.Engine(ds.Model(SHAPE), {**CONFIG, "steps_per_print": 1})
    engine.set_dataset(dataset)
    engine.train_batch()
    ds.set_log(None)
    assert kept == []


def resident() -> int:
    """Bytes of memory that the process has."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def grows(action: Callable[[], object], times: int) -> int:
    """Growth of resident memory over `times` calls, after some to warm up."""
    for _ in range(times // 10):
        action()
    gc.collect()
    before = resident()
    for _ in range(times):
        action()
    gc.collect()
    return resident() - before


TIMES = 10000 if os.environ.get("DS_TEST_FULL") else 3000
LIMIT = 1 << 20  # of 10,000 cycles: 100 bytes each would show, of 3,000 350


def test_handles_and_callbacks_do_not_grow() -> None:
    values = np.ones(64, np.float32)
    parameters = {"w": np.ones(4, np.float32)}
    tokenizer = ds.Tokenizer()

    def cycle() -> None:
        tensor = ds.asarray(values)
        tensor.numpy()
        tensor.__dlpack__(max_version=(1, 1))
        ds.asarray(bytearray(256))
        ds.zeros((64,)).__dlpack__()
        tokenizer.decode(tokenizer.encode("some text"))
        with ds.Model.from_parameters(parameters) as model:
            model.names()
        try:
            tokenizer.token_to_id("no such token")
        except ds.NotFoundError:
            pass

    assert grows(cycle, TIMES) < LIMIT


def test_engines_do_not_grow() -> None:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    gradient = {0: np.ones(4, np.float32)}
    heard: list[object] = []

    def cycle() -> None:
        model = ds.Model.from_parameters({"w": np.ones(4, np.float32)})
        with ds.Engine(model, config) as engine:
            engine.on_progress(lambda *told: heard.append(told))
            engine.add_gradients(gradient)
            engine.step()
            engine.optimizer.rates()
            engine.scope().end()

    assert grows(cycle, 2000) < LIMIT


def test_callbacks_do_not_grow(model: ds.Model) -> None:
    generator = ds.Generator(model)
    count = 0

    def on_token(token: int) -> None:
        nonlocal count
        count += 1
        if count % 5 == 0:
            raise KeyError(count)

    def cycle() -> None:
        try:
            generator.generate([1], 5, on_token=on_token)
        except KeyError:
            pass
        generator.generate_batch([[1], [2, 3]], 2, on_token=lambda text, token: token > text)
        ds.set_log(lambda *message: None)

    assert grows(cycle, 500) < LIMIT
    ds.set_log(None)
    assert count > 2000
