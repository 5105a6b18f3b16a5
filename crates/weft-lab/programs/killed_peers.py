"""Peers that are killed after they have read everything: the stream ends behind what they have sent,
and is not reset. The peers waited for bytes, in every manner, so that Weft had to wake them."""

import os
import select
import signal
import socket
import time

ROUNDS = 5


def by_recv(end):
    return end.recv(1)


def by_peeking(end):
    end.recv(1, socket.MSG_PEEK)
    return end.recv(1)


def by_poll(end):
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.poll()
    return end.recv(1)


def by_epoll(end):
    with select.epoll() as epoll:
        epoll.register(end, select.EPOLLIN)
        epoll.poll()
    return end.recv(1)


def by_time_limit(end):
    end.settimeout(200)
    return end.recv(1)


def serve(end, wait, size):
    for _ in range(4):
        assert wait(end) == b"?"
        end.settimeout(None)
        end.sendall(b"!")
    end.sendall(b"." * size)
    os.kill(os.getpid(), signal.SIGKILL)


def rest_of(end):
    data = b""
    while more := end.recv(1 << 16):
        data += more
    return data


for wait in (by_recv, by_peeking, by_poll, by_epoll, by_time_limit):
    for size in (0, 1, 5_000, 200_000):
        for _ in range(ROUNDS):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                child = os.fork()
                if child == 0:
                    served, _ = listener.accept()
                    listener.close()
                    serve(served, wait, size)
                end = socket.create_connection(listener.getsockname())
            for _ in range(4):
                time.sleep(0.012)  # So long that the peer sleeps in the kernel.
                end.sendall(b"?")
                assert end.recv(1) == b"!"
            try:
                rest = rest_of(end)
            except OSError as error:
                raise SystemExit(f"{wait.__name__}, {size} bytes: {error}")
            assert rest == b"." * size, f"{len(rest)} bytes of {size}"
            os.waitpid(child, 0)
            end.close()
print("all ended")
