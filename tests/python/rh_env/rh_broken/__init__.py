"""Raises when it is imported, after it has printed much."""

import sys

print("loading\n" * 5000)
print("looking for the data", file=sys.stderr)


def load():
    raise FileNotFoundError("no data at /nowhere/rows.parquet")


load()
