#!/usr/bin/env python3
"""Writes the golden files of tests/data/tokenizers with Hugging Face's `tokenizers` package.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python tests/parity/gen_tokenizer_vectors.py

bpe_1000.json     byte-level BPE that the package trains on training_text.txt
bpe_1000.ids      one line per text: JSON [text, ids, ids with special tokens]
variants.json     the same for tokenizers with other stages: [{name, tokenizer, cases}]
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, __version__
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers"
CL100K_LIKE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEXTS = [
    "",
    " ",
    "a",
    "Hello world",
    "Hello, world!",
    "I'm we'LL  don't they'RE 'tis 's't're",
    "  two  spaces\n\n\tx ",
    "trailing blanks   ",
    "trailing newlines\n\n\n",
    "\r\n\r\nwindows\r\nlines\r\n",
    "tab\tand\x0bvertical\x0cform feed",
    "3.14159 and 2024½ ²³ ⅷ ٣٤٥ १२३ 〇",
    "naïve café 你好 🙂",
    "e\u0301 versus é, A\u030a versus Å versus \u212b, ﬁ ligature, ①",
    "İstanbul ISTANBUL ıi STRASSE straße ΣΑΣ",
    "non\u00a0breaking\u2003em\u3000ideographic\u2028line\u2029para\u0085next",
    "zero\u200bwidth\u200cnon\u200djoiner\ufeffbom\u180emongolian",
    "👩‍👧‍👦 👍🏽 🇩🇪 ❤️ ⛵",
    "मानक हिन्दी क्षि",
    "العربية مع تشكيلٌ",
    "ภาษาไทย ไม่มีช่องว่าง",
    "日本語のテキスト、漢字とカナ。ｶﾀｶﾅ",
    "한국어 각 \u1100\u1161\u11a8",
    "\u0000\u0001\u001f\u007f control",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "𝒳𝓎𝓏 𐍈 𠜎 \U0010ffff",
    "snake_case camelCase __dunder__ x_1",
    "def f(x):\n    return x\n",
    "<|endoftext|>",
    "before<|endoftext|>after <|endoftext|> x",
    "the keeper of the harbour counted the gulls",
    "DeepSpeed is the greatest",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 70 + "x" + "\n" * 50 + "y",
    "!!!???...;;;---===+++###",
    "ßẞſ ǅ ǆ ʰ ª º",
]


def random_texts(count, seed):
    rng = random.Random(seed)
    words = (FOLDER / "training_text.txt").read_text(encoding="utf-8").split(" ")
    blocks = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x900, 0x97F),
              (0x2000, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0x1F300, 0x1F64F)]
    out = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            kind = rng.random()
            if kind < 0.5:
                parts.append(rng.choice(words))
            elif kind < 0.8:
                low, high = rng.choice(blocks)
                parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
            else:
                parts.append(rng.choice([" ", "  ", "\n", "\t", "\n\n", " \n ", "'s", "'LL", "12"]))
        out.append(rng.choice(["", " "]).join(parts))
    return out


def cases(tokenizer, texts):
    return [
        [
            text,
            tokenizer.encode(text, add_special_tokens=False).ids,
            tokenizer.encode(text, add_special_tokens=True).ids,
        ]
        for text in texts
    ]


def train(vocab_size, special=("<|endoftext|>",), **kwargs):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **kwargs)
    text = (FOLDER / "training_text.txt").read_text(encoding="utf-8")
    tokenizer.train_from_iterator([text], trainer=trainer)
    return tokenizer


def variants():
    small = train(400)
    base = json.loads(small.to_str())

    def fresh():
        return Tokenizer.from_str(json.dumps(base))

    out = []

    def add(name, tokenizer, texts=None):
        out.append({"name": name, "tokenizer": json.loads(tokenizer.to_str()),
                    "cases": cases(tokenizer, TEXTS if texts is None else texts)})

    t = fresh()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    add("prefix space", t)

    t = fresh()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CL100K_LIKE), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|endoftext|> $A <|endoftext|>",
                                      special_tokens=[("<|endoftext|>", 0)])])
    add("split regex, template", t)

    t = fresh()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    add("digits, prefix space on every piece", t)

    t = fresh()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    add("no regex", t)

    for behavior in ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            t = fresh()
            t.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(r"[aeiou ]"), behavior, invert),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            add(f"split {behavior} invert={invert}", t, TEXTS[:14] + TEXTS[26:32])

    # Text that both packages' Unicode versions treat alike.
    for name, normalizer in [
        ("nfc", normalizers.NFC()), ("nfd", normalizers.NFD()), ("nfkc", normalizers.NFKC()),
        ("nfkd", normalizers.NFKD()), ("lowercase", normalizers.Lowercase()),
        ("nfd, lowercase, nfc", normalizers.Sequence(
            [normalizers.NFD(), normalizers.Lowercase(), normalizers.NFC()])),
        ("replace", normalizers.Sequence(
            [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace("e", "E")])),
    ]:
        t = fresh()
        t.normalizer = normalizer
        add(name, t)

    t = fresh()
    t.normalizer = normalizers.Lowercase()
    t.add_special_tokens([AddedToken("<s>", lstrip=True), AddedToken("</s>", rstrip=True)])
    t.add_tokens([
        AddedToken("Harbour", normalized=True), AddedToken("GULL", normalized=False),
        AddedToken("cat", single_word=True, normalized=False), AddedToken("  ", normalized=False),
        AddedToken("catalogue", normalized=False), AddedToken("été", normalized=False),
    ])
    # No blanks behind </s> that are a token themselves: there the package gives them out twice.
    add("added tokens", t, TEXTS[:12] + [
        "a <s> b </s> c", "<s><s>\n <s>x</s> \t</s>", "the harbour HARBOUR Harbour gull GULL GULLS",
        "cat cats concat cat_ (cat) cat", "catalogue cat catalog", "écat caté cat",
        "x  y   z    w", "l'été étés", "</s> <s>", "<s", "<s>  </s> ",
    ])

    t = fresh()
    raw = json.loads(t.to_str())
    raw["model"]["ignore_merges"] = True
    extra = "Ġlighthouse"
    raw["model"]["vocab"][extra] = len(raw["model"]["vocab"])
    add("ignore merges", Tokenizer.from_str(json.dumps(raw)), TEXTS[:8] + ["a lighthouse lighthouses"])

    vocab = {"<unk>": 0, "▁": 1}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for c in "abcdefghijklmnopqrstuvwxyzé":
        vocab[c] = len(vocab)
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("i", "n"), ("e", "r"), ("▁", "▁")]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    add("byte fallback", t)

    # Every other byte token missing: unknowns between spelled characters.
    few = {k: v for k, v in vocab.items() if not (k.startswith("<0x") and v % 2)}
    few = {k: i for i, k in enumerate(few)}
    for fuse in [False, True]:
        t = Tokenizer(models.BPE(few, merges, unk_token="<unk>", byte_fallback=False, fuse_unk=fuse))
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
        add(f"unknown fuse={fuse}", t, TEXTS[:14])
    return out


def write_lines(path, head, rows):
    with open(path, "w", encoding="utf-8") as out:
        out.write(head)
        out.write(",\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
        out.write("\n]\n")


def main():
    tokenizer = train(1000)
    tokenizer.save(str(FOLDER / "bpe_1000.json"))
    write_lines(FOLDER / "bpe_1000.ids", "[\n", cases(tokenizer, TEXTS + random_texts(150, 2024)))
    write_lines(FOLDER / "variants.json", "[\n", variants())
    print("written with tokenizers", __version__)


if __name__ == "__main__":
    main()
