"""Reads the declarations of ds.h and of the headers that it includes, for the tests of the ABI."""

import pathlib
import re


def modules(umbrella):
    """The headers that ds.h includes, in order, as paths."""
    umbrella = pathlib.Path(umbrella)
    names = re.findall(r'^#include "(ds/\w+\.h)"$', umbrella.read_text(), re.M)
    return [umbrella.parent / name for name in names]


def all_functions(umbrella):
    """functions() of all modules."""
    return [one for path in modules(umbrella) for one in functions(path.read_text())]


def functions(text):
    """The declared functions as (name, comment before it, declaration), in order."""
    out = []
    position = 0
    for match in re.finditer(r"^DS_API\s[^;]*?\b(ds_\w+)\s*\([^;]*\)\s*;", text, re.M):
        before = text[position:match.start()].rstrip()
        comment = ""
        if before.endswith("*/"):
            comment = before[before.rindex("/*"):]
        out.append((match.group(1), comment, match.group(0)))
        position = match.end()
    return out
