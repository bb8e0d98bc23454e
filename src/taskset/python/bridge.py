"""The Python side of a worker: imports a taskset's script once, then answers calls until its input ends.

Runs before any code of the author, on the standard library of Python 3.8 or newer. `requests`, the buffered input, is given.
A frame is a head (length of the body, number of the call, kind, flags) and a body of JSON.
"""

import faulthandler
import json
import os
import struct
import sys
import traceback
import types

HEAD = struct.Struct(">IQcB")
# Kinds of frames, and what an answer says of the worker beside.
CALL, CANCEL, VALUE, RAISED, UNREADABLE = b"c", b"x", b"v", b"r", b"u"
LEFT_PROCESSES, GREW = 1, 2
# What is told of an exception.
MOST_LINES, MOST_CHARACTERS = 40, 2000

PID = os.getpid()
LIBRARY = os.path.dirname(os.__file__) + os.sep


def plain(value):
    """Numbers and arrays of numpy and its like as Python's own."""
    for method in ("tolist", "item"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain)


def as_json(value):
    """What the bridge itself says, whatever half characters an author put into it."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def culprit(value, place="the value", depth=0):
    """Where in a value is what JSON cannot say, in words; None if nowhere."""
    if value is None or isinstance(value, (bool, int)):
        return None
    if isinstance(value, float):
        return None if abs(value) < float("inf") else "%s is %r" % (place, value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "%s holds half a character: %s" % (place, ascii(value[:80]))
        return None
    if depth > 100:
        return "%s is nested too deeply" % place[:200]
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                return "a key of %s is of type %s, expected text" % (place, type(key).__name__)
            found = culprit(inner, "%s[%r]" % (place, key), depth + 1)
            if found:
                return found
        return None
    if isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            found = culprit(inner, "%s[%d]" % (place, position), depth + 1)
            if found:
                return found
        return None
    try:
        return culprit(plain(value), place, depth + 1)
    except TypeError:
        return "%s is of type %s" % (place, type(value).__name__)


def safe(text, error):
    """`text(error)`, or why not: an author's exception may fail to say what it is."""
    try:
        return str(text(error))[:MOST_CHARACTERS]
    except BaseException:
        return "no message"


def is_library(name):
    """Whether a file's name is that of the bridge or of Python's own library, and not of an installed package."""
    return name.startswith("<") or (name.startswith(LIBRARY) and "site-packages" not in name)


