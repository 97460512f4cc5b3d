#!/usr/bin/env python3
"""Makes tests/data/tokenizers/patterns.json: which characters sets of Oniguruma's patterns hold and
where patterns cut texts, from the tokenizers package.

    python tests/parity/gen_pattern_vectors.py

"assigned" and "sets" are lengths of alternating runs, the first of characters outside: over all
code points, and over the assigned ones. Assigned are those of Unicode 14, which the oldest PCRE2
that ds is built with knows (Python 3.11 has the same); newer characters need a newer PCRE2."""
import json
import pathlib
import random
import unicodedata

from tokenizers import Regex, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers" / "patterns.json"
CLASSES = ["alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
           "space", "upper", "xdigit", "word"]
SETS = ([f"[[:{name}:]]" for name in CLASSES] + [rf"\p{{{name}}}" for name in CLASSES] +
        [r"\w", r"\W", r"[\w]", r"\s", r"\d", r"\h", ".", r"[^\n\W]", r"[a[:^alpha:]]",
         r"[^\S\n]", r"\p{Han}", r"\p{Greek}", r"\p{^L}", r"\p{Uppercase_Letter}", r"\P{M}"])
PATTERNS = [r"\b", r"\B", r"\b\w+\b", r"\b[[:alpha:]]+", r"[[:word:]]+", r"[[:upper:]]+",
            r"[[:lower:]]+|[[:punct:]]", r"[[:alnum:]]+|[^[:print:]]+", r"(?m:a.b)|x{,2}y",
            r"a{2}+", r"[\s\S]", r"\p{Han}+|\p{Hiragana}+", r"\u00e9|\v", r"[-\w.]+",
            r"^\w|\w$", r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+"]
PIECES = ["a", "b", "x", "y", "é", "e\u0301", "ß", "Ⅷ", "ⅷ", "²", "¼", "٣", "_", "‿", "-", ".", "'s",
          "$", "+", "€", "漢", "、", "ー", "あ", "ア", "한", "\u0345", "\u0903", "\u200d", "😀", "\n",
          "\u2028", " ", "\u00a0", "\t", "\x0b", "\ue000", "ͅ", "ª", "ʰ", "\u24b6", "\u0363", "12345"]


def assigned():
    return [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def matched(pattern, text):
    """Places of the characters that the pattern matches one by one."""
    kept = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text)
    out = [True] * len(text)
    for _, (begin, end) in kept:
        out[begin:end] = [False] * (end - begin)
    return out


def runs(flags):
    out, current = [0], False
    for flag in flags:
        if flag != current:
            out.append(0)
            current = flag
        out[-1] += 1
    return out


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    known = assigned()
    members = set(known)
    sets = {}
    for pattern in SETS:
        flags = []
        for begin in range(0, len(known), 0x4000):
            flags += matched(pattern, "".join(map(chr, known[begin:begin + 0x4000])))
        sets[pattern] = runs(flags)
    draw = random.Random(5)
    texts = ["".join(draw.choice(PIECES) for _ in range(draw.randrange(3, 20))) for _ in range(60)]
    cuts = {}
    for pattern in PATTERNS:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        cuts[pattern] = [[len(piece.encode()) for piece, _ in split.pre_tokenize_str(text)]
                         for text in texts]
    document = {"assigned": runs(c in members for c in range(0x110000)), "sets": sets,
                "texts": texts, "cuts": cuts}
    OUT.write_text(json.dumps(document, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
