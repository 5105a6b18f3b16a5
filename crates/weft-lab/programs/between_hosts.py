"""One end of a TCP connection, by blocking calls and epoll; checks every byte that comes.

between_hosts.py server|client ADDRESS PORT TASK
"""

import os
import random
import select
import signal
import socket
import sys
import threading
import time

PERIOD = 251
PATTERN = bytes(range(PERIOD)) * 4000
LENGTH = 5_000_003
PIECE = 150_000

role, address, port, task = sys.argv[1:]
random.seed(f"{role} {os.environ.get('BETWEEN_HOSTS_SEED', 1)}")
if role == "server":
    listener = socket.create_server((address, int(port)))
    stream, _ = listener.accept()
else:
    stream = socket.create_connection((address, int(port)))


def piece(position, end):
    """Bytes of the pattern from a position on."""
    start = position % PERIOD
    return PATTERN[start : start + min(PIECE, end - position)]


def expect(received, position):
    start = position % PERIOD
    assert received == PATTERN[start : start + len(received)], position


def ping_pong():
    """Long enough that the connection has left TCP in the middle of it."""
    for number in range(60):
        if role == "server":
            assert stream.recv(5, socket.MSG_WAITALL) == b"hello", number
            stream.sendall(b"world")
        else:
            stream.sendall(b"hello")
            assert stream.recv(5, socket.MSG_WAITALL) == b"world", number
        time.sleep(0.005)


def send_all(end=LENGTH):
    position = 0
    while position < end:
        position += stream.send(piece(position, end))


def recv_all():
    position = 0
    while received := stream.recv(random.choice([1, 1_000, PIECE])):
        expect(received, position)
        position += len(received)
    return position


def die_soon():
    threading.Timer(random.uniform(0, 0.05), lambda: os.kill(os.getpid(), 9)).start()


def hold():
    """Stays open after one direction has brought all: somebody looks at it."""
    if role == "server":
        send_all()
    else:
        position = 0
        while position < LENGTH:
            received = stream.recv(PIECE)
            expect(received, position)
            position += len(received)
    print("moved", flush=True)
    stream.recv(1)


def close():
    """Closes with data in flight; the peer is late."""
    if role == "server":
        send_all()
        stream.close()
    else:
        time.sleep(0.05)
        assert recv_all() == LENGTH


def stopped():
    """Closes, and that returns, while the peer cannot take anything."""
    if role == "server":
        assert stream.recv(1) == b"s"
        time.sleep(0.3)
        send_all(600_000)
        stream.close()
        print("closed", flush=True)
    else:
        stream.send(b"s")
        print("stops", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        assert recv_all() == 600_000


def half_close():
    """Ends its own half and still receives."""
    if role == "server":
        send_all()
        stream.shutdown(socket.SHUT_WR)
        assert recv_all() == LENGTH
    else:
        assert recv_all() == LENGTH
        send_all()


def epoll():
    """Both directions at the same time, without blocking."""
    stream.setblocking(False)
    poll = select.epoll()
    poll.register(stream, select.EPOLLIN | select.EPOLLOUT)
    sent = come = 0
    while sent < LENGTH or come < LENGTH:
        for _, events in poll.poll(10) or sys.exit("nothing happens"):
            if events & select.EPOLLIN and come < LENGTH:
                received = stream.recv(PIECE)
                assert received, come
                expect(received, come)
                come += len(received)
            if events & select.EPOLLOUT and sent < LENGTH:
                sent += stream.send(piece(sent, LENGTH))
                if sent == LENGTH:
                    poll.modify(stream, select.EPOLLIN)
    stream.setblocking(True)
    stream.shutdown(socket.SHUT_WR)
    assert stream.recv(1) == b""


def fork():
    """A child goes on with the connection, which its parent closes."""
    if role == "server":
        if child := os.fork():
            stream.close()
            assert os.waitpid(child, 0)[1] == 0
            return
        send_all()
        assert stream.recv(4, socket.MSG_WAITALL) == b"done"
    else:
        position = 0
        while position < LENGTH:
            received = stream.recv(PIECE)
            assert received, position
            expect(received, position)
            position += len(received)
        stream.sendall(b"done")
        assert stream.recv(1) == b""


def execute():
    """Another program goes on with the connection: a shell that knows nothing of it."""
    if role == "server":
        os.set_inheritable(stream.fileno(), True)
        number = stream.fileno()
        os.execvp("env", ["env", "-u", "LD_PRELOAD", "sh", "-c", f"echo over >&{number}"])
    else:
        assert stream.recv(100, socket.MSG_WAITALL) == b"over\n"


def sender_dies():
    """The survivor gets a prefix, then the end or a reset."""
    if role == "server":
        die_soon()
        send_all(1 << 40)
    try:
        recv_all()
    except ConnectionResetError:
        pass


def receiver_dies():
    if role == "client":
        die_soon()
        recv_all()
    try:
        send_all(1 << 40)
    except (ConnectionResetError, BrokenPipeError):
        pass


ping_pong()
globals()[task]()
