"""A dataset of the package reasoning-gym. `DATASET` stands in this module before it runs: the name of the dataset."""

import dataclasses
import datetime
import difflib
import enum
import functools
import inspect
import random
import sys

from rollhouse import TasksetError, load, reference, reward

PACKAGE = "reasoning-gym"

try:
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import DATASETS, create_dataset
    from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer
except ModuleNotFoundError as error:
    if error.name != "reasoning_gym":
        raise
    raise TasksetError(
        f"the package {PACKAGE} is not installed in {sys.executable}: install it there with `pip install {PACKAGE}`, or "
        f"name another Python with the key `python`"
    ) from None

if not DATASET:
    raise TasksetError(f"name a dataset, as {PACKAGE}/chain_sum; there is {', '.join(sorted(DATASETS))}")
if DATASET not in DATASETS:
    near = difflib.get_close_matches(DATASET, DATASETS, 3) or sorted(DATASETS)
    raise TasksetError(f"{PACKAGE} has no dataset `{DATASET}`; there is {', '.join(f'`{name}`' for name in near)}")

FIELDS = {field.name: field for field in dataclasses.fields(DATASETS[DATASET][1]) if field.init}


def default_of(field):
    # Rows must be the same every time.
    if field.name == "seed":
        return 0
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def plain(value):
    """A default as JSON."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def restored(value, default):
    """A value in the type of its default."""
    if isinstance(default, enum.Enum):
        return type(default)(value)
    if dataclasses.is_dataclass(default):
        return dataclasses.replace(default, **value)
    if isinstance(default, (datetime.date, datetime.time)):
        return type(default).fromisoformat(value)
    if isinstance(default, (list, tuple)) and default:
        return type(default)(restored(item, default[0]) for item in value)
    return value


def dataset_of(config):
    """The dataset of a configuration: fields that are as by default are left to the package."""
    given = {"seed": 0} if "seed" in FIELDS else {}
    for name, value in config.items():
        default = default_of(FIELDS[name])
        if value != plain(default):
            given[name] = restored(value, default)
    if DATASET == "composite":
        given["datasets"] = [DatasetSpec(**{"weight": 1.0, "config": {}, **spec}) for spec in given.get("datasets") or []]
    try:
        return create_dataset(DATASET, **given)
    except AssertionError as error:
        raise TasksetError(f"{DATASET}: {error}") from None


def entry_at(dataset, position):
    # Some datasets draw from the global generator, too.
    random.seed(f"{dataset.seed} {position}")
    return dataset[position]


def tasks(**config):
    dataset = dataset_of(config)
    for position in range(len(dataset)):
        entry = entry_at(dataset, position)
        yield {
            "prompt": entry["question"],
            "system_prompt": SYSTEM_PROMPTS["default"],
            "answer": entry["answer"],
        }


# Every field of the dataset's configuration is a key.
tasks.__signature__ = inspect.Signature(
    [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=plain(default_of(field)),
            annotation=field.type,
        )
        for name, field in FIELDS.items()
    ]
)
load(size="size" if "size" in FIELDS else None)(tasks)

DATASET_OF_CONFIG = None


@functools.lru_cache(maxsize=256)
def entry_of(position, prompt):
    """The entry of a task, made again: what scores it, such as tuples and tables with keys of other types, is no JSON."""
    entry = entry_at(DATASET_OF_CONFIG, position)
    if entry["question"] != prompt:
        raise TasksetError(f"task {position} of {DATASET} is another one here: is this another version of {PACKAGE}?")
    return entry


@reward(name="score", bounds=(0, 1))
def score(reply, prompt, idx, config):
    """The dataset's own judgement of what stands in the last `<answer>` tags."""
    global DATASET_OF_CONFIG
    DATASET_OF_CONFIG = DATASET_OF_CONFIG or dataset_of(config)
    answer = extract_answer(reply)
    value = DATASET_OF_CONFIG.score_answer(answer, entry_of(idx, prompt))
    return value, "no <answer> tags" if answer is None else f"answered {answer[:200]!r}"


@reference
def reference_answer(answer):
    return None if answer is None else f"<answer>{answer}</answer>"
