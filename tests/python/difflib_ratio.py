"""Answers pairs of texts (JSON lines `[a, b]` on stdin) with difflib's ratio over code points and over lines."""

import json
import sys
from difflib import SequenceMatcher


def ratios(a, b):
    by_lines = SequenceMatcher(None, a.split("\n"), b.split("\n")).ratio()
    return [SequenceMatcher(None, a, b).ratio(), by_lines]


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        print(json.dumps(ratios(*json.loads(line))))
