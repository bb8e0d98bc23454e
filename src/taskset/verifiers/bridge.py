"""The Python side of verifiers' packages: says what is installed, checks an env block, makes rows, serves an env.

Runs before any code of a package, on the standard library; verifiers is imported when it is needed. Requests are lines of
JSON on the standard input, answers lines on a private descriptor: what a package prints goes to the standard error.
`ROLLHOUSE_SERVE` holds what is served instead, in parts.
"""

import json
import os
import sys
import traceback

# As they are before a package can put others in their place.
from json import dumps
from os import write

# What is told of an exception.
MOST_LINES, MOST_CHARACTERS = 30, 4000
LIBRARY = os.path.dirname(os.__file__) + os.sep
SHIPPED = "verifiers.v1.tasksets"


# -- what is told of an exception


def is_ours(name):
    """Whether a file is the bridge, Python's own, or of the machinery that only passes a package's error on."""
    if name.startswith("<"):
        return True
    if "site-packages" in name or "dist-packages" in name:
        return any("%s%s%s" % (os.sep, part, os.sep) in name for part in ("verifiers", "pydantic", "pydantic_config"))
    return name.startswith(LIBRARY)


def is_of_environment(error):
    """Whether a KeyError is that of `os.environ`."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and step.tb_frame.f_locals.get("self") is os.environ


def told(error):
    """An exception as an answer: its type, message, place and the package's frames."""
    try:
        message = str(error)
    except BaseException:
        message = "no message"
    if isinstance(error, SystemExit):
        message = "sys.exit(%s)" % message
    elif isinstance(error, KeyError) and is_of_environment(error):
        message = "the environment variable %s is missing; `--serve.pass-env` and `--pass-env` name those that are passed on" % message
    elif isinstance(error, KeyError):
        message = "%s is missing" % message
    kind, place, lines = type(error).__name__, None, []
    try:
        summary = traceback.TracebackException(type(error), error, error.__traceback__)
        own = [frame for frame in summary.stack if not is_ours(frame.filename)]
        lines = "".join(traceback.StackSummary.from_list(own).format()).splitlines()
        if own:
            place = "%s:%s in %s" % (own[-1].filename, own[-1].lineno, own[-1].name)
        if isinstance(error, SyntaxError) and error.filename:
            message, place = str(error.msg), "%s:%s" % (error.filename, error.lineno)
        causes = set()
        while (error := error.__cause__) is not None and id(error) not in causes:
            causes.add(id(error))
            lines.append("caused by %s: %s" % (type(error).__name__, error))
    except BaseException:
        pass
    lines = [line[:500] for line in lines]
    if len(lines) > MOST_LINES:
        lines[: -MOST_LINES + 1] = ["... %d lines left out" % (len(lines) - MOST_LINES + 1)]
    return {"type": kind, "message": message[:MOST_CHARACTERS], "place": place, "traceback": lines}


# -- finding, without importing anything of a package


def top_level(module):
    """Where a module that is no part of Python lies; None if it is not there."""
    import importlib.util

    if module in sys.builtin_module_names or module in getattr(sys, "stdlib_module_names", ()):
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), None)


def version(name):
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def shipped_folder():
    home = top_level("verifiers")
    return home and os.path.join(os.path.dirname(home), "v1", "tasksets")


def look(request):
    """Whether a module can be had here, and verifiers."""
    module, folder = request["module"], shipped_folder()
    ships = bool(folder) and (os.path.isdir(os.path.join(folder, module)) or os.path.isfile(os.path.join(folder, module + ".py")))
    return {
        "python": sys.executable,
        "python_version": sys.version.split()[0],
        "verifiers": (version("verifiers") or "unknown") if folder else None,
        "has_v1": bool(folder) and os.path.isdir(folder),
        "ships": ships,
        "place": top_level(module),
    }


def outline(path):
    """Docstring and `__all__` of a source file, without running it."""
    import ast

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if "__all__" not in text:
            return None, ()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None, ()
    names = ()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            try:
                names = tuple(ast.literal_eval(node.value))
            except (ValueError, TypeError):
                pass
    return ast.get_docstring(tree), names


