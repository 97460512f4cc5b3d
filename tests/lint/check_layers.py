#!/usr/bin/env python3
"""Checks the house rules that a compiler does not: who may include whom, file sizes, and that the
library never prints, exits, forks or changes signals and the environment.

Usage: check_layers.py [SOURCE_ROOT]; prints each violation as file:line: text and fails if any.
       check_layers.py --self-test: each rule must catch a made-up violation.
"""

import pathlib
import re
import sys
import tempfile

# Bottom to top. A folder may include itself and lower ones. The list is the build's.
LAYERS = re.search(r"set\(DS_LAYERS ([^)]*)\)",
                   (pathlib.Path(__file__).resolve().parents[2] / "src/CMakeLists.txt").read_text()).group(1).split()
MAX_BYTES = 64 * 1024
# The whole C interface is one file, by promise.
LARGER = {"include/ds.h": 128 * 1024}
SOURCE_SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cu", ".cuh", ".inc"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# Calls that a library inside somebody else's process must not make: pattern, what it is, and the
# files that may (the log sink's default, which writes to standard error).
FORBIDDEN_CALLS = [
    (re.compile(r"(?<![\w.>:])(?<!void )(?:std::|::)?(?:_?exit|quick_exit|_Exit|abort|terminate)\s*\("),
     "ends the process", set()),
    (re.compile(r"(?<![\w.>:])(?<!void )(?:std::|::)?(?:v?printf|puts|putchar|perror)\s*\("),
     "prints", set()),
    (re.compile(r"(?<![\w.>:])(?<!void )(?:std::|::)?(?:v?fprintf|fputs|fputc|putc)\s*\("),
     "prints", {"src/base/log.cc"}),
    (re.compile(r"\bstd::(?:cout|cerr|clog)\b"), "prints", set()),
    (re.compile(r"(?<![\w.>:])(?<!void )(?:std::|::)?(?:setenv|unsetenv|putenv|clearenv)\s*\("),
     "changes the environment", set()),
    (re.compile(r"(?<![\w.>:])(?<!void )(?:std::|::)?(?:signal|sigaction|sigprocmask|pthread_sigmask|raise)"
                r"\s*\("), "touches signals",
     {"kernels/matmul/onednn.cc"}),  # masks them on one thread, for one product
    (re.compile(r"(?<![\w.>:])(?<!void )(?:std::|::)?(?:fork|vfork|system|popen|execl|execv|execvp|execve|"
                r"posix_spawn|posix_spawnp)\s*\("), "starts a process", set()),
    (re.compile(r"(?<![\w.>:])(?<!void )(?:std::|::)?(?:setlocale|chdir|umask)\s*\(|\bstd::locale::global\b"
                r"|\bcurrent_path\s*\(\s*[^)\s]"), "changes a setting of the whole process", set()),
    (re.compile(r"(?<![\w.>:])(?<!void )(?:std::)?assert\s*\("), "may end the process", set()),
]


# Above the mesh nobody asks a communicator where it is: of several axes each has its own answer.
MESH_READERS = ("optim", "data", "checkpoint", "zero", "engine")
COMM_RANK = re.compile(r"\b(?:\w*(?:comm|world|group)\w*(?:\(\))?(?:->|\.)|"
                       r"(?:all|shard|replicas|secondary|node|across|ranks)_?->)(?:rank|size)\s*\(\s*\)")
# Nor does it make groups of its own.
COMM_SPLIT = re.compile(r"(?:->|\.)split\s*\(\s*[^)\s]|\bmake_single_communicator\s*\(")
# These run one collective over a group that they are given.
COMM_RANK_ALLOWED = {"src/engine/agreement.cc", "src/engine/rank_devices.cc", "src/engine/product_timing.cc"}
# The world of an engine that is given none.
COMM_SPLIT_ALLOWED = {"src/engine/lone_process.cc"}


def strip_comments_and_strings(text):
    """Blanks comments, strings and characters, keeping line numbers."""
    pattern = re.compile(
        r'R"([^()\\ ]{0,16})\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
        r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)
    return pattern.sub(lambda m: "\n" * m.group(0).count("\n") or " ", text)


def layer_of(relative):
    """The layer a file lives on, or None for what is outside src and kernels."""
    parts = relative.parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "kernels":
        return "kernels"
    return None


def layer_of_include(target, quoted_by, root):
    """The layer that an #include names, or None when it is not one of ours."""
    first = target.split("/", 1)[0]
    if "/" in target and first in LAYERS:
        return first
    beside = (quoted_by.parent / target).resolve()
    try:
        return layer_of(beside.relative_to(root)) if beside.is_file() else None
    except ValueError:
        return None


