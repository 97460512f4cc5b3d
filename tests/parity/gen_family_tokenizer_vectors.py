#!/usr/bin/env python3
"""Writes tests/data/tokenizers/families with Hugging Face's `tokenizers` package.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python tests/parity/gen_family_tokenizer_vectors.py

Small vocabularies are trained, with exactly the stages that the model families in use have:

NAME.json    gpt2, llama3, qwen2, llama2 (byte fallback, normalizer), mistral (byte fallback,
             Metaspace), bert (uncased), bert_cased
texts.json   the texts, one list for all
NAME.ids     one row per text: [ids, ids with special tokens, decoded ids]

Characters are taken from Unicode 14 at most, which both sides know.
    python3 gen_family_tokenizer_vectors.py --check FOLDER   writes FOLDER/check.ids for the texts
with FOLDER/tokenizer.json, to compare with a vocabulary that is not in the tree.
"""
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, __version__
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import gen_tokenizer_vectors as basic

FOLDER = basic.FOLDER / "families"
LLAMA3 = basic.CL100K_LIKE
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

HARD = [
    "👨‍👩‍👧‍👦👩🏾‍🚀🏳️‍🌈🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "👍🏻👍🏿 ☝🏽 ✌️✌︎",
    "🇩🇪🇫🇷🇯 🇵 1️⃣ #️⃣ ©️ ™️", "❤️‍🔥 ❤ ‍🔥 \u200d\u200d",
    "a\u0301\u0327\u0323 e\u0328\u0301 q\u0323\u0307 \u0301alone", "Å \u212b A\u030a Ω \u2126 K \u212a ﬁﬂ ﬃ ﬅ",
    "ệ e\u0302\u0323 e\u0323\u0302 o\u031b\u0301 ớ", "ग़ ग\u093c क़ क्‍ष क्‌ष श्री", "각 \u1100\u1161\u11a8 가\u11a8 \u3131\u314f",
    "שלום עולם שָׁלוֹם", "مرحبا بالعالم ٱلْحَمْدُ لِلَّٰهِ", "abc \u202eשלום\u202c def \u2067x\u2069 \u200f\u200e",
    "ﷺ ﷽ ﻷ لا", "日本語テキスト漢字ひらがなカタカナ", "中文字符，测试。！？「引号」", "한국어 텍스트 처리", "繁體中文 𠀀𠀁𪜀𫝀𫠠 㐀㒀",
    "中a文1字x", "x中y", "中 文", "ｆｕｌｌｗｉｄｔｈ １２３ ＡＢＣ ｶﾞ ガ", "\u0000", "a\u0000b\u0001c\u007fd\u0080e\u009ff",
    "a\u0008b\u000bc\u000cd\u000ee\u001bf\u0085g", "\ufeffbom \ufffd \ufffe \uffff \U0001ffff \U0010ffff",
    "soft\u00adhyphen zero\u200bwidth\u2060joiner\u180e \u061c \u2028 \u2029",
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000x", " \u00a0 \u3000\ty",
    "\r\n\r\n \r\n\t\n x\r", "   a   b\n\n\n   c", "\n", "\n\n", " \n", "\n ", "\t\t\tx", "x ", "x  ", "x   \n", "  \n  \n  ",
    "'s 'S 'ſ 'Ts 'tis I'M i'm I'VE we'Ll ''''s can't CAN'T o'clock ’s ‘t", "it'sſ 'llama 'DD 'Re're'VE",
    "1 12 123 1234 12345 123456 1,234.5 ½⅓ ²³ ① Ⅷ ⅷ ٣٤٥٦ १२३४ ๑๒๓ 𝟘𝟙𝟚 〇一二", "3.14e-10 0xFF 1_000 1/2 ¼%",
    "a" * 99, "a" * 100, "a" * 101, "é" * 100, "é" * 101, "the" * 120, "ab" * 700, "漢" * 150, "🙂" * 60, "\u0301" * 120,
    "https://example.com/a/b?c=d&e=f#g user@example.org C:\\path\\file", "snake_case CamelCase kebab-case SCREAMING __x__",
    "for (int i = 0; i < n; ++i) { x[i] += y->z; }  // comment", "{\"key\": [1, 2.5, null, \"v\\n\"]}", "<html><b>&amp;</b></html>",
    "Ĳ ĳ Ǆ ǅ ǆ ŉ ǰ ΐ ΰ և ẖ ẞ ß ſt", "İstanbul ı I i̇ İ", "ΣΊΣΥΦΟΣ Σίσυφος σς Σ", "ѐЀЍѝ йЙ ёЁ ўЎ", "ŁÓDŹ łódź ÇA çà Ñandú ÅNGSTRÖM øre ÆØÅ đĐ",
    "¿Qué? ¡Ay! «guillemets» „quotes“ ‚x‘ ‹y› — – ‐ ‑ ‒ … · • § ¶ † ‡ ※ ‰", "`~!@#$%^&*()-_=+[]{}|;:'\",.<>/?\\", "§±×÷¬¦°µ¢£¥€₿ ∑∏√∞≠≤≥ ←→ ♠♥ ☃ ✓",
    "a.b,c!d?e;f:g-h_i", "...wait!!! what??? -- no -- ok", "don't won't it's they're we've I'm he'd", "U.S.A. e.g. i.e. Ph.D.",
    "ไทยไม่มีวรรค ลาว ພາສາລາວ ខ្មែរ မြန်မာ", "தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල বাংলা ગુજરાતી ਪੰਜਾਬੀ ଓଡ଼ିଆ", "ქართული ჰაერი ᲥᲐᲠᲗᲣᲚᲘ հայերեն Հայ ᏣᎳᎩ ꮳꮃꭹ", "ᚠᚢᚦ ⲁⲃⲅ 𐌰𐌱𐌲 𓀀𓀁 𒀀𒀁 𝔘𝔫𝔦 𝒜𝒷 𝕏", "ʰʷʲ ˈstrɛs ŋθð æ ɐɑɒ", "ㄅㄆㄇ ꀀꀁ ༄༅ ᠮᠣᠩ",
    "mixedСкриптsсмесь ΑlphaΒeta pаypаl", "abc日本def한국ghi中文", "a\u200db\u200cc\u2060d", "x\u034fy \u115f\u1160 \u3164 \u2800 ⠁⠃", "Z̸̡̛͎̱̤̓͛̈́a̷̧̛̲͛l̵̰̀g̶͓̈́o̸̤͝",
    "日本語 guillemets 日本語 łó x łó guillemets日本語",
    "▁under▁ ▁▁ _▁_", "<0x41> <0xFF> <0x0A>", "##ing ##s #hash ##", "Ġword Ċ Ġ Ċ ĉ", "</w> @@ ▂",
]
SPECIAL = [
    "{} in text", "text{}", "{}text", "a{}b", "a {} b", " {} ", "{}{}", "{}\n{}", "x{}  {}y", "é{}é", "中{}文", "half {",
]
SPECIAL_TOKENS = ["<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>",
                  "<unk>", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "[cls]", "<S>"]


