"""Resolves command lines as `vf-eval --dry-run` does, many in one interpreter.

Reads a JSON list of argument lists from stdin; writes a JSON list with, for each of them, the resolved configuration, or
null where it is refused. The current folder receives the run directories.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from verifiers.v1.cli.eval.main import main

resolved = []
for index, arguments in enumerate(json.load(sys.stdin)):
    name = f"case-{index}"
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            main([*arguments, "--dry-run", "--run.name", name])
        resolved.append(json.loads(Path("outputs", name, "configs/resolved/eval.json").read_text()))
    except SystemExit:
        resolved.append(None)
json.dump(resolved, sys.stdout)
