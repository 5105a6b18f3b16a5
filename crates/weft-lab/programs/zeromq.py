"""A server of ZeroMQ that sends each message back, and its client.

zeromq.py serve PORT CLIENTS
zeromq.py connect PORT MESSAGES
zeromq.py load PORT CONNECTIONS
"""

import sys
import threading
import time

import zmq

TIMEOUT_MS = 200000
# Prime: no buffer's size is a multiple of it.
PERIOD = 65521
BLOCK = bytes((i ^ i >> 8) & 255 for i in range(PERIOD))


def context():
    # Each of its threads waits in an epoll instance, and others send it commands.
    made = zmq.Context(io_threads=2)
    for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
        made.setsockopt(option, TIMEOUT_MS)
    return made


def serve(port, clients):
    with context() as made, made.socket(zmq.ROUTER) as router:
        router.set_hwm(0)
        router.bind(f"tcp://127.0.0.1:{port}")
        while clients:
            message = router.recv_multipart()
            clients -= message[-1] == b"bye"
            router.send_multipart(message)


def content(number):
    return [str(number).encode(), BLOCK[number % 100 : number * 7 % 9000 + 100]]


def connect(port, count):
    with context() as made:
        # One after the other.
        with made.socket(zmq.REQ) as server:
            server.connect(f"tcp://127.0.0.1:{port}")
            for number in range(count // 10):
                server.send_multipart(content(number))
                if server.recv_multipart() != content(number):
                    sys.exit(f"message {number} has another answer")
        # All at once.
        with made.socket(zmq.DEALER) as server:
            server.set_hwm(0)
            server.connect(f"tcp://127.0.0.1:{port}")
            for number in range(count):
                server.send_multipart(content(number))
            for number in range(count):
                if server.recv_multipart() != content(number):
                    sys.exit(f"message {number} did not come back in its place")
            server.send(b"bye")
            server.recv()
    print("echoed", count)


def load(port, connections):
    """How many requests of 64 bytes are answered in two seconds, a thread for each connection."""
    counts, over = [0] * connections, time.monotonic() + 2

    def ask(made, place):
        with made.socket(zmq.REQ) as server:
            server.connect(f"tcp://127.0.0.1:{port}")
            while time.monotonic() < over:
                server.send(BLOCK[:64])
                server.recv()
                counts[place] += 1
            server.send(b"bye")
            server.recv()

    start = time.monotonic()
    with context() as made:
        threads = [threading.Thread(target=ask, args=(made, i)) for i in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("requests", sum(counts), "per second", sum(counts) / (time.monotonic() - start))


role, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
{"serve": serve, "connect": connect, "load": load}[role](port, number)
