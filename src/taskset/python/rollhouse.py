"""What a taskset in Python imports: decorators that name its functions, and `judge` for rewards that ask a model.

The second half answers rollhouse: `open` runs the script once, `handle` does one piece of work. Needs Python 3.8 and
nothing but the standard library.
"""

import asyncio
import copy
import inspect
import io
import json
import linecache
import math
import os
import sys
import time
import traceback
import types
import typing

__all__ = [
    "finalize",
    "group_reward",
    "judge",
    "load",
    "metric",
    "reference",
    "reward",
    "setup",
    "stop",
    "user",
]


class TasksetError(Exception):
    """What is wrong with a taskset, in words for its author."""


# What a function may ask for besides the columns of the row, by role.
_ALWAYS = ("task", "config")
_TURNS = ("messages", "reply", "replies")
_OFFERS = {
    "setup": (*_ALWAYS, "state"),
    "user": (*_ALWAYS, *_TURNS, "state"),
    "stop": (*_ALWAYS, *_TURNS, "state"),
    "finalize": (*_ALWAYS, *_TURNS, "state", "trace"),
    "metric": (*_ALWAYS, *_TURNS, "state", "trace"),
    "reward": (*_ALWAYS, *_TURNS, "state", "trace", "metrics"),
    "group_reward": (*_ALWAYS, "group"),
    "reference": (*_ALWAYS, *_TURNS),
}
# Names that never mean a column, whatever the role.
_RESERVED = sorted({name for offer in _OFFERS.values() for name in offer})
# Keys of every Python taskset, which no parameter of `load` can have.
_OWN_KEYS = ("id", "memory_mb", "pass_env", "python", "system_prompt", "task", "timeout", "workers")
# Roles that one function fills.
_SINGLE = ("load", "user", "reference")


class _Function:
    """A function of the script in its role."""

    def __init__(self, role, function, name, timeout, **extra):
        self.role = role
        self.function = function
        self.name = name or getattr(function, "__name__", role)
        self.timeout = timeout
        self.extra = extra
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self.parameters = {}
        for parameter in inspect.signature(function).parameters.values():
            self._check(parameter)
            self.parameters[parameter.name] = parameter

    def _check(self, parameter):
        what = f"@{self.role} {self.name}"
        if parameter.name == "self":
            raise TasksetError(f"{what} is a method: only functions of the module can be declared")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TasksetError(f"{what}: `{parameter}` cannot be filled: name each thing that the function asks for")
        if self.role == "load":
            if parameter.name in _OWN_KEYS:
                raise TasksetError(f"{what}: `{parameter.name}` is a key of every Python taskset: rename the parameter")
        elif parameter.name in _RESERVED and parameter.name not in _OFFERS[self.role]:
            offers = ", ".join(f"`{name}`" for name in _OFFERS[self.role])
            raise TasksetError(
                f"{what} asks for `{parameter.name}`, which is not there at its time; "
                f"it may ask for {offers} and the columns of the row"
            )

    def columns(self):
        return [name for name in self.parameters if name not in _RESERVED]

    def needed_columns(self):
        return [name for name in self.columns() if self.parameters[name].default is inspect.Parameter.empty]

    def fill(self, body):
        """The arguments of a call. A column that the row lacks is the parameter's default, else None."""
        filled = {}
        for name, parameter in self.parameters.items():
            if name == "config":
                filled[name] = dict(_script.config())
            elif name in _RESERVED:
                filled[name] = body[name]
            elif name in body["columns"]:
                filled[name] = body["columns"][name]
            elif parameter.default is parameter.empty:
                filled[name] = None
        return filled

    async def call(self, arguments):
        result = self.function(**arguments)
        if inspect.isawaitable(result):
            if not self.is_async:
                _close(result)
                raise TasksetError(f"@{self.role} {self.name} returned an awaitable: write it as `async def`")
            result = await result
        return result

    def describe(self):
        asks = [name for name in self.parameters if name in _RESERVED and name != "config"]
        return {
            "role": self.role,
            "name": self.name,
            "timeout": self.timeout,
            "async": self.is_async,
            "asks": asks,
            "columns": self.columns(),
            **self.extra,
        }