def check_includes(path, relative, lines, root, report):
    top = relative.parts[0]
    layer = layer_of(relative)
    if top == "src" and len(relative.parts) > 2 and layer not in LAYERS:
        report(relative, 1, f"src/{layer} is not a layer of src/CMakeLists.txt")
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(2)
        name = target.rsplit("/", 1)[-1]
        if name in ("ds.h", "ds.hpp") and layer is not None and layer != "capi":
            report(relative, number, "only src/capi may include ds.h")
        if name == "ds.hpp" and layer == "capi":
            report(relative, number, "ds.hpp is for clients; src/capi includes ds.h")
        if top in ("tools", "examples", "bindings", "include"):
            other = layer_of_include(target, path, root)
            if other is not None:
                report(relative, number, f"{top} may use ds.h and ds.hpp only, not {target}")
            continue
        if layer is None:
            continue
        other = layer_of_include(target, path, root)
        if other is None or other == layer:
            continue
        if layer == "kernels" and other != "base":
            report(relative, number, f"kernels may include base only, not {target}")
        elif LAYERS.index(other) > LAYERS.index(layer):
            report(relative, number, f"{layer} may not include {target}: {other} is a higher layer")


def check_table(root, report):
    """The table of docs/architecture.md has every layer, in order."""
    name = pathlib.PurePath("docs/architecture.md")
    if not (root / name).is_file():
        return
    rows = re.findall(r"^\| `(?:src/)?(\w+)(?:/<family>)?` \|", (root / name).read_text(), re.M)
    listed = [row for row in rows if row in LAYERS]
    if listed != LAYERS:
        report(name, 1, f"the table lists {' '.join(listed)}; src/CMakeLists.txt has {' '.join(LAYERS)}")


def check_calls(relative, text, report):
    name = relative.as_posix()
    for pattern, what, allowed in FORBIDDEN_CALLS:
        if name in allowed:
            continue
        for match in pattern.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            report(relative, number, f"{match.group(0).strip()} {what}; the library must not")


def check_mesh(relative, text, report):
    """Rank, size and groups come from the mesh."""
    if layer_of(relative) not in MESH_READERS:
        return

    def refuse(match, what):
        report(relative, text.count("\n", 0, match.start()) + 1,
               f"{match.group(0).strip()}: {what} the mesh (src/mesh)")

    for match in COMM_RANK.finditer(text):
        if re.match(r"(?:shard_group|groups?|param_groups)_?\b", match.group(0)):
            continue  # optim's view of a shard group; lists
        if relative.as_posix() not in COMM_RANK_ALLOWED:
            refuse(match, "rank and size come from")
    for match in COMM_SPLIT.finditer(text):
        if relative.as_posix() not in COMM_SPLIT_ALLOWED:
            refuse(match, "groups come from")


def source_files(root):
    for top in ("src", "kernels", "include", "tools", "examples", "bindings", "bench", "tests"):
        folder = root / top
        if not folder.is_dir():
            continue
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in SOURCE_SUFFIXES:
                yield path


def check(root):
    root = root.resolve()
    violations = []

    def report(relative, number, text):
        violations.append(f"{relative.as_posix()}:{number}: {text}")

    check_table(root, report)
    count = 0
    for path in source_files(root):
        count += 1
        relative = path.relative_to(root)
        raw = path.read_bytes()
        limit = LARGER.get(relative.as_posix(), MAX_BYTES)
        if len(raw) > limit:
            report(relative, 1, f"{len(raw)} bytes; files stay below {limit}: split by subject")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            report(relative, 1, f"not UTF-8 at byte {error.start}")
            continue
        check_includes(path, relative, text.split("\n"), root, report)
        # Tools that the build runs (*_main.cc) are programs, not library.
        is_program = path.stem.endswith("_main")
        if relative.parts[0] in ("src", "kernels") and not is_program:
            bare = strip_comments_and_strings(text)
            check_calls(relative, bare, report)
            check_mesh(relative, bare, report)
    if count == 0:
        violations.append(f"{root}: no sources found")
    return violations, count


