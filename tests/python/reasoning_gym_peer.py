"""Every dataset of the package, with the module and the script as rollhouse runs them: rows made by one process' state and
scored by another's. Prints a line of JSON per dataset. Arguments: which part of the datasets, of how many."""

import importlib.util
import json
import pathlib
import sys

from reasoning_gym.factory import DATASETS

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = (ROOT / "tasksets/reasoning-gym/gym.py").read_text()


def opened(dataset, config):
    spec = importlib.util.spec_from_file_location("rollhouse", ROOT / "src/taskset/python/rollhouse.py")
    module = sys.modules["rollhouse"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.open(f"{dataset}.py", {"source": SCRIPT, "globals": {"DATASET": dataset}, "config": config})
    return module


def value(answer):
    if "error" in answer:
        raise SystemExit(f"{answer['error']['message']}")
    return answer["value"]


part, parts = map(int, sys.argv[1:])
for dataset in sorted(DATASETS)[part::parts]:
    described = value(opened(dataset, {}).handle("describe", {}))
    config = {key["name"]: key["default"] for key in described["load"]["parameters"]}
    rows = value(opened(dataset, config).handle("rows", {"count": 2, "seconds": 60, "characters": 1 << 22}))
    scorer = opened(dataset, config)
    scores = []
    for position, row in enumerate(map(json.loads, rows["rows"])):
        columns = {**row, "idx": position}
        reference = value(scorer.handle("reference", {"columns": columns}))
        pair = []
        for reply in [reference, ""]:
            body = {"role": "reward", "names": ["score"], "reply": reply, "columns": columns}
            pair.append(None if reply is None else value(value(scorer.handle("score", body))[0])["value"])
        scores.append(pair)
    print(json.dumps({"dataset": dataset, "scores": scores, "error": rows["error"] and rows["error"]["message"]}))
