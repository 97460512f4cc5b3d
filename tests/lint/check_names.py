#!/usr/bin/env python3
"""Checks that no two files define different classes of one name: a program may link both, and the linker keeps the
functions of one of them for both. Names in anonymous namespaces are a file's own, and specialisations of a template
belong together.

Usage: check_names.py CTAGS ROOT; prints each violation as file:line: text and fails if any.
       check_names.py CTAGS --self-test: the rule must catch a made-up violation, and no more than that.
"""

import pathlib
import sys
import tempfile

from check_sizes import tags_of

KINDS = ("class", "struct", "union", "enum")


def check(ctags, root):
    tags, count = tags_of(ctags, root)
    first, violations = {}, []
    for tag in tags:
        name = f"{tag.get('scope', '')}::{tag['name']}".removeprefix("::")
        if tag["kind"] not in KINDS or tag.get("scopeKind") not in (None, "namespace") or "__anon" in name:
            continue
        if f"{tag['name']}<" in tag["pattern"]:  # a specialisation
            continue
        # tools/ is a program that knows the library by its C interface alone.
        other = first.setdefault((tag["path"].split("/")[0] == "tools", name), tag)
        if other["path"] != tag["path"]:
            violations.append(f"{tag['path']}:{tag['line']}: {name} is defined in {other['path']}:{other['line']}, too: "
                              "give one of them a name of its own")
    return violations, count


SELF_TEST = [
    # the text of two files, whether they may be together
    ("namespace a {\nstruct B { int c; };\n}", "namespace a {\nclass B {};\n}", False),
    ("namespace a {\nstruct B { int c; };\n}", "namespace b {\nclass B {};\n}", True),
    ("namespace a {\nnamespace {\nstruct B { int c; };\n}\n}", "namespace a {\nclass B {};\n}", True),
    ("template <>\nstruct B<int> {\n  int a;\n};", "template <>\nstruct B<long> {\n  int a;\n};", True),
    ("struct A {\n  struct B {\n  };\n};", "struct B {\n};", True),
    ("struct B;", "struct B {\n};", True),
]


def self_test(ctags):
    failures = 0
    for one, other, good in SELF_TEST:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src").mkdir()
            (root / "src/one.h").write_text(one + "\n")
            (root / "src/other.h").write_text(other + "\n")
            violations, _ = check(ctags, root)
            if bool(violations) == good:
                failures += 1
                print(f"self-test: {one!r} and {other!r}: got {violations}")
    return failures


def main(argv):
    ctags = argv[1]
    if argv[2] == "--self-test":
        failures = self_test(ctags)
        print(f"{len(SELF_TEST)} cases, {failures} failures")
        return 1 if failures else 0
    violations, count = check(ctags, pathlib.Path(argv[2]).resolve())
    for violation in violations:
        print(violation)
    print(f"{count} files, {len(violations)} violations")
    return 1 if violations or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
