"""Mutation testing: small changes of meaning in the sources, each of which some test ought to notice.

    scripts/mutation                         300 mutants of optim, zero, checkpoint and config
    scripts/mutation --count 50 --seed 7 --folders src/optim
    scripts/mutation --only 'src/optim/schedule.cc'      every mutant of files that begin so
    scripts/mutation --again                 those that survived the last run, after tests were added

One build holds all chosen mutants (find_mutants.py); every test suite is run once to see which mutants
it reaches; then each mutant is turned on and the suites that reach it run, the quickest first, until one
fails. A mutant that no test notices survives, and is printed. The report is build/mutation/report.json.
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

import find_mutants

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["src/optim", "src/zero", "src/checkpoint", "src/config"]
# Programs of GoogleTest whose suites are tried.
PROGRAMS = ["unit_optim", "unit_config", "unit_checkpoint", "unit_zero", "unit_zero_groups", "unit_zero_stored",
            "unit_zero_zenflow", "unit_zero_experts", "unit_engine", "unit_engine_plan",
            "properties_zero", "prop_training", "prop_checkpoints", "prop_durability", "capi_abi", "emulated_offload"]


@dataclasses.dataclass
class Suite:
    program: pathlib.Path
    name: str
    seconds: float = 0.0
    reached: frozenset = frozenset()

    def label(self):
        return f"{self.program.name} {self.name}"


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


def build(source, tree, jobs, mutants):
    """Compiles; a mutant that does not compile is taken out, and the build tried again."""
    files = sorted({mutant.file for mutant in mutants})
    by_file = instrument(mutants, files, source)
    # The preset of developers: what is not mutated comes from the compiler's cache.
    subprocess.run(["cmake", "--preset", "dev"], cwd=source, check=True, stdout=subprocess.DEVNULL)
    listed = subprocess.run(["ninja", "-C", tree, "-t", "targets", "all"], capture_output=True, text=True).stdout
    programs = [name for name in PROGRAMS if re.search(rf"(^|/){name}: ", listed, re.M)]
    for _ in range(8):
        run = subprocess.run(["ninja", "-C", tree, "-k", "0", f"-j{jobs}", *programs], capture_output=True, text=True)
        if run.returncode == 0:
            return programs
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


def run_suite(suite, environment, limit):
    """Whether every test of the suite passed within the limit."""
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)  # a test may give up rights and still need its folder
        process = subprocess.Popen(
            [suite.program, f"--gtest_filter={suite.name}.*", "--gtest_brief=1", "--gtest_fail_fast"],
            cwd=scratch, env={**os.environ, "TMPDIR": scratch, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # ranks that were left behind too
            except ProcessLookupError:
                pass


def suites_of(tree, programs):
    for name in programs:
        program = next(p for p in tree.rglob(name) if p.is_file() and os.access(p, os.X_OK))
        listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
        for line in listed.splitlines():
            if line and not line.startswith(" ") and line.split()[0].endswith("."):
                yield Suite(program, line.split()[0][:-1])


def trace(suite):
    """Which mutants the suite reaches, and how long it takes; None where it fails twice without any."""
    for _ in range(2):
        with tempfile.NamedTemporaryFile() as file:
            start = time.monotonic()
            if run_suite(suite, {"DS_MUTANT_TRACE": file.name}, 600):
                suite.seconds = time.monotonic() - start
                numbers = pathlib.Path(file.name).read_bytes()
                suite.reached = frozenset(struct.unpack(f"={len(numbers) // 4}i", numbers))
                return suite
    return None


def killer(number, suites):
    """The first suite that fails with the mutant on, or None."""
    for suite in suites:
        if number in suite.reached and not run_suite(suite, {"DS_MUTANT": str(number)}, 20 + 5 * suite.seconds):
            return suite.label()
    return None


def report(mutants, kills, folder):
    rows = [{"mutant": m.name(), "place": m.place(), "killed_by": kills[n]}
            for n, m in enumerate(mutants) if m is not None]
    (folder / "report.json").write_text(json.dumps(rows, indent=1) + "\n")
    tally = collections.defaultdict(lambda: [0, 0])
    for number, mutant in enumerate(mutants):
        if mutant is not None:
            count = tally[mutant.file.rsplit("/", 1)[0]]
            count[0] += kills[number] is not None
            count[1] += 1
    print()
    for row in rows:
        if row["killed_by"] is None:
            print("survived:", row["mutant"])
    print()
    for name, (killed, all_of_it) in sorted(tally.items()):
        print(f"{name}: {killed} of {all_of_it} killed")
    killed, all_of_it = (sum(c[i] for c in tally.values()) for i in (0, 1))
    print(f"{killed} of {all_of_it} mutants killed, {100 * killed / max(all_of_it, 1):.1f} %")


def main():
    parser = argparse.ArgumentParser(description="mutation testing")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folders", nargs="+", default=FOLDERS)
    parser.add_argument("--only", default="", help="files that begin so, all their mutants that do not overlap")
    parser.add_argument("--again", action="store_true", help="those that survived the last run")
    parser.add_argument("--compile-commands", default=ROOT / "build/dev", help="the build tree that describes the sources")
    options = parser.parse_args()
    folder = ROOT / "build/mutation"
    source = folder / "source"
    tree = source / "build/dev"
    source.mkdir(parents=True, exist_ok=True)

    listed = pathlib.Path(__file__).with_name("equivalent.txt")
    find_mutants.check_lines(ROOT, listed)
    found = find_mutants.find(ROOT, options.compile_commands, options.folders)
    left_out = find_mutants.equivalent(found, listed)
    everything = options.only or options.again
    if options.only:
        found = [m for m in found if m.file.startswith(options.only)]
    if options.again:
        survivors = [row["place"] for row in json.loads((folder / "report.json").read_text()) if not row["killed_by"]]
        found = [m for m in found if m.place() in survivors]
    mutants = choose(found, left_out, len(found) if everything else options.count, options.seed)
    print(f"{len(found)} possible mutants, {len(left_out)} of them equivalent, {len(mutants)} chosen with seed "
          f"{options.seed}", flush=True)
    copy_sources(source, mutants)
    programs = build(source, tree, options.jobs, mutants)
    left = sum(m is not None for m in mutants)
    print(f"{left} mutants compile", flush=True)

    kills = [None] * len(mutants)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        all_suites = list(suites_of(tree, programs))
        suites = [s for s in pool.map(trace, all_suites) if s]
        for suite in set(s.label() for s in all_suites) - set(s.label() for s in suites):
            print(f"left out, fails without a mutant: {suite}")
        suites.sort(key=lambda s: s.seconds)
        reached = frozenset().union(*(s.reached for s in suites))
        print(f"{len(suites)} suites, {sum(s.seconds for s in suites):.0f} s; they reach {len(reached)} mutants",
              flush=True)
        waiting = {pool.submit(killer, n, suites): n for n, m in enumerate(mutants) if m is not None}
        for done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            number = waiting[future]
            kills[number] = future.result()
            if kills[number] is None:
                print("survived:", mutants[number].name(), flush=True)
            if done % 20 == 0:
                print(f"{done} of {left}, {sum(k is not None for k in kills)} killed", flush=True)
    report(mutants, kills, folder)


if __name__ == "__main__":
    main()
