#!/usr/bin/env python3
"""Has the Weights & Biases package read what the wandb monitor writes, and records its own bytes.

    pip install wandb==0.19.11          # a release whose log reader and writer are Python
    check_wandb.py RUN.wandb            # reads a file of ours with wandb's reader, prints the history
    check_wandb.py --golden OUT.wandb   # writes tests/data/wandb/run.wandb with wandb's writer

The unit test Wandb.BytesAreThoseOfItsOwnWriter compares the golden file with what ds writes for the
same run. In newer releases the reader is a program of its own; the format is the same.
"""

import sys

import wandb
from wandb.proto import wandb_internal_pb2 as pb

wandb._set_internal_process(disable=True)
from wandb.sdk.internal.datastore import DataStore  # noqa: E402


def read(path):
    store = DataStore()
    store.open_for_scan(path)
    kinds, number, last = [], 0, -1
    while (data := store.scan_data()) is not None:
        record = pb.Record()
        record.ParseFromString(data)
        number += 1
        assert record.num == number, f"record {number} says {record.num}"
        kind = record.WhichOneof("record_type")
        kinds.append(kind)
        if kind == "run":
            run = record.run
            print("run", run.run_id, run.entity, run.project, run.run_group, run.host,
                  run.start_time.ToDatetime(), len(run.config.update), "settings")
        elif kind == "history":
            assert record.history.step.num > last, "steps must grow"
            last = record.history.step.num
            values = {item.key: item.value_json for item in record.history.item}
            assert values["_step"] == str(last)
            print("history", values)
    assert kinds[:2] == ["header", "run"], kinds[:2]
    assert kinds[-1] == "exit", "the run has no end"
    print(f"{path}: {len(kinds)} records, {kinds.count('history')} rows")


def golden(path):
    store = DataStore()
    store.open_for_write(path)
    number = 0

    def write(**fields):
        nonlocal number
        number += 1
        store.write(pb.Record(num=number, **fields))

    write(header=pb.HeaderRecord(version_info=pb.VersionInfo(producer="ds", min_consumer="0.12.0")))
    run = pb.RunRecord(run_id="abcd1234", entity="team", project="project", run_group="group",
                       host="host")
    run.start_time.seconds = 1700000000
    run.start_time.nanos = 500000000
    for key, value in (("lr", "0.25"), ("list", "[1,2]"), ("nested", '{"a":true}')):
        run.config.update.add(key=key, value_json=value)
    write(run=run)

    def row(step, time, metrics):
        items = metrics + [("_timestamp", f"{time}"), ("_runtime", f"{time - 1700000000.5:g}"),
                           ("_step", str(step))]
        write(summary=pb.SummaryRecord(
            update=[pb.SummaryItem(key=k, value_json=v) for k, v in items]))
        write(history=pb.HistoryRecord(
            item=[pb.HistoryItem(key=k, value_json=v) for k, v in items],
            step=pb.HistoryStep(num=step)))

    row(0, 1700000001.5, [("Train/Samples/lr", "0.125"), ("loss", "2")])
    row(300, 1700000002.5, [("loss", "NaN")])
    row(400, 1700000003.5, [(f"metric/{i}", f"{i * 0.5:g}") for i in range(2000)])
    write(exit=pb.RunExitRecord(runtime=4))
    store.close()


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--golden":
        golden(sys.argv[2])
    elif len(sys.argv) == 2:
        read(sys.argv[1])
    else:
        sys.exit(__doc__)
