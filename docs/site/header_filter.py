#!/usr/bin/env python3
"""Prints a header for doxygen, with a paragraph's end in each comment where text follows the
parameters: what is not indented below "@param" is about the whole function, not the last parameter.

usage: header_filter.py FILE
"""
import re
import sys

BEGIN, END = re.compile(r"^\s*/\*\*"), re.compile(r"\*/")
FIELD = re.compile(r"^ \* @(param|return)")
# "Text", not " more of what is above".
NEW = re.compile(r"^ \* [^@\s]")


def filtered(text):
    out, inside, below_field = [], False, False
    for line in text.splitlines():
        inside = inside or BEGIN.match(line) is not None
        if inside and FIELD.match(line):
            below_field = True
        elif inside and below_field and NEW.match(line):
            out.append(" *")
            below_field = False
        if END.search(line):
            inside = below_field = False
        out.append(line)
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(filtered(file.read()))
