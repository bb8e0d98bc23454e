"""The real verifiers as both sides of the env-server protocol, in one process.

The first argument is a JSON list of env blocks, each served by an `EnvServer` of its own; their addresses are the first
line of the output. Then each line of the input is a command and each line of the output its answer, in JSON. The end of
the input ends the process.
"""

import asyncio
import json
import sys
import threading
import time

import zmq
import zmq.asyncio
from pydantic import TypeAdapter

from verifiers.v1.configs.client import ClientConfig
from verifiers.v1.episode import WireEpisode
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.server import EnvServer
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import resolve_env_config


async def run(request, on_delta=None, client=None):
    """One run by the client of verifiers: its episode, or what it raised."""
    own = client or EnvClient(request["address"])
    seen = []
    try:
        episode = await own.run(
            client=TypeAdapter(ClientConfig).validate_python(request["client"]),
            model=request["model"],
            sampling=SamplingConfig.model_validate(request["sampling"]),
            task_data=request["task_data"],
            on_delta=on_delta or seen.append,
        )
    except Exception as error:
        return {"error": str(error), "raised": type(error).__name__}
    finally:
        if client is None:
            await own.close()
    return told(episode) | {"deltas": len(seen), "previews": sum(bool(delta.get("pending")) for delta in seen)}


def told(episode):
    return {
        "ok": episode.ok,
        "errors": [error.type for error in episode.errors],
        "line": episode.model_dump_json(exclude_none=True),
        "traces": [
            {
                "ok": trace.ok,
                "reward": trace.reward,
                "turns": trace.num_turns,
                "errors": [error.type for error in trace.errors],
                "runtime": trace.agent.config.runtime and trace.agent.config.runtime.type,
            }
            for trace in episode.traces
        ],
    }


async def cancel(request):
    """Gives a run up once something of it has come."""
    client = EnvClient(request["address"])
    begun = asyncio.Event()
    task = asyncio.create_task(run(request, on_delta=lambda delta: begun.set(), client=client))
    await begun.wait()
    task.cancel()
    try:
        await task
        raised = None
    except asyncio.CancelledError:
        raised = "CancelledError"
    healthy = await client.health(timeout=30)
    await client.close()
    return {"raised": raised, "healthy": healthy}


async def leave(request):
    """Goes away while a run is in flight, without a cancel."""
    client = EnvClient(request["address"])
    begun = asyncio.Event()
    task = asyncio.create_task(run(request, on_delta=lambda delta: begun.set(), client=client))
    await begun.wait()
    client.socket.close()
    task.cancel()
    return {}


async def startup(request):
    """Waits for a server as the evaluation of verifiers does."""
    client = EnvClient(request["address"])
    try:
        await client.wait_for_server_startup(timeout=request["seconds"])
        return {"raised": None}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    finally:
        await client.close()


async def many(request):
    """Many runs at once over one connection."""
    client = EnvClient(request["address"])
    started = time.process_time()
    ends = await asyncio.gather(*(run(request, client=client) for _ in range(request["count"])))
    await client.close()
    failed = [end["error"] for end in ends if "error" in end]
    return {"ended": len(ends) - len(failed), "failed": failed[:3], "seconds": time.process_time() - started}


async def raw(request):
    """Messages by hand, frames in hex, and as many answers as are asked for."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(request["address"])
    for frames in request["messages"]:
        await socket.send_multipart([bytes.fromhex(frame) for frame in frames])
    answers = [await socket.recv_multipart() for _ in range(request["answers"])]
    socket.close()
    context.term()
    return [[frame.hex() for frame in answer] for answer in answers]


async def read(request):
    """Reads lines of `traces.jsonl`."""
    with open(request["file"], encoding="utf-8") as file:
        return [told(WireEpisode.model_validate_json(line)) for line in file]


COMMANDS = {"run": run, "cancel": cancel, "leave": leave, "startup": startup, "many": many, "raw": raw, "read": read}


async def main(blocks):
    servers = [EnvServer(resolve_env_config(block), address="tcp://127.0.0.1:0") for block in blocks]
    serving = [asyncio.create_task(server.run()) for server in servers]
    answer([server.address for server in servers])
    loop, lines = asyncio.get_running_loop(), asyncio.Queue()

    def listen():
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=listen, daemon=True).start()
    while (line := await lines.get()) is not None:
        command = json.loads(line)
        answer(await COMMANDS[command.pop("do")](command))
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


def answer(value):
    print(json.dumps(value), flush=True)


asyncio.run(main(json.loads(sys.argv[1])))
