"""Mutation testing: small changes of meaning in the sources, each of which some test ought to notice.

    scripts/mutation                         300 mutants of optim, zero, checkpoint and config
    scripts/mutation --count 50 --seed 7 --folders src/optim
    scripts/mutation --only 'src/optim/schedule.cc'      every mutant of files that begin so
    scripts/mutation --again                 those that survived the last run, or were not tried in it, after
                                             tests were added: only what changed is compiled and traced again

One build holds all chosen mutants (find_mutants.py); every test is run once to see which mutants it
reaches; then each mutant is turned on and the tests that reach it run, the quickest first, until one
fails, twice. A mutant that no test notices survives, and is printed; so does one that tests of --seconds
did not notice. The report is build/mutation/report.json, written after every mutant.
equivalent.txt beside this file lists mutants that change nothing that can be seen; they are not tried.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection

import equivalent_list
import find_mutants

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["src/optim", "src/zero", "src/checkpoint", "src/config"]
# Programs of GoogleTest whose tests are tried: those of the mutant's own folder, then the others.
OWN = {
    "src/optim": ["unit_optim"],
    "src/config": ["unit_config"],
    "src/checkpoint": ["unit_checkpoint", "unit_checkpoint_races", "prop_durability"],
    "src/zero": ["unit_zero", "unit_zero_groups", "unit_zero_stored",
                 "unit_zero_experts", "unit_zero_distillation",
                 "emulated_training", "emulated_zero"],
}
OTHERS = ["prop_checkpoints", "unit_engine", "unit_engine_plan", "capi_abi", "prop_training", "properties_zero"]
# Tests that run one after another until together they take so long, those of a program in one process.
BATCH_SECONDS, BATCH_TESTS = 3.0, 200


@dataclasses.dataclass
class Test:
    program: pathlib.Path
    name: str
    seconds: float = 0.0
    reached: Collection = ()

    def label(self):
        return f"{self.program.name} {self.name}"


@dataclasses.dataclass
class Outcome:
    killed_by: str | None
    tried: float = 0.0  # seconds that the tests take without a mutant
    whole: bool = True  # whether all tests that reach it were tried


def choose(found, left_out, count, seed):
    """The same number from every folder, at most one at a place, and none within another."""
    by_folder = collections.defaultdict(list)
    for mutant in found:
        by_folder[mutant.file.rsplit("/", 1)[0]].append(mutant)
    generator = random.Random(seed)
    chosen = []
    for number, folder in enumerate(sorted(by_folder)):
        share = (count - len(chosen)) // (len(by_folder) - number)
        pool = by_folder[folder]
        generator.shuffle(pool)
        taken = []
        for mutant in pool:  # in an order that does not depend on what is left out
            if len(taken) == share:
                break
            if mutant not in left_out and all(m.file != mutant.file or m.end <= mutant.start or mutant.end <= m.start for m in taken):
                taken.append(mutant)
        chosen += taken
    return chosen


def instrument(mutants, files, source):
    """Writes the files, also those that have no mutant left; gives for each the numbers of its mutants."""
    by_file = {file: [] for file in files}
    for number, mutant in enumerate(mutants):
        if mutant is not None:
            by_file[mutant.file].append((number, mutant))
    for file, places in by_file.items():
        text = (ROOT / file).read_bytes()
        for number, mutant in sorted(places, key=lambda p: -p[1].start):
            new = mutant.text.replace("@", str(number), 1).encode()
            text = text[:mutant.start] + new + text[mutant.end:]
        # What is included as a system header compiles without warnings, whatever the build's flags say.
        write(source / file, f'#include "mutant_switch.h"\n#include "{pathlib.Path(file).name}.mutated"\n'.encode())
        write(source / f"{file}.mutated", f'#pragma GCC system_header\n#line 1 "{file}"\n'.encode() + text)
        write(source / pathlib.Path(file).parent / "mutant_switch.h",
              (ROOT / "tests/mutation/mutant_switch.h").read_bytes())
    return by_file


def write(file, text):
    """Leaves a file alone that says the same already, so that nothing is compiled in vain."""
    if not file.exists() or file.read_bytes() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)


def copy_sources(source, mutants):
    changed = {m.file for m in mutants}
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in files.decode().split("\0"):
        if name and name not in changed and (ROOT / name).exists():
            write(source / name, (ROOT / name).read_bytes())
            shutil.copymode(ROOT / name, source / name)


def build(source, tree, jobs, mutants, wanted):
    """Compiles; a mutant that does not compile is taken out, and the build tried again."""
    files = sorted({mutant.file for mutant in mutants if mutant is not None})
    by_file = instrument(mutants, files, source)
    # The preset of developers: what is not mutated comes from the compiler's cache.
    subprocess.run(["cmake", "--preset", "dev"], cwd=source, check=True, stdout=subprocess.DEVNULL)
    listed = subprocess.run(["ninja", "-C", tree, "-t", "targets", "all"], capture_output=True, text=True).stdout
    programs = [name for name in wanted if re.search(rf"(^|/){name}: ", listed, re.M)]
    for _ in range(8):
        run = subprocess.run(["ninja", "-C", tree, "-k", "0", f"-j{jobs}", *programs], capture_output=True, text=True)
        if run.returncode == 0:
            return [next(p for p in tree.rglob(name) if p.is_file() and os.access(p, os.X_OK)) for name in programs]
        dropped = 0
        for file, line in set(re.findall(r"^(?:\S*/)?(src/\S+?):(\d+):\d+: error:", run.stdout, re.M)):
            for number, mutant in by_file.get(file, []):
                last = mutant.line + mutant.text.count("\n")
                if mutants[number] is not None and mutant.line - 1 <= int(line) <= last + 1:
                    mutants[number] = None
                    dropped += 1
        if not dropped:
            sys.exit("mutation: the build failed:\n" + run.stdout[-4000:])
        by_file = instrument(mutants, files, source)
    sys.exit("mutation: the build fails after eight rounds")


def run_tests(program, names, environment, seconds):
    """The test that failed, or None if all passed; "time" beyond the limit. Only the time in which this process runs
    counts, not while it is stopped for the sake of others."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as output:
        os.chmod(scratch, 0o755)  # a test may give up rights and still need its folder
        process = subprocess.Popen(
            [program, f"--gtest_filter={':'.join(names)}", "--gtest_fail_fast"],
            cwd=scratch, env={**os.environ, "TMPDIR": scratch, **environment}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            for _ in range(int(seconds)):
                try:
                    if process.wait(1) == 0:
                        return None
                    break
                except subprocess.TimeoutExpired:
                    pass
            else:
                return "time"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # ranks that were left behind too
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        begun = re.findall(rb"^\[ RUN      \] (\S+)", output.read(), re.M)
        return begun[-1].decode() if begun else names[0]


def tests_of(program):
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    suite = ""
    for line in listed.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            if "DISABLED_" not in suite + word:
                yield suite + word
        elif word.endswith("."):
            suite = word


def trace(test):
    """Which mutants the test reaches, and how long it takes; None where it fails twice without any."""
    for _ in range(2):
        with tempfile.NamedTemporaryFile() as file:
            start = time.monotonic()
            if run_tests(test.program, [test.name], {"DS_MUTANT_TRACE": file.name}, 600) is None:
                test.seconds = time.monotonic() - start
                numbers = pathlib.Path(file.name).read_bytes()
                test.reached = struct.unpack(f"={len(numbers) // 4}i", numbers)
                return test
    return None


def quick_tests(seconds):
    """Names, as ctest has them, of those that took at most so long when ctest last ran them in build/dev. What it did not
    run is not among them."""
    costs = ROOT / "build/dev/Testing/Temporary/CTestCostData.txt"
    if not costs.exists():
        sys.exit("mutation: --quick needs the times of an earlier run: ctest --test-dir build/dev")
    rows = [line.rsplit(" ", 2) for line in costs.read_text().splitlines()]
    return {row[0] for row in rows if len(row) == 3 and 0 < float(row[2]) <= seconds}


def trace_all(programs, folder, mutants, pool, meant):
    """Traces of the last run are kept while the mutants and the program's own objects are the same."""
    file = folder / "traces.json"
    which = find_mutants.digest(*(repr(m and m.place()) for m in mutants))
    kept = json.loads(file.read_text()) if file.exists() else {}
    out = []
    for program in programs:
        objects = sorted((program.parent / "CMakeFiles" / f"{program.name}.dir").rglob("*.o"))
        names = [name for name in tests_of(program) if meant(f"{program.name}.{name}")]
        key = find_mutants.digest(which, *objects)
        if kept.get(program.name, {}).get("key") != key:
            kept[program.name] = {"key": key, "tests": {}}
        rows = kept[program.name]["tests"]
        tests = [Test(program, name) for name in names if name not in rows]
        for test, traced in zip(tests, pool.map(trace, tests)):
            if traced is None:
                print(f"left out, fails without a mutant: {test.label()}", flush=True)
            else:
                rows[test.name] = [test.seconds, sorted(set(test.reached))]
        if tests:
            file.write_text(json.dumps(kept))
            print(f"{program.name}: {len(rows)} tests, {sum(row[0] for row in rows.values()):.0f} s", flush=True)
        out += [Test(program, name, *rows[name]) for name in names if name in rows]
    return out


def batches(number, tests):
    """The tests that reach the mutant, in processes, the quickest first: of each program those that fit into the next
    few seconds."""
    open_ones = collections.defaultdict(list)
    seconds = 0.0
    for test in sorted((t for t in tests if number in t.reached), key=lambda t: t.seconds):
        open_ones[test.program].append(test)
        seconds += test.seconds
        if len(open_ones[test.program]) == BATCH_TESTS or seconds >= BATCH_SECONDS:
            yield from open_ones.values()
            open_ones.clear()
            seconds = 0.0
    yield from open_ones.values()


def attempt(number, batch):
    """The test that fails with the mutant on, twice, or None. What runs out of time has to be done within a third of
    the time without the mutant, for the machine may just be busy."""
    program, names = batch[0].program, [t.name for t in batch]
    on = {"DS_MUTANT": str(number), "DS_TEST_SEED": str(1000 + number)}  # the same numbers twice
    limit = 20 + 5 * sum(t.seconds for t in batch)
    failed = run_tests(program, names, on, limit)
    if failed is None:
        return None
    if failed == "time":
        without = run_tests(program, names, {"DS_MUTANT": "-1"}, limit / 3)
        again = "time" if without is None else run_tests(program, names, on, 3 * limit)
        return again and f"{program.name} {again if again != 'time' else names[0] + ' and others: time'}"
    again = run_tests(program, [failed], on, limit) or run_tests(program, names, on, limit)
    return again and f"{program.name} {failed}"


def killer(number, tests, seconds, tried):
    outcome = Outcome(None, tried)
    for batch in batches(number, tests):
        if seconds and outcome.tried >= seconds:
            outcome.whole = False
            break
        outcome.killed_by = attempt(number, batch)
        if outcome.killed_by:
            break
        outcome.tried += sum(t.seconds for t in batch)
    return outcome


def write_report(mutants, outcomes, folder):
    """Also the mutants that do not compile and those not tried: --again gives all the same numbers."""
    rows = [{"mutant": m.name(), "place": m.place(), "compiles": m not in outcomes or outcomes[m] is not None,
             "tried": outcomes.get(m) is not None, "killed_by": outcomes[m].killed_by if outcomes.get(m) else None}
            for m in mutants]
    (folder / "report.json").write_text(json.dumps(rows, indent=1) + "\n")


def print_report(outcomes):
    tally = collections.defaultdict(lambda: [0, 0])
    print()
    for mutant, outcome in outcomes.items():
        if outcome is None:
            continue
        count = tally[mutant.file.rsplit("/", 1)[0]]
        count[0] += outcome.killed_by is not None
        count[1] += 1
        if outcome.killed_by is None:
            print("survived:", mutant.name(), "" if outcome.whole else f"(tests of {outcome.tried:.0f} s)")
    timed_out = sum(o is not None and (o.killed_by or "").endswith(": time") for o in outcomes.values())
    print()
    for name, (killed, all_of_it) in sorted(tally.items()):
        print(f"{name}: {killed} of {all_of_it} killed")
    killed, all_of_it = (sum(c[i] for c in tally.values()) for i in (0, 1))
    print(f"{killed} of {all_of_it} mutants killed, {100 * killed / max(all_of_it, 1):.1f} %; {timed_out} by the time "
          "limit")


def own_programs(mutants):
    """Of their folders."""
    return [name for folder, names in OWN.items() for name in names
            if any(m.file.startswith(folder + "/") for m in mutants)]


def try_all(numbers, tests, own, seconds, pool, outcomes, after_each):
    """On the tests of each mutant's own folder, or on all others."""
    reached = set().union(*(t.reached for t in tests))
    print(f"{len(numbers)} mutants, {len(reached & set(numbers.values()))} of them reached by {len(tests)} tests of "
          f"{sum(t.seconds for t in tests):.0f} s", flush=True)

    def start(mutant, number):
        programs = own_programs([mutant])
        meant = [t for t in tests if (t.program.name in programs) == own]
        return pool.submit(killer, number, meant, seconds, outcomes.get(mutant, Outcome(None)).tried)

    waiting = {start(m, n): m for m, n in numbers.items()}
    for done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
        mutant, outcome = waiting[future], future.result()
        outcomes[mutant] = outcome
        after_each()
        if outcome.killed_by is None:
            more = "" if outcome.whole else ", and there are more"
            print(f"survived: {mutant.name()} (tests of {outcome.tried:.0f} s{more})", flush=True)
        if done % 20 == 0:
            killed = sum(m in outcomes and outcomes[m].killed_by is not None for m in waiting.values())
            print(f"{done} of {len(waiting)}, {killed} killed", flush=True)


def options_of(arguments):
    parser = argparse.ArgumentParser(description="mutation testing")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120,
                        help="of tests for a mutant, the quickest first; 0: all that reach it")
    parser.add_argument("--quick", type=float,
                        help="only tests that took at most so many seconds when ctest last ran in build/dev")
    parser.add_argument("--slow", action="store_true", help="with --quick: only the others")
    parser.add_argument("--own", action="store_true", help="only tests of the mutant's own folder")
    parser.add_argument("--build", action="store_true", help="only compile them; --again tries them")
    parser.add_argument("--folders", nargs="+", default=FOLDERS)
    parser.add_argument("--only", default="", help="files that begin so, all their mutants that do not overlap")
    parser.add_argument("--again", action="store_true",
                        help="those that survived the last run, and those not tried in it")
    parser.add_argument("--rest", action="store_true", help="with --again: only those not tried in the last run")
    parser.add_argument("--compile-commands", default=ROOT / "build/dev/sources",
                        help="a folder with the command of each source, as scripts/compile-commands writes it")
    return parser.parse_args(arguments)


