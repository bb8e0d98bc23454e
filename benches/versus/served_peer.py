"""The peer's pair: an env server of verifiers and its client, which runs so many episodes, so many at once. Prints a JSON
line with the seconds of wall and processor time of both from the first request to the last reply."""

import asyncio
import json
import multiprocessing
import sys
import time

from verifiers.v1.clients import EvalClientConfig
from verifiers.v1.serve import EnvClient, serve_env
from verifiers.v1.types import SamplingConfig


def used(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def main(base_url, count, at_once):
    context = multiprocessing.get_context("spawn")
    addresses = context.Queue()
    block = {"taskset": {"id": "versus_task"}, "agent": {"harness": {"id": "versus_task"}, "runtime": {"type": "subprocess"}}}
    named = {"max_workers": 1, "address": "tcp://127.0.0.1:0", "address_queue": addresses, "config_data": block}
    server = context.Process(target=serve_env, kwargs=named)
    server.start()
    address = addresses.get()
    client = EnvClient(address)
    await client.wait_for_server_startup()
    model, sampling = EvalClientConfig(base_url=base_url, api_key_var="VERSUS_KEY"), SamplingConfig()
    gate = asyncio.Semaphore(at_once)

    async def run(number):
        text = f"a short line of text number {number}"
        row = {"idx": number, "prompt": text, "answer": text}
        async with gate:
            await client.run(model, "sim", sampling, row)

    await run(0)
    server_before, here, started = used(server.pid), time.process_time(), time.monotonic()
    await asyncio.gather(*(run(number) for number in range(count)))
    wall = time.monotonic() - started
    print(json.dumps({"wall": wall, "server": used(server.pid) - server_before, "client": time.process_time() - here}))
    await client.close()
    server.terminate()
    server.join()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
