"""Writes tests/vectors/difflib_ratio.jsonl: pairs of texts with difflib's ratios, one `[a, b, ratio, ratio_lines]` a line.

Run it from the root of the repository after a change of the cases; the same cases come out each time.
"""

import json
import random

from difflib_ratio import ratios

ALPHABETS = ["a", "ab", "abc", "abcdefghij \n", "äöüß€\n", "👍👎🎉 ab", "0123456789+-*/=() ", "e\u0301o\u0308n\u0303"]
WORDS = "the a of rollout task reward trace Grüße 42 naïve = ( ) \n".split(" ")


def edited(rng, text, edits):
    for _ in range(edits):
        at = rng.randint(0, len(text))
        kind = rng.randrange(4)
        cut = rng.randint(0, 6)
        if kind == 0:
            text = text[:at] + rng.choice("abxyz 🎉\n") * cut + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + cut :]
        elif kind == 2:
            text = text[at:] + text[:at]
        else:
            text = text[:at] + text[at : at + cut][::-1] + text[at + cut :]
    return text


def cases(rng):
    yield from [("", ""), ("a", ""), ("", "a"), ("tide", "diet"), ("diet", "tide"), ("\n", "\n\n"), ("a\r\nb", "a\nb")]
    for _ in range(1200):
        alphabet = rng.choice(ALPHABETS)
        yield tuple("".join(rng.choices(alphabet, k=rng.randint(0, 40))) for _ in range(2))
    for _ in range(500):
        text = " ".join(rng.choices(WORDS, k=rng.randint(1, 25)))
        yield text, edited(rng, text, rng.randint(0, 6))
    # Round the length at which popular elements are set aside, and counts round their bound.
    for length in (198, 199, 200, 201, 299, 300, 301):
        for alphabet in ALPHABETS:
            text = "".join(rng.choices(alphabet, k=length))
            yield text, edited(rng, text, 3)
            yield edited(rng, text, 3), text
            yield "".join(rng.choices(alphabet, k=30)), text
    for count in (1, 2, 3, 4, 5):
        for filler in (195, 199, 200, 295, 300):
            rare = "".join(chr(0x4E00 + at) for at in range(filler))
            where = sorted(rng.sample(range(filler), count))
            text = rare
            for at in reversed(where):
                text = text[:at] + "x" + text[at:]
            yield "x" + rare[where[0] : where[0] + 9] + "x", text
            yield edited(rng, text, 4), text
    for _ in range(150):
        lines = ["".join(rng.choices("ab", k=2)) for _ in range(rng.randint(1, 30))]
        yield "\n".join(lines), "\n".join(rng.sample(lines, len(lines)))
    for _ in range(10):
        lines = [str(rng.randint(0, 60)) for _ in range(230)]
        yield "\n".join(lines), edited(rng, "\n".join(lines), 6)


if __name__ == "__main__":
    with open("tests/vectors/difflib_ratio.jsonl", "w", encoding="utf-8", newline="\n") as vectors:
        for a, b in cases(random.Random(20)):
            print(json.dumps([a, b, *ratios(a, b)], ensure_ascii=False), file=vectors)