class _Script:
    """What the script has declared so far, and the arguments that it was opened with."""

    def __init__(self):
        self.module = None
        self.broken = None
        self.given = {}
        self.functions = []
        self.judges = []
        self.rows = None

    def add(self, function):
        self.functions.append(function)

    def of(self, role):
        return [function for function in self.functions if function.role == role]

    def one(self, role):
        found = self.of(role)
        return found[0] if found else None

    def named(self, role, name):
        for function in self.of(role):
            if function.name == name:
                return function
        raise TasksetError(f"the script has no @{role} `{name}`: did the file change while the run went on?")

    def config(self):
        """The values of the parameters of `load`."""
        values = {}
        for name, parameter in self.one("load").parameters.items():
            if name in self.given:
                values[name] = self.given[name]
            elif parameter.default is not parameter.empty:
                values[name] = parameter.default
        return values

    def load_arguments(self):
        """A value that equals its default in JSON is left out, so that a default may be a tuple or a set."""
        parameters = self.one("load").parameters
        return {
            name: value
            for name, value in self.given.items()
            if name in parameters and _json_default(parameters[name]) != value
        }


_script = _Script()


def _declare(role, function, name=None, timeout=None, **extra):
    """Decorates, with the parentheses left out or not."""
    if timeout is not None and not _is_number(timeout, above=0):
        raise TasksetError(f"@{role}: timeout={timeout!r}: give seconds above 0")
    if name is not None and not (isinstance(name, str) and name):
        raise TasksetError(f"@{role}: name={name!r}: give a text")

    def decorate(function):
        if not callable(function):
            raise TasksetError(f"@{role} stands before a function, not before {type(function).__name__}")
        _script.add(_Function(role, function, name, timeout, **extra))
        return function

    return decorate if function is None else decorate(function)


def load(function=None, *, infinite=False, size=None, timeout=None):
    """The function that gives the rows: a list, or a generator of them, async or not.

    Its parameters are the taskset's keys. `infinite`: the rows have no end. `size`: how many there are, as a number or as
    the name of the parameter that says it; without it only reading tells. `timeout`: seconds for a batch of rows.
    """
    if size is not None and not isinstance(size, (int, str)) or isinstance(size, bool):
        raise TasksetError(f"@load: size={size!r}: give a whole number or the name of a parameter")
    return _declare("load", function, timeout=timeout, infinite=bool(infinite), size=size)


def reward(function=None, *, weight=1.0, name=None, timeout=None, bounds=None):
    """A reward: returns a number, a bool, or a pair of a number and the reason for it."""
    return _declare("reward", function, name, timeout, **_weighed("reward", weight, bounds))


def metric(function=None, *, name=None, timeout=None):
    """A figure that is kept beside the rewards and does not count."""
    return _declare("metric", function, name, timeout)


def group_reward(function=None, *, weight=1.0, name=None, timeout=None, bounds=None, trace=False):
    """A reward that compares all rollouts of a task: gets them as `group` and returns a number for each.

    `trace`: whether the members carry their whole `.trace`.
    """
    extra = _weighed("group_reward", weight, bounds)
    return _declare("group_reward", function, name, timeout, trace=bool(trace), **extra)


def user(function=None, *, timeout=None):
    """Whoever talks with the model: returns a text, a message, a list of them, or None to end the conversation."""
    return _declare("user", function, timeout=timeout)


def stop(function=None, *, name=None, timeout=None):
    """Asked after each reply: whether the rollout ends now. Its name is the stop condition."""
    return _declare("stop", function, name, timeout)


def setup(function=None, *, timeout=None):
    """Runs before the first turn of each rollout."""
    return _declare("setup", function, timeout=timeout)


def finalize(function=None, *, timeout=None):
    """Runs after the last turn of each rollout, before it is scored."""
    return _declare("finalize", function, timeout=timeout)


def reference(function=None, *, timeout=None):
    """What a perfect model would reply; None where nobody knows."""
    return _declare("reference", function, timeout=timeout)