def first_line(text):
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), "")


def modules_of(folder):
    """The modules directly in a folder, with the file that each begins with."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return
    for entry in entries:
        path = os.path.join(folder, entry)
        if entry.endswith(".py"):
            yield entry[:-3], path
        elif os.path.isfile(os.path.join(path, "__init__.py")):
            yield entry, os.path.join(path, "__init__.py")


def depends_on_verifiers(distribution):
    import re

    names = (re.split(r"[^A-Za-z0-9_.-]", need.strip(), maxsplit=1)[0] for need in distribution.requires or ())
    return any(name.lower() == "verifiers" for name in names)


def installed(_request):
    """Every taskset that can be had here, by the names that modules export."""
    from importlib import metadata

    found, folder = {}, shipped_folder()
    shipped_version = version("verifiers")
    for module, path in modules_of(folder) if folder else ():
        if module == "__init__":
            continue
        doc, names = outline(path)
        if names:
            found[module] = {"summary": first_line(doc), "version": shipped_version, "ships": True, "place": path}
    versions = {}
    places = [folder for folder in sys.path if folder and not folder.startswith(LIBRARY) or "site-packages" in folder]
    candidates = [pair for folder in places for pair in modules_of(folder)]
    for distribution in metadata.distributions():
        if not depends_on_verifiers(distribution):
            continue
        files = {file.parts[0] for file in distribution.files or () if file.suffix == ".py"}
        names = (distribution.read_text("top_level.txt") or "").split() or [name.removesuffix(".py") for name in files]
        for name in names:
            versions.setdefault(name, (distribution.version, distribution.metadata["Summary"] or ""))
            place = top_level(name)
            if place:
                candidates.append((name, place))
    for module, path in candidates:
        if module in found or module == "verifiers" or module in getattr(sys, "stdlib_module_names", ()):
            continue
        doc, names = outline(path)
        if any(str(name).endswith("Taskset") for name in names):
            number, summary = versions.get(module, (None, ""))
            found[module] = {"summary": first_line(doc) or first_line(summary), "version": number, "ships": False, "place": path}
    return [dict(entry, id=module.replace("_", "-")) for module, entry in sorted(found.items())]


# -- with verifiers


def loaders():
    if sys.version_info < (3, 11):
        raise RuntimeError("verifiers needs Python 3.11 or newer, this is %s" % sys.version.split()[0])
    from verifiers.v1.utils import loaders

    return loaders


def taskset_class(taskset_id):
    """The class, where an import that fails for want of something else says so."""
    kind = loaders()
    try:
        return kind.taskset_class(taskset_id)
    except ModuleNotFoundError as error:
        # What verifiers says of it may hide that the package is there and misses another.
        if error.__cause__ is not None and getattr(error.__cause__, "name", None) != error_module(taskset_id):
            raise error.__cause__ from None
        raise


def error_module(plugin_id):
    return plugin_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower()


def seats_of(config_type):
    """The seats of an env's config type, by name, with what its author says of each."""
    from verifiers.v1.configs.agent import AgentConfig

    fields = config_type.model_fields.items()
    return {name: field.default for name, field in fields if isinstance(field.default, AgentConfig)}


def harness_facts(config):
    harness = loaders().harness_class(config.id)
    ships = harness.__module__.startswith("verifiers.")
    return {"id": config.id, "needs_container": bool(harness.NEEDS_CONTAINER), "starts_programs": ships}


