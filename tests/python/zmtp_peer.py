"""A pyzmq socket that does what its messages say.

    zmtp_peer.py dealer|router ADDRESS [OPTIONS]

OPTIONS are socket options as JSON. A router prints where it listens. The first frame of a message is what to do; the answer
has the same number of frames, or what is said below. It ends with its standard input.
"""

import json
import os
import sys
import threading
import time

import zmq


def main():
    kind, address = sys.argv[1:3]
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    threading.Thread(target=end_with_parent, daemon=True).start()
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER if kind == "router" else zmq.DEALER)
    options = {"LINGER": 0, "SNDHWM": 0, "RCVHWM": 0, "RECONNECT_IVL": 20} | options
    for name, value in options.items():
        socket.setsockopt(getattr(zmq, name), value.encode() if isinstance(value, str) else value)
    monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    if kind == "router":
        socket.bind(address)
        print(socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0"), flush=True)
    else:
        socket.connect(address)
        socket.send(b"hello")
    events = {zmq.EVENT_DISCONNECTED: 0, zmq.EVENT_HANDSHAKE_SUCCEEDED: 0}
    while True:
        frames = socket.recv_multipart(copy=False)
        head = [frames.pop(0)] if kind == "router" else []
        what = frames[0].bytes
        if what == b"echo":
            socket.send_multipart(head + frames, copy=False)
        elif what == b"busy":
            # Holds the interpreter: no thread of Python runs, no event loop turns.
            end = time.monotonic() + float(frames[1].bytes)
            while time.monotonic() < end:
                sum(range(100_000))
            socket.send_multipart(head + frames)
        elif what == b"flood":
            # `flood`, count, size: numbered messages of that size.
            count, size = int(frames[1].bytes), int(frames[2].bytes)
            for number in range(count):
                socket.send_multipart(head + [b"%d" % number, bytes([number % 251]) * size], copy=False)
        elif what == b"events":
            # Answers with how often a connection was lost, and made.
            while monitor.poll(0):
                event, _ = monitor.recv_multipart()
                events[int.from_bytes(event[:2], sys.byteorder)] += 1
            counts = [b"%d" % count for count in events.values()]
            socket.send_multipart(head + [b"events"] + counts)


def end_with_parent():
    while os.read(0, 4096):
        pass
    os._exit(0)


main()