def assigned():
    """Code points of Unicode 14 and before; later blocks are skipped if Python knows them."""
    later = [(0x1E030, 0x1E08F), (0x11F00, 0x11F5F), (0x13430, 0x1345F), (0x31350, 0x323AF), (0x1E4D0, 0x1E4FF),
             (0x2EBF0, 0x2EE5F), (0x10D40, 0x10D8F), (0x11380, 0x113FF), (0x105C0, 0x105FF), (0x13460, 0x143FF),
             (0x1C89, 0x1C8A), (0xA7CB, 0xA7CF), (0xA7D2, 0xA7D2), (0xA7D4, 0xA7D4), (0xA7DA, 0xA7DC)]
    single = {0xCF3, 0xECE, 0x897, 0x11938, 0x2B739, 0x1B132, 0x1B155, 0x11241, 0x1123F, 0x11240}
    assert unicodedata.unidata_version.split(".")[0] in ("13", "14", "15"), unicodedata.unidata_version
    return [c for c in range(0x110000)
            if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co") and c not in single
            and not any(a <= c <= b for a, b in later) and not 0x10EFD <= c <= 0x10EFF
            and not 0x1DF25 <= c <= 0x1DF2A and not 0x1CC00 <= c <= 0x1CEFF and not 0x1D2C0 <= c <= 0x1D2D3]