def plain(value):
    """A value as JSON can say it."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value if has_json(value) else str(value)


def type_words(annotation):
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return text.replace("typing.", "").replace("NoneType", "None")


def docs_of(config_type):
    """The texts that stand below the fields of a config type in its source."""
    import ast
    import inspect
    import textwrap

    docs = {}
    for cls in reversed(config_type.__mro__):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
        except (OSError, TypeError, SyntaxError, AttributeError, IndexError):
            continue
        for field, text in zip(body, body[1:]):
            said = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
            if said and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                docs[field.target.id] = " ".join(text.value.value.split())
    for name, field in config_type.model_fields.items():
        if field.description:
            docs[name] = " ".join(field.description.split())
    return docs


def keys_of(config_type, but=(), prefix=""):
    """The keys of a config type, nested ones by their dotted names."""
    from pydantic import BaseModel

    found, docs = [], docs_of(config_type)
    for name, field in config_type.model_fields.items():
        if name in but:
            continue
        kind, default = field.annotation, None if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel) and isinstance(default, kind if isinstance(kind, type) else BaseModel):
            inner = type(default)
            if prefix.count(".") < 2 and "type" not in inner.model_fields:
                found += keys_of(inner, (), "%s%s." % (prefix, name))
                continue
        found.append(
            {
                "name": prefix + name,
                "type": type_words(kind),
                "required": field.is_required(),
                "default": plain(default),
                "doc": docs.get(name, ""),
            }
        )
    return found


def describe(request):
    """What a package says of itself; imports it."""
    from importlib import metadata

    taskset_id = request["id"]
    kinds = loaders()
    cls = taskset_class(taskset_id)
    from verifiers.v1.configs.env import EnvConfig, default_agent_harness

    config_type = kinds.env_config_type(taskset_id, request.get("env") or "")
    env = kinds.environment_class(taskset_id, request.get("env") or "")
    module = kinds.import_taskset(taskset_id)
    task = cls.task_type()
    name = None
    names = metadata.packages_distributions().get(module.__name__.split(".")[0]) or []
    if names:
        name = names[0]
    about = metadata.metadata(name) if name else {}
    ships = module.__name__.startswith(SHIPPED)
    default_harness = default_agent_harness(taskset_id)
    # What every taskset has stands last.
    common = ("system_prompt", "judges", "stops", "metrics", "rewards")
    seats, seat_docs = [], docs_of(config_type)
    for seat, spec in seats_of(config_type).items():
        facts = harness_facts(spec.harness if spec.harness is not None else default_harness)
        seats.append(
            {
                "name": seat,
                "harness": facts["id"],
                "needs_container": facts["needs_container"] or bool(task.NEEDS_CONTAINER),
                "runtime": spec.runtime.type if "runtime" in spec.model_fields_set else None,
                "max_turns": spec.max_turns,
                "doc": seat_docs.get(seat, ""),
            }
        )
    summary = first_line(module.__doc__) or first_line(cls.__doc__) or ("" if ships else about.get("Summary") or "")
    return {
        "id": error_module(taskset_id).replace("_", "-"),
        "summary": summary,
        "text": (module.__doc__ or "").strip(),
        "card": None if ships else readme(about, module),
        "distribution": name,
        "version": version(name) if name else None,
        "taskset": cls.__name__,
        "task": task.__name__,
        "env": env.__name__,
        "infinite": bool(cls.INFINITE),
        "seats": seats,
        "keys": sorted(keys_of(kinds.taskset_config_type(taskset_id), ("id",)), key=lambda key: key["name"].split(".")[-1] in common),
        "env_keys": keys_of(config_type, (*EnvConfig.model_fields, *(seat["name"] for seat in seats))),
    }


def readme(about, module):
    """The README of a distribution, or the one beside the module."""
    text = about.get_payload() if hasattr(about, "get_payload") else None
    if text and text.strip():
        return text
    place = os.path.dirname(module.__file__ or "")
    for folder in (place, os.path.dirname(place)):
        try:
            with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
                return file.read()
        except OSError:
            continue
    return None


# -- the env block


def cleaned(location, block):
    """Where in the block an error of pydantic lies: its location without the tags of unions."""
    path, here = [], block
    for step in location:
        if isinstance(here, dict) and step not in here and step != location[-1] and isinstance(step, str):
            continue
        if isinstance(here, (dict, list)):
            inside = isinstance(here, dict) and step in here or isinstance(here, list) and isinstance(step, int) and step < len(here)
            path.append(step)
            here = here[step] if inside else None
        elif step == location[-1] and not path:
            path.append(step)
    return path


def really(path, block):
    """A path to what is not there, led to the one place below it that has such a key: verifiers leaves out steps."""
    here = block
    for number, step in enumerate(path):
        inside = isinstance(here, dict) and step in here or isinstance(here, list) and isinstance(step, int) and step < len(here)
        if not inside:
            found = list(places_of(path[-1], here)) if number == len(path) - 1 else []
            return path[:-1] + found[0] if len(found) == 1 else path
        here = here[step]
    return path


def places_of(key, block):
    steps = block.items() if isinstance(block, dict) else enumerate(block) if isinstance(block, list) else ()
    for step, inner in steps:
        if step == key:
            yield [step]
        for rest in places_of(key, inner):
            yield [step, *rest]


def known_keys(config_type, path, block):
    """The keys that are known where a path leads, to suggest one."""
    from pydantic import BaseModel

    kinds = loaders()
    here, cls = block, config_type
    for step in path[:-1]:
        if not isinstance(step, str):
            return []
        here = here.get(step) if isinstance(here, dict) else None
        ident = here.get("id") if isinstance(here, dict) else None
        if step == "taskset" and cls is config_type:
            cls = kinds.taskset_config_type(block["taskset"]["id"])
            continue
        if step == "harness" and isinstance(ident, str):
            cls = kinds.harness_config_type(ident)
            continue
        field = cls.model_fields.get(step)
        if field is None:
            return []
        models, rest = [], [type(field.default) if isinstance(field.default, BaseModel) else field.annotation, field.annotation]
        while rest:
            one = rest.pop(0)
            if isinstance(one, type) and issubclass(one, BaseModel):
                models.append(one)
            rest += getattr(one, "__args__", ())
        tag = here.get("type") if isinstance(here, dict) else None
        tagged = [one for one in models if "type" in one.model_fields and one.model_fields["type"].default == tag]
        if not models:
            return []
        cls = (tagged or models)[0]
    return sorted(cls.model_fields)


def without(block, path):
    """The block without what lies at a path; None if nothing does."""
    if not path:
        return None
    step, rest = path[0], path[1:]
    if isinstance(block, dict) and step in block:
        copy = dict(block)
    elif isinstance(block, list) and isinstance(step, int) and step < len(block):
        copy = list(block)
    else:
        return None
    if not rest:
        del copy[step]
        return copy
    inner = without(copy[step], rest)
    if inner is None:
        return None
    copy[step] = inner
    return copy


def id_faults(block):
    """Plugins that are named and are not there, which verifiers tells without their place."""
    kinds, faults = loaders(), []

    def resolve(path, ident, find):
        try:
            find(ident)
        except ModuleNotFoundError as error:
            faults.append({"path": path, "problem": str(error).split(" (tried")[0], "known": []})
        except (TypeError, ValueError, AttributeError) as error:
            faults.append({"path": path, "problem": str(error), "known": []})

    if block.get("id"):
        resolve(["id"], block["id"], lambda ident: kinds.environment_class(block["taskset"]["id"], ident))
    judges = (block["taskset"].get("task") or {}) if isinstance(block["taskset"].get("task"), dict) else {}
    for number, judge in enumerate(judges.get("judges") or ()):
        if isinstance(judge, dict) and isinstance(judge.get("id"), str):
            resolve(["taskset", "task", "judges", number, "id"], judge["id"], kinds.judge_class)
    for name, seat in block.items():
        harness = seat.get("harness") if isinstance(seat, dict) else None
        if isinstance(harness, dict) and isinstance(harness.get("id"), str):
            resolve([name, "harness", "id"], harness["id"], kinds.harness_class)
    return faults


def with_runtimes(block, config_type):
    """The block where each seat that says nothing of its runtime, and whose author does not either, runs here."""
    block = dict(block)
    for name, spec in seats_of(config_type).items():
        seat = block.get(name)
        if "runtime" in spec.model_fields_set or (seat is not None and not isinstance(seat, dict)):
            continue
        seat = dict(seat or {})
        if seat.get("runtime") is None:
            seat["runtime"] = {"type": "subprocess"}
        block[name] = seat
    return block


def worded(message):
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message


def check(request):
    """An env block against the classes of the package: all faults, or what it resolves to."""
    from copy import deepcopy

    from pydantic import ValidationError

    block = request["env"]
    kinds = loaders()
    cls = taskset_class(block["taskset"]["id"])
    faults, rest, config = id_faults(block), block, None
    if any(fault["path"] == ["id"] for fault in faults):
        # Which keys there are is for that env to say.
        return {"faults": faults}
    for fault in reversed(faults):
        # What has no name is checked no further, the rest is.
        rest = without(rest, fault["path"][:-1]) or rest
    config_type = kinds.env_config_type(block["taskset"]["id"], block.get("id") or "")
    rest = with_runtimes(rest, config_type)
    # Verifiers tells the faults of one part at a time: what is told is taken out, and the rest is checked again.
    for _ in range(30):
        try:
            config = kinds.resolve_env_config(deepcopy(rest))
            break
        except ValidationError as error:
            again = None
            for one in error.errors(include_url=False, include_context=False, include_input=False):
                path = cleaned(one["loc"], rest)
                if one["type"] == "extra_forbidden":
                    path = really(path, rest)
                unknown = one["type"] == "extra_forbidden"
                problem = "unknown key" if unknown else worded(one["msg"])
                known = known_keys(config_type, path, rest) if unknown else []
                fault = {"path": path, "problem": problem, "known": known}
                if fault not in faults:
                    faults.append(fault)
                again = without(again if again is not None else rest, path) or again
            if again is None:
                break
            rest = again
    if faults:
        return {"faults": faults}
    env = kinds.load_environment(config)
    task = cls.task_type()
    excluded = [name for name, field in task.data_type().model_fields.items() if field.exclude]
    if excluded:
        raise ValueError("%s leaves %s out of what is sent: such a taskset cannot be served" % (task.data_type().__name__, excluded))
    harnesses = config.agent_harnesses()
    specs = {name: getattr(config, name) for name in harnesses}
    warnings = []
    for name, harness in harnesses.items():
        facts = harness_facts(harness)
        if specs[name].runtime.type != "subprocess":
            continue
        # Which tasks another env's seats play is for that env to say.
        alone = len(harnesses) == 1 and bool(task.NEEDS_CONTAINER)
        if facts["needs_container"] or alone:
            who = "the harness `%s`" % facts["id"] if facts["needs_container"] else task.__name__
            problem = '%s needs a container: set `runtime.type` to "docker" or another kind that has one' % who
            faults.append({"path": [name, "runtime"], "problem": problem, "known": []})
        elif facts["starts_programs"] and not on_path("uv"):
            warnings.append("the harness `%s` starts its program with uv, which is not on PATH: verifiers will try to download it" % facts["id"])
    if faults:
        return {"faults": faults}
    State.env, State.resolved = env, config.model_dump(mode="json")
    return {
        "resolved": State.resolved,
        "label": config.env_id,
        "task": task.__name__,
        "infinite": not env.taskset.bounded,
        "seats": sorted(harnesses),
        "warnings": sorted(set(warnings)),
        "paths": paths(),
    }


def paths():
    """The folders that code is read from."""
    own = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), *sys.path]
    return sorted({os.path.abspath(place) for place in own if os.path.exists(place)})


def on_path(name):
    import shutil

    return shutil.which(name) is not None


class State:
    """What a checked block leaves for the rows."""

    env = resolved = None


def has_json(value):
    """Whether a value can be said in JSON and in UTF-8."""
    try:
        dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return True
    except (TypeError, ValueError):
        return False


def tasks(request):
    """The rows of the checked block from a position on, one by one: the reader's pace is ours."""
    skip, position = request["skip"], 0
    try:
        if State.resolved is None or State.resolved != request["env"]:
            faults = check(request).get("faults")
            if faults:
                raise ValueError(faults[0]["problem"])
        from verifiers.v1.task import Task

        rows = iter(State.env.taskset)
        for position, task in enumerate(rows):
            if position < skip:
                continue
            kind = type(task)
            identity = task.hash
            row = {
                "type": kind.__name__,
                "data": task.data.model_dump(mode="json"),
                "key": identity if kind.key is Task.key else task.key,
                "hash": identity,
            }
            try:
                text = dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
                text.encode()
            except ValueError as error:
                wrong = [name for name, value in row["data"].items() if not has_json(value)]
                raise ValueError("%s cannot be said in JSON: %s" % (", ".join(wrong) or "it", error)) from None
            yield '{"row":%s}' % text
            position += 1
    except BaseException as error:
        yield dumps({"error": told(error), "row": position}, ensure_ascii=False)
        return
    yield dumps({"end": position})