def chosen_mutants(options, folder, listed):
    """The mutants of the build, and the outcomes of an earlier run that stand."""
    before = json.loads((folder / "report.json").read_text()) if options.again else []
    again = {tuple(row["place"]): row for row in before}
    files = {place[0] for place in again}

    def wanted(name):
        return name in files if options.again else \
            name.startswith(options.only or tuple(f"{f}/" for f in options.folders))

    found = find_mutants.find(ROOT, options.compile_commands, wanted, folder / "found", options.jobs)
    left_out = find_mutants.equivalent(found, listed)
    if not options.again:
        mutants = choose(found, left_out, len(found) if options.only else options.count, options.seed)
        print(f"{len(found)} possible mutants, {len(left_out)} of them equivalent, {len(mutants)} chosen with seed "
              f"{options.seed}", flush=True)
        return mutants, {}, set(), set()
    # Those whose line is gone leave their number, so that the others keep theirs.
    by_place = {m.place(): m for m in found}
    gone = [place for place in again if place not in by_place]
    by_place.update({p: find_mutants.Mutant(p[0], 0, 0, 0, p[1], "", p[2], p[3]) for p in gone})
    mutants = [by_place[place] for place in again]
    for place in gone:
        again[place]["compiles"] = False
    outcomes = {m: Outcome(again[m.place()]["killed_by"]) if again[m.place()]["compiles"] else None for m in mutants
                if again[m.place()]["killed_by"] or not again[m.place()]["compiles"]}
    for place in gone:
        print("no longer there:", *place[:2], flush=True)
    print(f"{len(mutants)} mutants of the last run, {len(left_out & set(mutants))} of them equivalent", flush=True)
    return mutants, outcomes, left_out, {m for m in mutants if again[m.place()]["tried"]}


