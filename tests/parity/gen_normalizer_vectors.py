"""Writes tests/data/tokenizers/normalizers.json: texts through each kind of normalizer of Hugging Face's `tokenizers`
(0.23), in the form of tokenizer.json. Not run by the tests."""
import json
import pathlib

from tokenizers import Regex, Tokenizer, models, normalizers

TEXTS = [
    "\u00c5ngstr\u00f6m \ufb01n \u2460 \u212b", "\u0130stanbul STRASSE \u1e9e \u03a3\u03a3",
    "  \u00a0pad\u3000 ", "cafe\u0301 \u0928\u093e", "a\u4e2db\u0000c\u200dd\ufffd\te\u00a0f", "  ", "",
    "x\U00020000y \U0001f600", "\u1e69\u0323 \uac00\u11a8 \u0344", "\u01c5 \u2126 \u0390 \u0587", "\r\n\v\f\u0085|\u2028",
    "\u3042\u30ab\uff76\uff9e \uf900 \U0002f800",
]


def kinds():
    n = normalizers
    return {
        "Nfc": n.NFC(), "Nfd": n.NFD(), "Nfkc": n.NFKC(), "Nfkd": n.NFKD(), "Lowercase": n.Lowercase(),
        "StripAccents": n.StripAccents(), "Strip": n.Strip(), "StripLeft": n.Strip(True, False),
        "StripRight": n.Strip(False, True), "StripNothing": n.Strip(False, False), "Prepend": n.Prepend("\u2581"),
        "Replace": n.Replace(" ", "\u2581"), "ReplaceRegex": n.Replace(Regex("[0-9a-c]+"), "#"),
        "Bert": n.BertNormalizer(),
        "BertAsItIs": n.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=None,
                                       lowercase=False),
        "BertAccents": n.BertNormalizer(strip_accents=True, lowercase=False),
        "BertLowercase": n.BertNormalizer(strip_accents=False, lowercase=True),
        "Sequence": n.Sequence([n.NFD(), n.StripAccents(), n.Lowercase(), n.Strip()]),
        "Empty": n.Sequence([]),
    }


def main():
    rows = []
    for name, normalizer in kinds().items():
        whole = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
        whole.normalizer = normalizer
        rows.append({"name": name, "normalizer": json.loads(whole.to_str())["normalizer"],
                     "texts": [[text, normalizer.normalize_str(text)] for text in TEXTS]})
    out = pathlib.Path(__file__).resolve().parents[1] / "data/tokenizers/normalizers.json"
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
