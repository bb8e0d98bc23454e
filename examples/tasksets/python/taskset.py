"""Solve small word problems."""

import json
import re
from pathlib import Path

from rollhouse import load, metric, reference, reward

PROMPT = """{question}

Think step by step. End with a line that has nothing but #### and the number."""

# A sign, a currency, digits in groups of three or without commas, decimals.
NUMBER = re.compile(r"([-+]?) *[$€£¥]? *((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)")


@load
def tasks():
    """The rows: `prompt` is what the model is asked; the other columns are what the functions below may ask for."""
    for line in (Path(__file__).parent / "data.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield {"id": row["id"], "prompt": PROMPT.format(question=row["question"]), "answer": row["answer"]}


@reward
def correct(reply, answer):
    """What a reply earns: the number behind the last `####` is that of the column `answer`."""
    found = final_number(reply)
    if found is None:
        return 0, "no number behind ####"
    return found == float(answer), f"answered {found}, expected {answer}"


@metric
def words(reply):
    """What is recorded beside it and earns nothing."""
    return len(reply.split())


@reference
def perfect(answer):
    """What a perfect model replies; validation and the simulator play with it."""
    return f"#### {answer}"


def final_number(reply):
    """The number behind the last `####`, the thinking left out; None where there is none."""
    text = reply.rpartition("</think>")[2]
    if "####" not in text or "<think>" in text:
        return None
    answer = text.rpartition("####")[2].partition("\n")[0].strip()
    found = NUMBER.fullmatch(answer)
    return float(found[1] + found[2].replace(",", "")) if found else None
