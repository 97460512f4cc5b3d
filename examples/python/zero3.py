"""ZeRO stage 3 with as many processes as a launcher starts: zero3.py FILE STEPS FOLDER

    mpirun -n 3 python zero3.py FILE 20 FOLDER           until step 20
    ds launch -n 2 -- python zero3.py FILE 30 FOLDER     goes on, until step 30

Each start goes on where the newest checkpoint is, whatever the number of processes was that saved it.
"""

import sys

import ds

SHAPE = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 64,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
}
CONFIG = {
    "train_batch_size": 12,  # samples of a step, however many processes share them
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
}


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    path, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    comm = ds.init_distributed()  # None where no launcher started this
    rank, size = (comm.rank, comm.size) if comm else (0, 1)
    with ds.Engine(ds.Model(SHAPE, seed=1), CONFIG, comm=comm) as engine:
        engine.set_dataset(ds.Dataset(path=path, sequence_length=64))
        engine.load(folder, may_be_missing=True)
        if rank == 0:
            print(f"after step {engine.global_steps}: {size} processes, ZeRO stage 3")
        for report in engine.train(steps - engine.global_steps):
            if rank == 0 and report.step % 10 == 0:
                print(f"step {report.step}  loss {report.loss:.4f}")
        engine.save(folder)
    if comm:
        comm.finalize()  # waits for the others


if __name__ == "__main__":
    main()