def judge(**keys):
    """Declares a reward that asks a model, with the keys of a `[[judge]]` table."""
    try:
        json.dumps(keys, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TasksetError(f"judge({keys.get('name', '')}): its keys must be JSON: {error}") from None
    _script.judges.append(keys)


def _weighed(role, weight, bounds):
    if not _is_number(weight):
        raise TasksetError(f"@{role}: weight={weight!r}: give a finite number")
    if bounds is not None:
        if not (isinstance(bounds, (tuple, list)) and len(bounds) == 2 and all(map(_is_number, bounds))):
            raise TasksetError(f"@{role}: bounds={bounds!r}: give two finite numbers, the lower first")
        bounds = [float(end) for end in bounds]
    return {"weight": float(weight), "bounds": bounds}


def _is_number(value, above=None):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return above is None or value > above


# From here on: the answers to rollhouse.


def open(script_path, arguments):  # noqa: A001
    """Runs the script. `arguments`: `config` (the values of the parameters of `load`), `source` (the text, of a script
    that is no file), `globals` (names that stand in the script before it runs).

    A script that fails is remembered: every piece of work then answers with its error.
    """
    try:
        _run(script_path, arguments)
    except BaseException as error:  # `sys.exit` and its like among them
        _script.broken = _error_of(error)


def _run(path, arguments):
    source = arguments.get("source")
    if source is None:
        path = os.path.abspath(path)
        with io.open(path, "rb") as file:
            source = file.read()
        sys.path.insert(0, os.path.dirname(path))
    else:
        # For the lines in tracebacks.
        linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    module = types.ModuleType("taskset")
    module.__file__ = path
    module.__dict__.update(arguments.get("globals") or {})
    # Data classes and pickle look the module up by its name.
    sys.modules["taskset"] = module
    _script.module = module
    _script.given = arguments.get("config") or {}
    exec(compile(source, path, "exec"), module.__dict__)
    for role in _SINGLE:
        if len(_script.of(role)) > 1:
            raise TasksetError(f"it has {len(_script.of(role))} functions with @{role}: leave one")
    if not _script.of("load"):
        raise TasksetError("it has no function with @load, which gives the rows")


def handle(op, body):
    """Does one piece of work: an answer, or an awaitable where one of the script's functions is async.

    The answer is `{"value": …}` or, when the author's code failed, `{"error": {"message": …, "traceback": […]}}`.
    """
    if _script.broken is not None:
        return {"error": _script.broken}
    work = _OPS[op]
    called = work.called(body)
    answer = _guarded(work, called, body)
    if any(function.is_async for function in called):
        return answer
    # Nothing in it waits, so that one step runs it to its end.
    try:
        answer.send(None)
    except StopIteration as end:
        return end.value
    answer.close()
    raise RuntimeError(f"{op} waits, but none of its functions is async")


async def _guarded(work, called, body):
    return await _caught(work.run(called, body))


async def _caught(awaitable):
    try:
        return {"value": await awaitable}
    except asyncio.CancelledError:
        # Whoever runs us decides what that means.
        raise
    except BaseException as error:  # what ends a test run or a program ends a call here
        return {"error": _error_of(error)}


class _Op:
    """A piece of work: which functions it calls, and how."""

    def __init__(self, called, run):
        self.called = called
        self.run = run


async def _describe(_called, _body):
    load = _script.one("load")
    size = load.extra["size"]
    if isinstance(size, str) and size not in load.parameters:
        raise TasksetError(f"@load: size={size!r} names no parameter of {load.name}")
    return {
        "load": {
            "parameters": [_key_of(parameter) for parameter in load.parameters.values()],
            "infinite": load.extra["infinite"],
            "size": size,
            "timeout": load.timeout,
        },
        "functions": [function.describe() for function in _script.functions if function.role != "load"],
        "judges": _script.judges,
    }


def _key_of(parameter):
    """A parameter of `load` as a key of the configuration."""
    required = parameter.default is parameter.empty
    default = None if required else _json_default(parameter)
    kind, optional, choices = _kind_of(parameter, default)
    return {
        "name": parameter.name,
        "required": required,
        "default": default,
        "kind": kind,
        "optional": optional or (not required and default is None),
        "choices": choices,
    }


def _json_default(parameter):
    if parameter.default is parameter.empty:
        return None
    try:
        return json.loads(json.dumps(parameter.default, allow_nan=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise TasksetError(f"@load: the default of `{parameter.name}` must be JSON: {error}") from None


_KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list", tuple: "list", dict: "dict"}


def _kind_of(parameter, default):
    """The type of a key: by the annotation, else by the default."""
    hint = parameter.annotation
    if isinstance(hint, str):
        try:
            hint = eval(hint, vars(_script.module))
        except Exception:
            hint = None
    optional = False
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in inner:
        optional = True
        inner = [kind for kind in inner if kind is not type(None)]
        hint = inner[0] if len(inner) == 1 else None
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal and all(isinstance(choice, str) for choice in inner):
        return "str", optional, list(inner)
    # The default is what the function was tried with: `x: float = 1` takes a number, `x: int = 0.5` does too.
    kind = _KINDS.get(origin or hint) if origin or isinstance(hint, type) else None
    if default is not None and (kind is None or (kind == "int" and isinstance(default, float))):
        kind = _KINDS.get(type(default))
    return kind or "any", optional, None


async def _rows(_called, body):
    """Hands out the next rows, each as JSON text: at most `count`, and no more once `seconds` have passed or they take
    `characters`. The first call may `skip` some."""
    begun = time.monotonic()
    if _script.rows is None:
        _script.rows = _Rows()
        await _script.rows.start()
        await _script.rows.skip(body.get("skip", 0))
    rows = _script.rows
    texts, error, done, left = [], None, False, body["characters"]
    while len(texts) < body["count"] and left > 0 and not (texts and time.monotonic() - begun > body["seconds"]):
        try:
            row = await rows.next()
            if row is _END:
                done = True
                break
            texts.append(_row_text(row))
            left -= len(texts[-1])
        except asyncio.CancelledError:
            raise
        except BaseException as raised:  # as in `_caught`
            error = _error_of(raised)
            error["message"] = f"row {rows.position}: {error['message']}"
            break
        rows.position += 1
    return {"rows": texts, "error": error, "done": done}


_END = object()


class _Rows:
    """The rows of `load` as they are read."""

    def __init__(self):
        self.position = 0
        self.items = None
        self.waits = False

    async def start(self):
        load = _script.one("load")
        rows = load.function(**_script.load_arguments())
        if inspect.isawaitable(rows):
            if not load.is_async:
                _close(rows)
                raise TasksetError(f"{load.name} returned an awaitable: write it as `async def`")
            rows = await rows
        self.waits = hasattr(rows, "__anext__") or hasattr(rows, "__aiter__")
        if self.waits and not load.is_async:
            raise TasksetError(f"{load.name} returned an async iterator: write it as `async def` with `yield`")
        if not self.waits and (isinstance(rows, (str, bytes, dict)) or not hasattr(rows, "__iter__")):
            found = "nothing" if rows is None else type(rows).__name__
            raise TasksetError(f"{load.name} gave {found}: return a list of rows, or yield them")
        self.items = rows.__aiter__() if self.waits else iter(rows)

    async def skip(self, count):
        while self.position < count and await self.next() is not _END:
            self.position += 1

    async def next(self):
        if not self.waits:
            return next(self.items, _END)
        try:
            return await self.items.__anext__()
        except StopAsyncIteration:
            return _END


def _row_text(row):
    if not isinstance(row, dict):
        try:
            row = dict(row)
        except (TypeError, ValueError):
            raise TasksetError(f"a row is a dict of columns, not {type(row).__name__}") from None
    for field, value in row.items():
        if not isinstance(field, str):
            raise TasksetError(f"the name of a column is a text, not {field!r}")
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise TasksetError(f"`{field}` must be JSON: {error}") from None
    _check_prompt(row)
    for function in _script.functions:
        for column in function.needed_columns() if function.role != "load" else ():
            # The position is set for every row.
            if column not in row and column != "idx":
                have = ", ".join(f"`{name}`" for name in [*_OFFERS[function.role], *row])
                raise TasksetError(
                    f"it has no column `{column}`, which @{function.role} {function.name} asks for; there is {have}. "
                    f"A parameter with a default may be missing"
                )
    return json.dumps(row, allow_nan=False, default=_plain)


def _check_prompt(row):
    prompt = row.get("prompt")
    if prompt is None:
        if not _script.of("user"):
            raise TasksetError("it has no `prompt`, and the script has no @user who opens the conversation")
    elif not isinstance(prompt, str):
        row["prompt"] = _messages(prompt, "`prompt`")


def _messages(said, what):
    """One or several things that were said, as messages."""
    several = said if isinstance(said, (list, tuple)) else [said]
    if not several:
        raise TasksetError(f"{what} is an empty list: say something")
    return [_message(one, what) for one in several]


def _message(said, what):
    if isinstance(said, str):
        return {"role": "user", "content": said}
    roles = ("system", "user", "assistant", "tool")
    if not isinstance(said, dict) or said.get("role") not in roles or "content" not in said:
        raise TasksetError(
            f"{what} must be a text, a message `{{'role': …, 'content': …}}` with a role of {', '.join(roles)}, "
            f"or a list of these; found {_shown(said)}"
        )
    content = said["content"]
    if not isinstance(content, (str, list)) and not (content is None and said["role"] == "assistant"):
        raise TasksetError(f"the `content` of a message is a text or a list of parts, not {_shown(content)}")
    if said["role"] == "tool" and not isinstance(said.get("tool_call_id"), str):
        raise TasksetError("a message of a tool needs a `tool_call_id`, the text by which the model called it")
    return said


def _plain(value):
    """What JSON does not know but stands for a plain value: arrays and numbers of numeric libraries."""
    for method in ("tolist", "item"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"{_shown(value)} is a {type(value).__name__}")


async def _score(called, body):
    """Scores by several functions, each with its own result."""

    async def score(function):
        filled = function.fill(body)
        # One function must not see what another did to its arguments; the last may have them themselves.
        value = await function.call(filled if function is called[-1] else copy.deepcopy(filled))
        return _score_of(value)

    waiting = [_caught(score(function)) for function in called]
    if any(function.is_async for function in called):
        return await asyncio.gather(*waiting)
    return [await one for one in waiting]


def _score_of(value):
    why = None
    if isinstance(value, tuple) and len(value) == 2:
        value, why = value
        if why is not None and not isinstance(why, str):
            raise TasksetError(f"the reason must be a text, not {_shown(why)}")
        why = why and _told(why)
    if value is None:
        raise TasksetError("returned None: return a number, a bool, or (number, reason); is a `return` missing?")
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TasksetError(f"returned {_shown(value)}: return a number, a bool, or (number, reason)")
    number = float(value)
    # JSON has no word for these.
    return {"value": number if math.isfinite(number) else str(number), "why": why}


class Member:
    """A rollout in a group: `reply`, `replies`, `messages`, `state`, `rewards`, `metrics`, and `trace` if asked for."""

    def __init__(self, fields):
        self.__dict__.update(fields)

    def __getattr__(self, name):
        if name == "trace":
            raise AttributeError("the trace is only sent if asked for: write `@group_reward(trace=True)`")
        raise AttributeError(f"a member of a group has no `{name}`; it has {', '.join(sorted(self.__dict__))}")


async def _group(called, body):
    body["group"] = [Member(fields) for fields in body["group"]]
    function = called[0]
    scores = await function.call(function.fill(body))
    # An array counts as the list of its numbers.
    scores = scores.tolist() if hasattr(scores, "tolist") else scores
    if isinstance(scores, (str, bytes, dict)) or not hasattr(scores, "__iter__"):
        raise TasksetError(f"returned {_shown(scores)}: return a number for each member of the group")
    return [_score_of(score) for score in scores]


async def _user(called, body):
    said = await called[0].call(called[0].fill(body))
    return {"said": None if said is None else _messages(said, "what @user returned"), "state": _kept(body)}


async def _stop(called, body):
    stopped = None
    for function in called:
        answer = await function.call(function.fill(body))
        if not isinstance(answer, (bool, type(None))) and type(answer).__name__ not in ("bool_", "bool"):
            raise TasksetError(f"@stop {function.name} returned {_shown(answer)}: return True or False")
        if answer:
            stopped = function.name
            break
    return {"said": stopped, "state": _kept(body)}


async def _run_all(called, body):
    for function in called:
        await function.call(function.fill(body))
    return {"said": None, "state": _kept(body)}


async def _reference(called, body):
    reply = await called[0].call(called[0].fill(body))
    if reply is not None and not isinstance(reply, str):
        raise TasksetError(f"@reference {called[0].name} returned {_shown(reply)}: return a text, or None")
    return reply


def _kept(body):
    """The state after a call; only what is JSON outlives the process."""
    state = body.get("state")
    for key, value in (state or {}).items():
        if not isinstance(key, str):
            raise TasksetError(f"the state has the key {key!r}: keys of the state are texts")
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain).encode()
            problem = "it is nested too deeply" if _is_deep(value, _DEEPEST) else None
        except (TypeError, ValueError, RecursionError) as error:
            problem = error
        if problem is not None:
            raise TasksetError(f"state[{key!r}] must be JSON, so that it outlives this process: {problem}")
    return state


# Levels of lists and dicts that a state may have; readers of JSON stop a little above.
_DEEPEST = 100


def _is_deep(value, levels):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return levels == 0 or any(_is_deep(one, levels - 1) for one in inner)


def _of(role):
    return lambda _body: _script.of(role)


def _named(body):
    return [_script.named(body["role"], name) for name in body["names"]]


_OPS = {
    "describe": _Op(lambda _body: [], _describe),
    "rows": _Op(_of("load"), _rows),
    "score": _Op(_named, _score),
    "group": _Op(_named, _group),
    "user": _Op(_of("user"), _user),
    "stop": _Op(_of("stop"), _stop),
    "setup": _Op(_of("setup"), _run_all),
    "finalize": _Op(_of("finalize"), _run_all),
    "reference": _Op(_of("reference"), _reference),
}


def _close(awaitable):
    """Spares the author a warning about a coroutine that nobody waited for."""
    if hasattr(awaitable, "close"):
        awaitable.close()


def _shown(value):
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


# What is kept of an author's text, and of a traceback the frames of the author's code, innermost last.
_CHARACTERS = 2000
_FRAMES = 12
_OWN_FILE = _Script.__init__.__code__.co_filename


def _told(text):
    """An author's text as it may be kept: whole characters, and not too many of them."""
    text = text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}… ({len(text)} characters)"
    return text.encode("utf-8", "replace").decode()


def _named_error(error):
    """The type of an error and what it says of itself."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _error_of(error):
    """An error with the frames of the author's code."""
    lines, where = [], None
    if isinstance(error, SystemExit):
        message = f"called sys.exit({error.code!r}): return, or raise an error that says what is wrong"
    elif isinstance(error, TasksetError):
        message = str(error)
    elif isinstance(error, SyntaxError):
        message = f"{type(error).__name__}: {error.msg}"
        lines = [f"  {line}" for line in _named_error(error).splitlines()[:-1]]
        where = error.filename and f"{os.path.basename(error.filename)}, line {error.lineno}"
    else:
        message = _named_error(error).replace("\n", " ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != _OWN_FILE][-_FRAMES:]
    if frames and where is None:
        where = f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}, in {frames[-1].name}"
    message = _told(message) + (f" ({where})" if where else "")
    if isinstance(error, TasksetError):
        return {"message": message, "traceback": []}
    lines = "".join(traceback.format_list(frames)).splitlines() + lines
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        lines.append(f"caused by {_named_error(cause)}")
    return {"message": message, "traceback": [_told(line) for line in lines]}
