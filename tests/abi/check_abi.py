#!/usr/bin/env python3
"""Checks of the ABI that need no compiler.

check_abi.py header DS_H SYMBOLS          the header's rules, and that it declares the listed symbols
check_abi.py library LIBRARY SYMBOLS NM   the shared library exports exactly the listed symbols
check_abi.py references DS_H OUT          writes a C file that takes the address of every function
"""

import pathlib
import re
import subprocess
import sys

import header

MAX_LINES = 500  # of one module
# Fixed-width numbers under their names, and callbacks.
SCALARS = {"int32_t", "int64_t", "double", "ds_status", "ds_bool", "ds_dtype", "ds_device_kind",
           "ds_reduce_op", "ds_collective_kind", "ds_skip_reason", "ds_weight_form", "ds_scope_mode",
           "ds_value_kind", "ds_extent", "ds_log_fn", "ds_progress_fn", "ds_token_fn",
           "ds_text_token_fn", "ds_release_fn"}


def read_symbols(path):
    names = pathlib.Path(path).read_text().split()
    if names != sorted(set(names)):
        sys.exit(f"{path} must be sorted and without repetitions")
    return names


def compare(what, found, listed):
    errors = [f"{what} has {name}, which ds.symbols does not list" for name in
              sorted(set(found) - set(listed))]
    errors += [f"{what} lacks {name}, which ds.symbols lists" for name in
               sorted(set(listed) - set(found))]
    return errors


def check_parameter(name, parameter):
    """Scalars are fixed-width integers, double and callbacks; everything else is a pointer."""
    if parameter.strip() == "void" or "*" in parameter:
        return []
    words = [w for w in parameter.split() if w not in ("const", "DS_NULLABLE")]
    if len(words) == 2 and words[0] in SCALARS:
        return []
    return [f"{name}: parameter '{parameter.strip()}' has a type the ABI does not use"]


def split_parameters(declaration):
    inner = declaration[declaration.index("(") + 1:declaration.rindex(")")]
    parameters, depth, current = [], 0, ""
    for c in inner:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parameters.append(current)
            current = ""
        else:
            current += c
    return parameters + [current]


def check_module(path):
    """One header: what it includes, how long it is, which types it uses, how functions read."""
    text = path.read_text()
    name = path.name
    errors = []
    includes = re.findall(r"^\s*#\s*include\s*(\S+)", text, re.M)
    allowed = {"<stdint.h>"} if name == "base.h" else {f'"{other.name}"' for other in
                                                      path.parent.glob("*.h")}
    if not includes or not set(includes) <= allowed:
        errors.append(f"{name} includes {includes}; base.h includes <stdint.h>, the others each "
                      "other")
    if text.count("\n") > MAX_LINES:
        errors.append(f"{name} has {text.count(chr(10))} lines; at most {MAX_LINES} are allowed")
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    for banned in (r"\blong\b", r"\bsize_t\b", r"\bunion\b", r"\bbool\b", r"\.\.\.\s*\)"):
        if re.search(banned, code):
            errors.append(f"{name} uses {banned}")
    for enum, body in re.findall(r"enum (ds_\w+) \{(.*?)\}", code, re.S):
        if "-" not in body:
            errors.append(f"{enum} has no negative constant: bindgen would make it unsigned")
    for struct, body in re.findall(r"typedef struct (ds_\w+) \{(.*?)\n\} \1;", code, re.S):
        if not body.strip().startswith("int64_t struct_size;"):
            errors.append(f"{struct} does not begin with struct_size")
        macro = f"#define {struct.upper()}_INIT"
        if macro not in text:
            errors.append(f"{struct} has no {macro}")
    return errors


def check_function(name, comment, declaration):
    errors = []
    if not re.search(r"Since:\s+\d+\.\d+\.", comment):
        errors.append(f"{name}: the comment has no 'Since:' line")
    seen_out = False
    for parameter in split_parameters(re.sub(r"\s+", " ", declaration)):
        errors += check_parameter(name, parameter)
        is_out = re.search(r"\bout_\w+$", parameter.strip()) is not None
        if seen_out and not is_out:
            errors.append(f"{name}: '{parameter.strip()}' follows an out_ parameter")
        seen_out = seen_out or is_out
    if name.endswith("_destroy") and not declaration.startswith("DS_API void"):
        errors.append(f"{name} must return void")
    return errors


def check_header(umbrella, symbols):
    functions = header.all_functions(umbrella)
    errors = compare("ds.h", [name for name, _, _ in functions], symbols)
    missing = set(pathlib.Path(umbrella).parent.glob("ds/*.h")) - set(header.modules(umbrella))
    errors += [f"ds.h does not include {path.name}" for path in missing]
    for path in header.modules(umbrella):
        errors += check_module(path)
    for function in functions:
        errors += check_function(*function)
    return errors


def check_library(library, symbols, nm):
    done = subprocess.run([nm, "-D", "--defined-only", library], check=True,
                          stdout=subprocess.PIPE, text=True)
    found = []
    errors = []
    for line in done.stdout.splitlines():
        kind, name = line.split()[-2:]
        # Sanitizers and coverage add entries of their own to instrumented builds.
        if re.match(r"__(asan|ubsan|tsan|sanitizer|gcov|start___|stop___)", name):
            continue
        found.append(name)
        if kind != "T":
            errors.append(f"{name} is of type {kind}; only functions are exported")
    return errors + compare("the library", found, symbols)


def write_references(path, out):
    functions = header.all_functions(path)
    lines = [
        "/* Generated from ds.h: the address of every declared function, as C sees it. */",
        '#include "ds.h"',
        "typedef void (*any_function)(void);",
        "int count_null_references(void);",
        "int count_null_references(void) {",
        "  static const any_function all[] = {",
    ]
    lines += [f"      (any_function){name}," for name, _, _ in functions]
    lines += [
        "  };",
        "  int missing = 0;",
        "  for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); ++i) missing += all[i] == 0;",
        "  return missing;",
        "}",
        "",
    ]
    pathlib.Path(out).write_text("\n".join(lines))
    return []


def main(argv):
    command, arguments = argv[1], argv[2:]
    if command == "header":
        errors = check_header(arguments[0], read_symbols(arguments[1]))
    elif command == "library":
        errors = check_library(arguments[0], read_symbols(arguments[1]), arguments[2])
    elif command == "references":
        errors = write_references(*arguments)
    else:
        sys.exit(__doc__)
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
