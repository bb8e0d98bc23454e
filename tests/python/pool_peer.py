"""The broker of verifiers with workers that only count: what it does with a sequence of runs and of their ends.

The argument is JSON: `multiplex`, `max_workers`, and `steps`, each null for a run that begins, or the number of a run that
ends. The answer is a list: after each step, how many runs each worker has.
"""

import asyncio
import json
import shutil
import sys

import zmq
import zmq.asyncio

from verifiers.v1.serve.pool import EnvServerPool


class CountingPool(EnvServerPool):
    """Its workers are sockets of this process."""

    def _spawn_worker(self):
        index = len(self.workers)
        worker = self.ctx.socket(zmq.ROUTER)
        worker.setsockopt(zmq.LINGER, 0)
        worker.bind(f"ipc://{self._worker_path(index)}")
        dealer = self.ctx.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"ipc://{self._worker_path(index)}")
        self.workers.append({"dealer": dealer, "active": 0, "index": index})
        self.sockets.append(worker)
        if self._poller is not None:
            self._poller.register(dealer, zmq.POLLIN)

    def _shutdown(self):
        for socket in self.sockets + [worker["dealer"] for worker in self.workers] + [self.frontend]:
            socket.close()
        shutil.rmtree(self._ipc_dir)


async def main(multiplex, max_workers, steps):
    pool = CountingPool({}, max_workers, "tcp://127.0.0.1:0", multiplex=multiplex)
    pool.sockets = []
    broker = asyncio.create_task(pool.run())
    client = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    client.setsockopt(zmq.LINGER, 0)
    client.connect(pool.address)
    where, counts, begun, in_flight = {}, [], 0, 0
    for step in steps:
        if step is None:
            await client.send_multipart([b"%d" % begun, b"run", b"\x80"])
            begun, in_flight = begun + 1, in_flight + 1
        else:
            worker, peer = where.pop(step)
            await worker.send_multipart([peer, b"%d" % step, b"reply", b"\x80"])
            assert (await client.recv_multipart())[0] == b"%d" % step
            in_flight -= 1
        while sum(worker["active"] for worker in pool.workers) != in_flight:
            await asyncio.sleep(0.001)
        if step is None:
            poller = zmq.asyncio.Poller()
            for socket in pool.sockets:
                poller.register(socket, zmq.POLLIN)
            ((socket, _),) = await poller.poll()
            peer, name, _, _ = await socket.recv_multipart()
            where[int(name)] = (socket, peer)
        counts.append([worker["active"] for worker in pool.workers])
    broker.cancel()
    await asyncio.gather(broker, return_exceptions=True)
    client.close()
    print(json.dumps(counts))


asyncio.run(main(**json.loads(sys.argv[1])))
