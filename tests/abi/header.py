"""Reads the function declarations of ds.h, for the tests of the ABI."""

import re


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
