"""Tokenizes texts with the library tiktoken, in the way of Kimi's models.

    ranks_peer.py FOLDER

FOLDER holds `tiktoken.model` and `tokenizer_config.json`. Reads one text a line, as JSON, and writes its ids and the text
that they say, in the same order.
"""

import json
import pathlib
import sys

import tiktoken
from tiktoken.load import load_tiktoken_bpe

HAN, LETTERS_BEFORE, LETTERS_AFTER = r"[\p{Han}]+", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
UPPER, LOWER = rf"[{LETTERS_BEFORE}&&[^\p{{Han}}]]", rf"[{LETTERS_AFTER}&&[^\p{{Han}}]]"
LEAD, SHORT = r"[^\r\n\p{L}\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    HAN,
    f"{LEAD}{UPPER}*{LOWER}+{SHORT}",
    f"{LEAD}{UPPER}+{LOWER}*{SHORT}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])


def parts(text, longest=400_000, stretch=25_000):
    for begin in range(0, len(text), longest):
        part, start, run = text[begin : begin + longest], 0, 0
        for at, letter in enumerate(part):
            run = run + 1 if at and letter.isspace() == part[at - 1].isspace() else 1
            if run > stretch:
                yield part[start:at]
                start, run = at, 1
        yield part[start:]


def main():
    folder = pathlib.Path(sys.argv[1])
    ranks = load_tiktoken_bpe(str(folder / "tiktoken.model"))
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    names = {int(id): token["content"] for id, token in added.items()}
    controls = {names.get(id, f"<|reserved_token_{id}|>"): id for id in range(len(ranks), len(ranks) + 256)}
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=controls)
    for line in sys.stdin:
        text = json.loads(line)
        ids = [id for part in parts(text) for id in encoding.encode(part, allowed_special="all")]
        plain = [id for part in parts(text) for id in encoding.encode(part, disallowed_special=())]
        print(json.dumps({"ids": ids, "plain": plain, "text": encoding.decode(ids)}), flush=True)


main()
