"""page_code.py PAGE FOLDER NAME...: writes the C++ blocks of a Markdown page to FOLDER, one file for
each NAME, in order. The page must have exactly as many."""
import pathlib
import re
import sys


def main(page, folder, *names):
    blocks = re.findall(r"(?ms)^```cpp\n(.*?)^```", pathlib.Path(page).read_text())
    if len(blocks) != len(names):
        sys.exit(f"{page} has {len(blocks)} blocks of C++; {len(names)} names are given")
    for name, block in zip(names, blocks):
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block)


if __name__ == "__main__":
    main(*sys.argv[1:])