SELF_TEST = [
    ("src/base/a.cc", '#include "tensor/tensor.h"\n', "higher layer"),
    ("src/engine/a.cc", '#include "ds.h"\n', "only src/capi"),
    ("kernels/norm/a.cc", '#include "tensor/tensor.h"\n', "base only"),
    ("tools/a.cc", '#include "engine/engine.h"\n', "ds.h and ds.hpp only"),
    ("examples/a.c", '#include "../src/base/error.h"\n', "ds.h and ds.hpp only"),
    ("src/attic/a.cc", "int x;\n", "not a layer"),
    ("docs/architecture.md", "| `src/base` | errors |\n", "the table lists base;"),
    ("src/base/a.cc", "void f() { std::exit(1); }\n", "ends the process"),
    ("src/base/a.cc", "void f() { abort(); }\n", "ends the process"),
    ("src/base/a.cc", 'void f() { std::printf("x"); }\n', "prints"),
    ("src/nn/a.cc", 'void f() { std::cout << "x"; }\n', "prints"),
    ("src/nn/a.cc", 'void f() { fprintf(stderr, "x"); }\n', "prints"),
    ("kernels/norm/a.cc", 'void f() { setenv("A", "B", 1); }\n', "environment"),
    ("src/io/a.cc", "void f() { sigaction(2, 0, 0); }\n", "signals"),
    ("src/io/a.cc", "void f() { ::signal(2, 0); }\n", "signals"),
    ("src/io/a.cc", "void f() { fork(); }\n", "starts a process"),
    ("src/io/a.cc", "void f() { assert(true); }\n", "may end"),
    ("src/io/a.cc", "//" + "x" * MAX_BYTES + "\n", "split by subject"),
    ("src/engine/a.cc", "int f(C& c) { return run.comm->rank(); }\n", "come from the mesh"),
    ("src/data/a.cc", "int f(C& world) { return world.size(); }\n", "come from the mesh"),
    ("src/engine/a.cc", "int f() { return gradient_group()->size(); }\n", "come from the mesh"),
    ("src/zero/a.cc", "int f() { return groups_.shard->size() + ranks_->rank(); }\n", "come from the mesh"),
    ("src/zero/a.cc", "auto f(C& all) { return all.split(0, 1); }\n", "groups come from the mesh"),
    ("src/engine/a.cc", "auto f() { return make_single_communicator(); }\n", "groups come from the mesh"),
    # These are fine.
    ("src/engine/a.cc", "int f() { return mesh.rank() + mesh.size(kData) + layout.world(); }\n", None),
    ("src/zero/a.cc", "int f() { return groups_.shard.size + shards.size() + ranks_.rank; }\n", None),
    ("src/engine/lone_process.cc", "auto f() { return make_single_communicator(); }\n", None),
    ("src/engine/agreement.cc", "int f(C& comm) { return comm.rank(); }\n", None),
    ("src/comm/a.cc", "int f(C& comm) { return comm.rank(); }\n", None),
    ("src/tensor/a.cc", '#include "base/error.h"\n#include <vector>\n', None),
    ("src/capi/a.cc", '#include "ds.h"\n#include "engine/engine.h"\n', None),
    ("src/base/a.cc", '// exit(1) and printf( in a comment\nint x;\n', None),
    ("src/base/a.cc", 'const char* t = "exit(1)";\nconst char c = \'"\';\n', None),
    ("src/comm/a.cc", "void f(C& c) { c.abort(1); c->exit(); this_exit(); }\n", None),
    ("src/comm/a.cc", "void abort(int);\nvoid Comm::abort(int) {}\n", None),
    ("src/base/log.cc", 'void f() { std::fprintf(stderr, "x"); }\n', None),
    ("src/base/a.cc", 'void f() { std::snprintf(b, 1, "x"); static_assert(1); }\n', None),
]


def self_test():
    failures = 0
    for name, text, expected in SELF_TEST:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for extra in ("src/base/error.h", "src/engine/engine.h", "src/tensor/tensor.h"):
                (root / extra).parent.mkdir(parents=True, exist_ok=True)
                (root / extra).write_text("\n")
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
            violations, _ = check(root)
            good = not violations if expected is None else any(expected in v for v in violations)
            if not good:
                failures += 1
                print(f"self-test: {name}: {text[:60]!r}: expected {expected!r}, got {violations}")
    return failures


def main(argv):
    if len(argv) > 1 and argv[1] == "--self-test":
        failures = self_test()
        print(f"{len(SELF_TEST)} cases, {failures} failures")
        return 1 if failures else 0
    root = pathlib.Path(argv[1]) if len(argv) > 1 else pathlib.Path(__file__).parents[2]
    violations, count = check(root)
    for violation in violations:
        print(violation)
    print(f"{count} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
