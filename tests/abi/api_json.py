#!/usr/bin/env python3
"""Writes docs/api/ds_api.json: the C interface in a form that generators of bindings read.

  tests/abi/api_json.py [--compiler CC]           writes it
  tests/abi/api_json.py --check [--compiler CC]   says whether the file there is what the headers say

Everything comes from include/ds.h and what it includes: functions with their parameters, who owns
what, what may be NULL, which threads may call and since when; types; constants with their values;
structs with sizes and offsets, as the compiler lays them out for x86-64.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import header

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
UMBRELLA = ROOT / "include" / "ds.h"
OUTPUT = ROOT / "docs" / "api" / "ds_api.json"


def plain(text):
    """Code without comments, white space and the markers that mean nothing to a compiler."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"\s+", " ", text).strip()


def comment_text(comment):
    text = re.sub(r"^/\*+<?|\*/$", "", comment.strip())
    return re.sub(r"\s*\n\s*\*? ?", " ", text).strip()


def split_parameters(inner):
    out, depth, current = [], 0, ""
    for c in inner:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            out.append(current)
            current = ""
        else:
            current += c
    return [part.strip() for part in out + [current] if part.strip() not in ("", "void")]


def describe_type(text):
    return re.sub(r"\s*\*", "*", re.sub(r"\s+", " ", text)).strip()


def ownership(name, kind, is_out, function):
    """What becomes of a pointer: see `Ownership` in ds.h."""
    if "*" not in kind:
        return "value"
    if is_out:
        if kind == "char**":
            return "owned: ds_string_free"
        handle = re.fullmatch(r"(ds_\w+)\*\*", kind)
        if handle:
            return f"owned: {handle.group(1)}_destroy"
        if "DLManaged" in kind:
            return "owned: its deleter"
        return "filled"
    if function.endswith("_destroy") or function == "ds_string_free":
        return "taken"
    if function.startswith("ds_tensor_from_dlpack") and name == "managed":
        return "taken on success"
    return "borrowed for the call"


def parse_parameter(text, function):
    nullable = "DS_NULLABLE" in text
    text = re.sub(r"\s*\bDS_NULLABLE\b\s*", " ", text)
    name = re.search(r"(\w+)$", text).group(1)
    kind = describe_type(text[:-len(name)])
    is_out = name.startswith("out_")
    return {"name": name, "type": kind, "direction": "out" if is_out else "in",
            "nullable": nullable, "ownership": ownership(name, kind, is_out, function)}


def line_of(comment, label):
    found = re.search(rf"{label}:\s*(.*?)(?:\.(?:\s|$)|$)", comment)
    return found.group(1) if found else None


def parse_function(module, name, comment, declaration):
    text = comment_text(comment)
    code = plain(declaration)
    returns = re.match(r"DS_API (?:DS_EXPERIMENTAL )?(.*?)\b" + name, code).group(1)
    inner = code[code.index("(") + 1:code.rindex(")")]
    deprecated = re.search(r'DS_DEPRECATED\("(.*?)"\)', code)
    any_thread = "Threads: any" in text or "All functions: Threads: any" in module_comment(module)
    return {"name": name, "module": module.stem, "returns": describe_type(returns),
            "parameters": [parse_parameter(p, name) for p in split_parameters(inner)],
            "threads": "any" if any_thread else "one at a time on a handle",
            "blocks": bool(re.search(r"\bBlocks:", text)),
            "since": line_of(text, "Since"),
            "lifecycle": "deprecated" if deprecated else
                         "experimental" if "DS_EXPERIMENTAL" in code else "stable",
            "comment": text}


def module_comment(module):
    return re.search(r"/\*\*.*?\*/", module.read_text(), re.S).group(0)


def structs_of(code):
    return re.findall(r"typedef struct (ds_\w+) \{(.*?)\n\} \1;", code, re.S)


def members_of(body):
    for member in plain(body).split(";"):
        member = member.strip()
        if not member:
            continue
        function = re.search(r"\(\*(\w+)\)", member)
        if function:
            yield function.group(1), "function pointer", 1
            continue
        array = re.search(r"(\w+)\[(\d+)\]$", member)
        name = array.group(1) if array else re.search(r"(\w+)$", member).group(1)
        kind = member[:member.rindex(name)]
        yield name, describe_type(kind), int(array.group(2)) if array else 1


def probe(compiler, structs, constants):
    """Sizes, offsets and values, as the compiler sees them."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "ds.h"', "int main(void) {"]
    for name, members in structs.items():
        lines.append(f'  printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'  printf("{name}.{m} %zu\\n", offsetof({name}, {m}));' for m, _, _ in members]
    lines += [f'  printf("{c} %d\\n", (int){c});' for group in constants.values() for c in group]
    lines += ["  return 0;", "}"]
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "probe.c"), pathlib.Path(folder, "probe")
        source.write_text("\n".join(lines))
        subprocess.run([compiler, f"-I{ROOT / 'include'}", source, "-o", program], check=True)
        out = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {key: int(value) for key, value in (line.split() for line in out.splitlines())}


def describe(compiler):
    modules = header.modules(UMBRELLA)
    codes = {m: m.read_text() for m in modules}
    functions = [parse_function(m, *f) for m in modules for f in header.functions(codes[m])]
    structs = {name: list(members_of(body)) for code in codes.values()
               for name, body in structs_of(code)}
    constants = {name: re.findall(r"\b(DS_\w+)\b", plain(body)) for code in codes.values()
                 for name, body in re.findall(r"^enum (ds_\w+) \{(.*?)\}", code, re.M | re.S)}
    numbers = probe(compiler, structs, constants)
    handles = sorted({h for code in codes.values()
                      for h in re.findall(r"^typedef struct (ds_\w+) \1;", code, re.M)})
    aliases = {name: kind for code in codes.values()
               for kind, name in re.findall(r"^typedef (\w+) (ds_\w+);", code, re.M)}
    callbacks = {name: plain(whole) for code in codes.values()
                 for whole, name in re.findall(r"^(typedef [^;{]*\(\*(ds_\w+)\)[^;]*;)", code, re.M)}
    version = [re.search(rf"DS_VERSION_{part} (\d+)", codes[modules[0]]).group(1)
               for part in ("MAJOR", "MINOR", "PATCH")]
    return {"version": ".".join(version), "handles": handles, "types": aliases,
            "callbacks": callbacks,
            "constants": {name: {c: numbers[c] for c in group} for name, group in constants.items()},
            "structs": {name: {"size": numbers[name],
                               "members": [{"name": m, "type": kind, "count": count,
                                            "offset": numbers[f"{name}.{m}"]}
                                           for m, kind, count in members]}
                        for name, members in structs.items()},
            "functions": functions}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--compiler", default="cc")
    options = parser.parse_args()
    text = json.dumps(describe(options.compiler), indent=1) + "\n"
    if not options.check:
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(text)
        return 0
    if OUTPUT.exists() and OUTPUT.read_text() == text:
        return 0
    print("docs/api/ds_api.json is not what the headers say: run tests/abi/api_json.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
