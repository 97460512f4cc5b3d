"""Files read and written beside the program, and memory that stays in place."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import ds


@pytest.mark.parametrize("backend", ["auto", "io_uring", "libaio", "threads"])
@pytest.mark.parametrize("single_submit", [False, True])
@pytest.mark.parametrize("overlap_events", [False, True])
def test_every_way_moves_every_byte(
    tmp_path: Path, backend: str, single_submit: bool, overlap_events: bool
) -> None:
    try:
        io = ds.FileIO(
            block_size=1024,
            queue_depth=2,
            intra_op_parallelism=2,
            single_submit=single_submit,
            overlap_events=overlap_events,
            backend=backend,
        )
    except ds.UnsupportedError as error:
        pytest.skip(str(error))
    info = io.info
    assert (info.block_size, info.queue_depth, info.intra_op_parallelism) == (1024, 2, 2)
    assert (info.single_submit, info.overlap_events) == (single_submit, overlap_events)
    assert info.alignment % 512 == 0
    assert io.backend in ("io_uring", "libaio", "threads")
    assert backend in ("auto", io.backend)
    path = tmp_path / "f"
    values = np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8)
    back = np.zeros_like(values)
    io.write_file(path, values)
    assert path.read_bytes() == values.tobytes()
    io.read_file(path, back)
    assert (back == values).all()
    # By path and by descriptor, at an offset, waited for one by one and together.
    with open(path, "r+b") as file:
        assert io.wait(io.start_write(file.fileno(), values, 5000)) == 1
        back[:] = 0
        io.start_read(file.fileno(), back, 5000)
        ticket = io.start_write(path, values, 100_000)
        assert io.wait() == 2
        assert io.test(ticket)
        assert (back == values).all()
        file.seek(100_000)
        assert file.read() == values.tobytes()
    assert io.wait() == 0
    assert io.cancel() == 0


def test_errors(tmp_path: Path) -> None:
    io = ds.FileIO()
    missing = tmp_path / "missing"
    with pytest.raises(ds.NotFoundError, match="missing"):
        io.read(missing, np.zeros(3))
    io.write(missing, np.zeros(3, np.uint8), 1)
    assert os.path.getsize(missing) == 4
    io.start_read(missing, np.zeros(100, np.uint8))
    with pytest.raises(ds.CorruptError, match="ends at byte 4"):
        io.wait()
    with pytest.raises(ds.InvalidArgumentError, match="whole file"):
        io.read_file(missing, np.zeros(100, np.uint8))
    with pytest.raises(ds.UnsupportedError, match="GPUDirect Storage"):
        ds.FileIO(use_gds=True)
    with pytest.raises(ds.ConfigError, match="queue_depth"):
        ds.FileIO(queue_depth=0)
    io.close()
    with pytest.raises(ds.InvalidArgumentError):
        io.wait()
    assert repr(io) == "ds.FileIO(closed)"


def test_checks_fail_where_bytes_are_others(tmp_path: Path) -> None:
    path = tmp_path / "f"
    values = np.arange(10_000, dtype=np.float32)
    with ds.FileIO(checksum=True, validate=True) as io:
        io.write_file(path, values)
        io.read_file(path, values)
        with open(path, "r+b") as file:
            file.seek(30_000)
            file.write(b"?")
        with pytest.raises(ds.CorruptError, match="checksum"):
            io.read_file(path, values)


def test_the_interpreter_runs_while_calls_wait(tmp_path: Path) -> None:
    """Two threads move files through one handle; a third computes meanwhile and is never held up for good."""
    io = ds.FileIO(block_size=4096)
    values = np.arange(200_000, dtype=np.float32)
    failures: list[str] = []
    turns = 0
    over = threading.Event()

    def move(number: int) -> None:
        mine, back = values + number, np.zeros_like(values)
        for _ in range(5):
            io.write_file(tmp_path / str(number), mine)
            io.wait(io.start_read(tmp_path / str(number), back))
            if not (back == mine).all():
                failures.append(f"thread {number}")

    def compute() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1

    threads = [threading.Thread(target=move, args=(number,)) for number in range(2)]
    beside = threading.Thread(target=compute)
    for thread in [beside, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    beside.join()
    assert failures == []
    assert turns > 0


def test_pinned_memory_is_that_of_views_too() -> None:
    tensor = ds.pinned((300, 20), "float32")
    assert tensor.is_pinned()
    array = tensor.numpy()
    array[7, 3] = 2.5
    view = ds.asarray(array[5:9])
    del tensor, array
    assert view.is_pinned()
    assert np.asarray(view)[2, 3] == 2.5
    assert not ds.Tensor((3,)).is_pinned()
