"""Ends the program when it is imported."""

import sys

print("this package wants a GPU", file=sys.stderr)
sys.exit(4)
