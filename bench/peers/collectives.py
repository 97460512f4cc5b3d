"""Collectives of two processes: Open MPI, tuned, and ds in turn, in one run.

usage: collectives.py BENCH_FOLDER [--ranks 2] [--bytes 67108864] [--calls 21] [--rounds 5]
                      [--settings NAME,...] [--json FILE]
BENCH_FOLDER holds comm_bench and mpi_collectives (build/bench/bench); mpirun comes from PATH. Open MPI
is first run with every setting below; each operation then keeps the one that was fastest for it.
Prints medians over the rounds, the ratio, and how near ours is to the limit that copies with
non-temporal stores set in the same run.
"""
import json
import os
import subprocess
import sys

import common

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
SHARED = "--mca btl self,vader"
SETTINGS = {
    "default": SHARED,
    "cma": f"{SHARED} --mca btl_vader_single_copy_mechanism cma",
    "no-cma": f"{SHARED} --mca btl_vader_single_copy_mechanism none",
    "sm": f"{SHARED} --mca coll_sm_priority 100",
    "fragments": f"{SHARED} --mca btl_vader_max_send_size 1048576 "
                 "--mca btl_vader_eager_limit 65536",
    **{f"tuned-{name}": f"{SHARED} --mca coll_tuned_use_dynamic_rules 1 "
                        f"--mca coll_tuned_allreduce_algorithm {reduce} "
                        f"--mca coll_tuned_allgather_algorithm {gather} "
                        f"--mca coll_tuned_reduce_scatter_block_algorithm {scatter}"
       for name, reduce, gather, scatter in (("doubling", 3, 3, 2), ("ring", 4, 4, 3),
                                             ("segments", 5, 5, 4), ("halving", 6, 6, 3))},
}


def mpi_seconds(args, setting, operation, calls):
    """The median of one run of Open MPI, or nothing where it does not know the setting."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    bind = ["--bind-to", "core"] if args.ranks <= (os.cpu_count() or 1) else [
        "--oversubscribe", "--bind-to", "none"]
    done = subprocess.run(
        ["mpirun", *root, *bind, *SETTINGS[setting].split(), "-n", str(args.ranks),
         os.path.join(args.programs, "mpi_collectives"), operation, str(args.bytes), str(calls)],
        env=os.environ, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["seconds"] if done.returncode == 0 and lines else None


def ours(args):
    done = subprocess.run(
        [os.path.join(args.programs, "comm_bench"), "--ranks", str(args.ranks), "--smallest",
         str(args.bytes), "--largest", str(args.bytes), "--json"],
        env=common.plain_environment(), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main():
    made = common.parser(__doc__)
    made.add_argument("programs")
    made.add_argument("--ranks", type=int, default=2)
    made.add_argument("--bytes", type=int, default=64 << 20)
    made.add_argument("--calls", type=int, default=21)
    made.add_argument("--settings", default=",".join(SETTINGS))
    args = common.parse(made)
    best = {}
    for operation in OPERATIONS:
        tried = {name: mpi_seconds(args, name, operation, max(3, args.calls // 3))
                 for name in args.settings.split(",")}
        known = {name: seconds for name, seconds in tried.items() if seconds}
        if not known:
            sys.exit(f"Open MPI ran {operation} with no setting")
        best[operation] = min(known, key=known.get)
        print(f"{operation}: " + ", ".join(
            f"{name} {seconds * 1e3:.2f} ms" if seconds else f"{name} not known"
            for name, seconds in tried.items()), flush=True)
    limits = {operation: [] for operation in OPERATIONS}

    def mpi(operation):
        return lambda: mpi_seconds(args, best[operation], operation, args.calls) * 1e3

    last = {}

    def mine(operation):
        def run():
            if operation == OPERATIONS[0]:
                last["report"] = ours(args)
            row = next(row for row in last["report"]["rows"] if row["operation"] == operation)
            limits[operation].append(row["of_copy_limit"])
            return row["seconds"] * 1e3
        return run

    contenders = {}
    for operation in OPERATIONS:
        contenders[f"ds {operation}"] = mine(operation)
        contenders[f"mpi {operation}"] = mpi(operation)
    medians = common.interleave(args.rounds, contenders)
    report = common.Report(args, f"collectives of {args.ranks} processes, {args.bytes} bytes")
    for operation in OPERATIONS:
        shares = sorted(limits[operation])
        report.row(operation=operation, ds_ms=medians[f"ds {operation}"],
                   open_mpi_ms=medians[f"mpi {operation}"], setting=best[operation],
                   ratio=medians[f"mpi {operation}"] / medians[f"ds {operation}"],
                   ds_of_copy_limit=shares[len(shares) // 2])
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
