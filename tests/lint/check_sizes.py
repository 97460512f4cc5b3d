#!/usr/bin/env python3
"""Checks sizes that are hard to read beyond: lines of a function, parameters of a list, functions and members of a
class. What may be larger is a line of size_exceptions.txt with its reason.

Usage: check_sizes.py CTAGS ROOT; prints each violation as file:line: text and fails if any.
       check_sizes.py CTAGS --self-test: each rule must catch a made-up violation.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDERS = ("src", "kernels", "tools")
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
LINES, PARAMETERS, FUNCTIONS, MEMBERS = 80, 7, 40, 15
EXCEPTIONS = pathlib.Path(__file__).with_name("size_exceptions.txt")


def parameters_of(signature):
    """How many parameters a list "(int a, std::map<int, int> b)" has."""
    depth, commas, text = 0, 0, ""
    for c in signature:
        if c in ")>]}":
            depth -= 1
            if depth == 0:
                break
        if depth > 0:
            text += c
        if c in "(<[{":
            depth += 1
        if c == "," and depth == 1:
            commas += 1
    return commas + 1 if text.strip() not in ("", "void") else 0


def tags_of(ctags, root):
    files = [path.relative_to(root).as_posix() for folder in FOLDERS if (root / folder).is_dir()
             for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES]
    done = subprocess.run([ctags, "--output-format=json", "--languages=C++", "--langmap=C++:+.cu.cuh",
                           "--kinds-C++=+p", "--fields=+neSsZK", "--extras=-F", "-L", "-", "-f", "-"],
                          input="\n".join(files), stdout=subprocess.PIPE, text=True, check=True, cwd=root)
    tags = [json.loads(line) for line in done.stdout.splitlines()]
    return [tag for tag in tags if tag["_type"] == "tag"], len(files)


def without_defaults(signature):
    return re.sub(r"\s*=\s*[^,)]*", "", signature)


def check(ctags, root, exceptions):
    tags, count = tags_of(ctags, root)
    violations, used = [], set()

    def found(what, name, tag, text):
        if (what, name) in exceptions:
            used.add((what, name))
        else:
            violations.append(f"{tag['path']}:{tag['line']}: {text}")

    classes, functions, members = {}, collections.defaultdict(set), collections.Counter()
    for tag in tags:
        kind, scope, name = tag["kind"], tag.get("scope", ""), tag["name"]
        if kind in ("class", "struct"):
            classes[f"{scope}::{name}" if scope else name] = tag
        if kind in ("function", "prototype"):
            parameters = parameters_of(tag.get("signature", ""))
            if parameters > PARAMETERS:
                found("parameters", name, tag, f"{name} has {parameters} parameters: {PARAMETERS} may be; name them in "
                      "a struct")
            if tag.get("scopeKind") in ("class", "struct") and name.lstrip("~") != scope.split("::")[-1]:
                functions[scope].add((name, without_defaults(tag.get("signature", ""))))
        if kind == "function" and "end" in tag:
            lines = tag["end"] - tag["line"] + 1
            if lines > LINES:
                found("lines", name, tag, f"{name} has {lines} lines: {LINES} may be; take it apart by step")
        # A struct of named values may have as many as there are.
        if kind == "member" and tag.get("scopeKind") == "class":
            members[scope] += 1
    for name, each in sorted(functions.items()):
        if len(each) > FUNCTIONS and name in classes:
            found("functions", name, classes[name], f"{name} has {len(each)} functions: {FUNCTIONS} may be; split it "
                  "by subject")
    for name, number in sorted(members.items()):
        if number > MEMBERS and name in classes:
            found("members", name, classes[name], f"{name} has {number} members: {MEMBERS} may be; split it by subject")
    for what, name in sorted(set(exceptions) - used):
        violations.append(f"{EXCEPTIONS.name}: {what} {name} is no exception any more: remove the line")
    return violations, count


def read_exceptions(text):
    """Lines "what name: reason"."""
    exceptions = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(lines|parameters|functions|members) (\S+): (\S.*)", line)
        if match is None:
            raise SystemExit(f"{EXCEPTIONS.name}: not \"what name: reason\": {line}")
        exceptions[match.group(1), match.group(2)] = match.group(3)
    return exceptions


def many(count, text, between=" "):
    return between.join(text.replace("#", str(i)) for i in range(count))


SELF_TEST = [
    # file, text, exceptions, expected
    ("src/a/a.h", f"void f({many(8, 'int a#', ', ')});", "", "f has 8 parameters"),
    ("src/a/a.h", f"void f({many(7, 'const std::map<int, int>& a# = {1, 2}', ', ')});", "", None),
    ("src/a/a.h", f"void f({many(8, 'int a#', ', ')});", "parameters f: a reason", None),
    ("src/a/a.cc", "int g;\nvoid f() {\n" + many(79, "g = #;", "\n") + "\n}", "", "f has 81 lines"),
    ("src/a/a.cc", "int g;\nvoid f() {\n" + many(78, "g = #;", "\n") + "\n}", "", None),
    ("kernels/a/a.cu", "int g;\n__global__ void f() {\n" + many(79, "g = #;", "\n") + "\n}", "", "f has 81 lines"),
    ("src/a/a.h", "namespace ds {\nclass A { public: A(); ~A(); " + many(41, "void f#();") + " };\n}", "",
     "ds::A has 41 functions"),
    ("src/a/a.h", "class A { public: A(); ~A(); " + many(40, "void f#();") + " };", "", None),
    ("src/a/a.h", "class A { " + many(16, "int a#_;") + " };", "", "A has 16 members"),
    ("src/a/a.h", "struct A { " + many(16, "int a#;") + " };", "", None),
    ("src/a/a.h", "void f();", "lines g: it is gone", "lines g is no exception any more"),
]


def self_test(ctags):
    failures = 0
    for name, text, exceptions, expected in SELF_TEST:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(text + "\n")
            violations, _ = check(ctags, root, read_exceptions(exceptions))
            good = not violations if expected is None else any(expected in v for v in violations)
            if not good:
                failures += 1
                print(f"self-test: {name}: {text[:60]!r}: expected {expected!r}, got {violations}")
    return failures


def main(argv):
    ctags = argv[1]
    if argv[2] == "--self-test":
        failures = self_test(ctags)
        print(f"{len(SELF_TEST)} cases, {failures} failures")
        return 1 if failures else 0
    violations, count = check(ctags, pathlib.Path(argv[2]).resolve(), read_exceptions(EXCEPTIONS.read_text()))
    for violation in violations:
        print(violation)
    print(f"{count} files, {len(violations)} violations")
    return 1 if violations or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