# -- serving


def serve(start):
    """The env's own server at an address, until SIGTERM; its log is the standard error."""
    import asyncio
    import logging
    import signal

    os.dup2(2, 1)
    log = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    end_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.basicConfig(level=logging.INFO, stream=log, format="%(asctime)s %(levelname)7s %(message)s", datefmt="%H:%M:%S")
    for noisy in ("httpx", "httpx2", "httpcore", "mcp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        config = loaders().resolve_env_config(start["env"])
        from verifiers.v1.serve.server import EnvServer

        server = EnvServer(config=config, address=start["address"], max_concurrent=start["max_concurrent"])
        server.data_cls = Rows(server.data_cls)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code == 143:
            raise
        say(told(error), log)
        return 1

    async def run():
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        await server.run()

    try:
        asyncio.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        pass
    except Exception as error:
        say(told(error), log)
        return 1
    return 0


class Rows:
    """A row's class that takes a field which may be null and is left out for null: runs are written without nulls."""

    def __init__(self, cls):
        self.cls = cls
        self.nulls = {name: None for name, field in cls.model_fields.items() if field.is_required() and may_be_null(field.annotation)}

    def model_validate(self, data):
        return self.cls.model_validate({**self.nulls, **data} if isinstance(data, dict) else data)


def may_be_null(annotation):
    return annotation is None or annotation is type(None) or any(may_be_null(one) for one in getattr(annotation, "__args__", ()) if isinstance(one, type))


def say(error, log):
    """The end of a log: why there is no server."""
    place = " (%s)" % error["place"] if error["place"] else ""
    print("\n".join(error["traceback"] + ["%s: %s%s" % (error["type"], error["message"], place)]), file=log, flush=True)


def end_with_parent():
    """Has the kernel end this process with its parent, where whoever started it did not see to that."""
    try:
        import ctypes
        import signal

        libc, now = ctypes.CDLL(None), ctypes.c_int(0)
        parent = os.getppid()
        libc.prctl(2, ctypes.byref(now))
        if now.value == 0:
            libc.prctl(1, signal.SIGTERM)
            if os.getppid() != parent:
                sys.exit(143)
    except (OSError, AttributeError):
        pass


# -- requests


OPS = {"look": look, "installed": installed, "describe": describe, "check": check}


def answer(out, line):
    data = memoryview(line.encode("utf-8", "replace") + b"\n")
    while data:
        data = data[write(out, data) :]


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def end(status):
    """What a package left running, threads above all, must not hold up the end."""
    import logging

    try:
        logging.shutdown()
    finally:
        flush()
        os._exit(status)


def main():
    import faulthandler

    # The folder that we run in is no place for packages.
    sys.path[:] = [place for place in sys.path if place]
    parts = [os.environ.pop(name) for name in sorted(name for name in os.environ if name.startswith("ROLLHOUSE_SERVE_"))]
    if parts:
        end(serve(json.loads("".join(parts))))
    requests, out = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    faulthandler.enable(2)
    while line := requests.readline():
        request = json.loads(line)
        if request["op"] == "tasks":
            for row in tasks(request):
                answer(out, row)
            continue
        try:
            value = {"value": OPS[request["op"]](request)}
        except BaseException as error:
            value = {"error": told(error)}
        flush()
        answer(out, dumps(value, ensure_ascii=False))
    end(0)


main()