def told(error):
    """An exception as an answer: its type, message and the author's frames."""
    message = safe(str, error)
    if isinstance(error, SystemExit):
        message = "sys.exit(%s)" % message
    elif isinstance(error, SyntaxError):
        message = safe(lambda error: error.msg, error)
    frames = error.__traceback__
    # What lies between the bridge and the author's code.
    while frames is not None and is_library(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    where = None
    lines = []
    try:
        summary = traceback.TracebackException(type(error), error, frames)
        lines = "".join(summary.format()).splitlines()
        if len(lines) > MOST_LINES:
            half = MOST_LINES // 2
            lines[half:-half] = ["  ... %d lines left out" % (len(lines) - 2 * half)]
        own = [frame for frame in summary.stack if not is_library(frame.filename) and "site-packages" not in frame.filename]
        if summary.stack:
            last = (own or summary.stack)[-1]
            where = "%s:%s in %s" % (os.path.basename(last.filename), last.lineno, last.name)
        elif isinstance(error, SyntaxError) and error.filename:
            where = "%s:%s" % (os.path.basename(error.filename), error.lineno)
    except BaseException:
        pass
    return {"type": type(error).__name__, "message": message, "where": where, "traceback": [line[:500] for line in lines]}


class Worker:
    """What a process keeps: its private streams and the state that an author's function may spoil."""

    def __init__(self, requests, answers, errors):
        self.requests = requests
        self.answers = answers
        self.errors = errors
        self.nothing = os.open(os.devnull, os.O_RDWR)
        self.folder = os.open(".", os.O_RDONLY)
        self.largest = 0
        self.loop = None
        self.children = False
        self.pages = 1 << 62
        try:
            self.memory = os.open("/proc/self/statm", os.O_RDONLY)
        except OSError:
            self.memory = None
        self.open_streams()
        self.restore()

    def open_streams(self):
        self.out, self.err = (
            open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False) for number in (1, 2)
        )

    def restore(self):
        """Standard streams and the folder as they were, whatever was done to them."""
        os.dup2(self.nothing, 0)
        os.dup2(self.errors, 1)
        os.dup2(self.errors, 2)
        os.fchdir(self.folder)
        try:
            self.out.flush()
            self.err.flush()
        except Exception:
            self.open_streams()
        sys.stdout = self.out
        sys.stderr = self.err

    def settle(self, growth):
        """Takes what the script needs when it has been imported as the measure of what calls may add."""
        self.children = self.has_children()
        self.pages = self.resident() + growth // os.sysconf("SC_PAGE_SIZE")

    def resident(self):
        return int(os.pread(self.memory, 128, 0).split()[1]) if self.memory is not None else 0

    def has_children(self):
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return True
        except ChildProcessError:
            return False
        except AttributeError:  # no waitid
            return False

    def flags(self):
        grew = GREW if self.resident() > self.pages else 0
        return grew | (LEFT_PROCESSES if not self.children and self.has_children() else 0)

    def encode(self, value):
        """A value as kind and body of an answer."""
        try:
            body = ENCODER.encode(value).encode()
        except MemoryError:
            raise
        except Exception as error:
            # The module's answer is `{"value": …}`: what the author returned stands in it.
            returned = value.get("value", value) if isinstance(value, dict) else value
            problem = culprit(returned) or safe(str, error)
            return UNREADABLE, as_json(problem[:MOST_CHARACTERS])
        if len(body) > self.largest:
            return UNREADABLE, as_json("it takes %d bytes as JSON, at most %d are allowed" % (len(body), self.largest))
        return VALUE, body

    def let_go(self):
        """In a forked child: the streams are its parent's."""
        os.close(self.answers)
        os.close(self.requests.fileno())

    def answer(self, number, kind, body, flags=0):
        if os.getpid() != PID:
            # A forked child came back through the author's function: the answer is its parent's to give.
            os._exit(0)
        frame = memoryview(HEAD.pack(len(body), number, kind, flags) + body)
        while frame:
            frame = frame[os.write(self.answers, frame) :]

    def wait(self, awaitable):
        """Runs an awaitable on this worker's own event loop."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(as_coroutine(awaitable))

    def one(self, handle, request):
        """Makes one call and waits for it."""
        try:
            value = handle(request["op"], request["body"])
            if hasattr(value, "__await__"):
                value = self.wait(value)
            return self.encode(value)
        except BaseException as error:
            return RAISED, as_json(told(error))

    def serve(self, handle):
        """Answers one call after another."""
        while True:
            head = self.requests.read(HEAD.size)
            if len(head) < HEAD.size:
                return
            length, number, _, _ = HEAD.unpack(head)
            kind, body = self.one(handle, json.loads(self.requests.read(length)))
            self.restore()
            self.answer(number, kind, body, self.flags())

    async def serve_many(self, handle):
        """Answers calls as they end, all on one event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        tasks = {}
        cancelled = set()
        ended = loop.create_future()
        buffer = bytearray()

        async def one(number, body):
            try:
                request = json.loads(body)
                value = handle(request["op"], request["body"])
                if hasattr(value, "__await__"):
                    value = await value
                kind, body = self.encode(value)
            except asyncio.CancelledError as error:
                if number not in cancelled:
                    # A function cancelled what is not its own, or ended the loop: all that is in flight is made again,
                    # each call alone.
                    os._exit(70)
                kind, body = RAISED, as_json(told(error))
            except BaseException as error:
                kind, body = RAISED, as_json(told(error))
            finally:
                tasks.pop(number, None)
                cancelled.discard(number)
            self.restore()
            self.answer(number, kind, body, self.flags())

        def readable():
            data = os.read(self.requests.fileno(), 1 << 20)
            if not data and not ended.done():
                ended.set_result(None)
            buffer.extend(data)
            while len(buffer) >= HEAD.size:
                length, number, kind, _ = HEAD.unpack_from(buffer)
                end = HEAD.size + length
                if len(buffer) < end:
                    return
                body = bytes(buffer[HEAD.size : end])
                del buffer[:end]
                if kind == CALL:
                    tasks[number] = loop.create_task(one(number, body))
                elif number in tasks:
                    cancelled.add(number)
                    tasks[number].cancel()

        loop.add_reader(self.requests.fileno(), readable)
        await ended
        # Calls that will not be cancelled would hold up the end of the loop.
        os._exit(0)


async def as_coroutine(awaitable):
    return await awaitable


def main(requests):
    # The protocol gets private descriptors, which children do not inherit; what is printed goes with standard error.
    worker = Worker(requests, os.dup(1), os.dup(2))
    faulthandler.enable(worker.errors)
    os.register_at_fork(after_in_child=worker.let_go)
    started = json.loads(requests.readline())
    worker.largest = started["largest"]
    os.write(worker.answers, started["mark"].encode())
    script = started["script"]
    sys.path[0] = os.path.dirname(script)
    sys.argv = [script]
    try:
        module = types.ModuleType("rollhouse")
        module.__file__ = "<rollhouse module>"
        sys.modules["rollhouse"] = module
        exec(compile(started["module"], module.__file__, "exec"), module.__dict__)
        module.open(script, started["arguments"])
        worker.restore()
        worker.settle(started["growth"])
    except BaseException as error:
        worker.restore()
        worker.answer(0, RAISED, as_json(told(error)))
        return
    worker.answer(0, VALUE, b"null")
    if started["shared"]:
        import asyncio

        asyncio.run(worker.serve_many(module.handle))
    else:
        worker.serve(module.handle)


try:
    main(requests)
except BaseException:
    traceback.print_exc()
    os._exit(70)
# Not the usual end: threads and handlers of the author would hold it up.
os._exit(0)