def main():
    options = options_of(None)
    folder = ROOT / "build/mutation"
    source = folder / "source"
    tree = source / "build/dev"
    source.mkdir(parents=True, exist_ok=True)

    listed = equivalent_list.LIST
    gone = equivalent_list.gone_lines(ROOT, listed)
    if gone:  # at once, and not after all sources were parsed
        raise SystemExit("mutation: " + "\n".join(gone))
    mutants, outcomes, left_out, tried = chosen_mutants(options, folder, listed)
    copy_sources(source, mutants)
    in_build = [None if m in outcomes and outcomes[m] is None else m for m in mutants]
    programs = build(source, tree, options.jobs, in_build, own_programs(mutants) + ([] if options.own else OTHERS))
    outcomes.update({m: None for m, built in zip(mutants, in_build) if built is None})
    if options.rest:
        outcomes.update({m: Outcome(None) for m in tried - outcomes.keys()})
    print(f"{sum(m is not None for m in in_build)} mutants compile", flush=True)
    write_report(mutants, outcomes, folder)

    if options.build:
        return
    quick = set() if options.quick is None else quick_tests(options.quick)

    def meant(name):
        return options.quick is None or (name in quick) != options.slow

    numbers = {m: n for n, m in enumerate(in_build)
               if m is not None and m not in outcomes and m not in left_out}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for own in (True,) if options.own else (True, False):
            left = {m: n for m, n in numbers.items()
                    if m not in outcomes or (outcomes[m].whole and not outcomes[m].killed_by)}
            if not left:
                break
            wanted = own_programs(left) if own else set(own_programs(mutants)) | set(OTHERS)
            tests = trace_all([p for p in programs if p.name in wanted], folder, in_build, pool, meant)
            try_all(left, tests, own, options.seconds, pool, outcomes, lambda: write_report(mutants, outcomes, folder))
    print_report({m: o for m, o in outcomes.items() if m not in left_out})


if __name__ == "__main__":
    main()