def wild_texts(count, seed):
    rng = random.Random(seed)
    pool = assigned()
    small = [c for c in pool if c < 0x3000]
    words = (basic.FOLDER / "training_text.txt").read_text(encoding="utf-8").split()
    out = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(2, 10)):
            kind = rng.random()
            if kind < 0.3:
                parts.append(rng.choice(words))
            elif kind < 0.6:
                parts.append("".join(chr(rng.choice(small)) for _ in range(rng.randint(1, 5))))
            elif kind < 0.8:
                parts.append("".join(chr(rng.choice(pool)) for _ in range(rng.randint(1, 4))))
            elif kind < 0.9:
                parts.append(rng.choice([" ", "  ", "\n", "\u00a0", "\u3000", "\t \n", "\r\n"]))
            else:
                parts.append(rng.choice(["'s", "'LL", "12345", "ſ", "🙂‍", "\u0301", "-", "<s>", "[SEP]"]))
        out.append(rng.choice(["", " ", " "]).join(parts))
    return out


def all_texts():
    texts = list(basic.TEXTS) + HARD
    for i, form in enumerate(SPECIAL):
        for token in SPECIAL_TOKENS[i % 3::3]:
            texts.append(form.format(*[token] * form.count("{}")) if "{}" in form else form + token)
    return texts + wild_texts(120, 77)


def corpus():
    english = (basic.FOLDER / "training_text.txt").read_text(encoding="utf-8")
    return [english] * 3 + [t for t in HARD if len(t) < 90] * 2


def byte_level_family(pattern, vocab_size, special):
    t = Tokenizer(models.BPE(ignore_merges=pattern is LLAMA3))
    if pattern is None:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=pattern is not QWEN2, use_regex=False)])
    t.decoder = decoders.ByteLevel(add_prefix_space=pattern is not QWEN2)
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in special])
    return t


def gpt2():
    t = byte_level_family(None, 1500, ["<|endoftext|>"])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def llama3():
    raw = json.loads(byte_level_family(LLAMA3, 1500, []).to_str())
    # Words that merging would not reach, which ignore_merges takes whole.
    vocab = raw["model"]["vocab"]
    for word in ["Ġguillemets", "æĹ¥æľ¬èªŀ", "Ġgreatest"]:
        vocab.setdefault(word, max(vocab.values()) + 1)
    t = Tokenizer.from_str(json.dumps(raw))
    t.add_special_tokens([AddedToken(s, normalized=False, special=True)
                          for s in ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                    "<|end_header_id|>", "<|eot_id|>"]])
    begin = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    return t


def qwen2():
    t = byte_level_family(QWEN2, 1500, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.normalizer = normalizers.NFC()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def byte_fallback():
    plain = Tokenizer(models.BPE(unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    plain.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, limit_alphabet=150, special_tokens=["<unk>", "<s>", "</s>"]))
    raw = json.loads(plain.to_str())["model"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for token, _ in sorted(raw["vocab"].items(), key=lambda item: item[1]):
        vocab.setdefault(token, len(vocab))
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in raw["merges"]]
    for blanks in ["▁▁", "▁▁▁▁"]:
        if blanks not in vocab:
            vocab[blanks] = len(vocab)
            merges.append((blanks[:len(blanks) // 2],) * 2)
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in ["<unk>", "<s>", "</s>"]])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    return t


def llama2():
    t = byte_fallback()
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return t


def mistral():
    t = byte_fallback()
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return t


def bert(lowercase=True):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    t.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=1800, limit_alphabet=500, show_progress=False,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    cls, sep = t.token_to_id("[CLS]"), t.token_to_id("[SEP]")
    if lowercase:
        t.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
    else:
        t.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    return t


def rows(t, texts):
    out = []
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        out.append([ids, t.encode(text).ids, t.decode(ids, skip_special_tokens=False)])
    return out


def main():
    texts = all_texts()
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        folder = pathlib.Path(sys.argv[2])
        t = Tokenizer.from_file(str(folder / "tokenizer.json"))
        t.no_truncation()
        t.no_padding()
        basic.write_lines(folder / "check.ids", "[\n", rows(t, texts))
        return
    FOLDER.mkdir(exist_ok=True)
    basic.write_lines(FOLDER / "texts.json", "[\n", texts)
    families = {"gpt2": gpt2(), "llama3": llama3(), "qwen2": qwen2(), "llama2": llama2(), "mistral": mistral(),
                "bert": bert(), "bert_cased": bert(lowercase=False)}
    for name, tokenizer in families.items():
        compact = json.loads(tokenizer.to_str())
        (FOLDER / f"{name}.json").write_text(
            json.dumps(compact, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        basic.write_lines(FOLDER / f"{name}.ids", "[\n", rows(tokenizer, texts))
    print(len(texts), "texts written with tokenizers", __version__)


if __name__ == "__main__":
    main()
