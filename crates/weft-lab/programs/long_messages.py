"""Long messages between two processes: sent from buffers that are overwritten at once, received in
every manner, interrupted and cut short. Ends with 0 if no byte was wrong; the argument is a seed."""

import fcntl
import hashlib
import os
import random
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time

BLOCK = bytes(range(256)) * 4096 * 4


def started(peer):
    """A connection to a child that runs `peer` with the other end, once both know each other."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        try:
            end, _ = listener.accept()
            listener.close()
            greet(end, end)
            peer(end)
            os._exit(0)
        except BaseException as error:
            print("child:", repr(error), file=sys.stderr)
            os._exit(1)
    end = socket.create_connection(listener.getsockname())
    listener.close()
    greet(end, end, first=True)
    return end, child


def greet(out, into, first=False):
    for _ in range(3):
        if first:
            out.send(b"x")
        assert into.recv(1) == b"x"
        if not first:
            out.send(b"x")


def ended(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"


def rest_of(end):
    while data := end.recv(1 << 20):
        yield data


def send_and_overwrite(seed):
    choose = random.Random(seed)

    def peer(end):
        digest = hashlib.sha256()
        noise = os.urandom(65_521)
        for _ in range(40):
            limits = choose.choice([(1, 5_000), (1, 300_000), (130_000, 3_000_000)])
            length = choose.randrange(*limits)
            message = memoryview(bytearray((noise * (length // len(noise) + 1))[:length]))
            digest.update(message)
            cut = choose.randrange(length) if choose.random() < 0.3 else 0
            sent = 0
            while sent < length:
                parts = [message[sent : max(sent, cut)], message[max(sent, cut) :]]
                sent += end.sendmsg([part for part in parts if part])
            for at in range(0, length, 512):
                message[at] = 0
            if choose.random() < 0.1:
                time.sleep(0.004)
        end.shutdown(socket.SHUT_WR)
        assert end.recv(100) == digest.digest(), "other bytes"

    return peer


def receive_in_every_manner(end, seed):
    choose = random.Random(seed)
    digest = hashlib.sha256()
    while True:
        length = choose.randrange(*choose.choice([(1, 3_000), (1, 70_000), (100_000, 4_000_000)]))
        manner = choose.random()
        if manner < 0.1:
            seen = end.recv(length, socket.MSG_PEEK)
            data = end.recv(len(seen), socket.MSG_WAITALL) if seen else b""
            assert data == seen, "a peek that was not true"
        elif manner < 0.2:
            there = struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, b"\0" * 4))[0]
            data = end.recv(there or 1, socket.MSG_WAITALL)
            assert len(data) == there or not there, "fewer than were counted"
        elif manner < 0.3:
            data = end.recv(length, socket.MSG_WAITALL)
        elif manner < 0.4:
            assert select.select([end], [], [], 20)[0]
            data = end.recv(length, socket.MSG_DONTWAIT)
        else:
            data = end.recv(length)
        if not data:
            return digest.digest()
        digest.update(data)
        if choose.random() < 0.02:
            time.sleep(0.01)


def integrity(seed):
    end, child = started(send_and_overwrite(seed))
    end.send(receive_in_every_manner(end, seed + 1))
    ended(child)


def what_is_readable_can_be_read(seed):
    """The sender withdraws a message that nobody has pulled in time, and puts it into the ring,
    between poll and receive."""
    choose = random.Random(seed)

    def peer(end):
        for _ in range(1_000):
            end.sendall(BLOCK[:300_000])

    end, child = started(peer)
    left = 1_000 * 300_000
    while left > 0:
        assert select.select([end], [], [], 20)[0]
        until = time.monotonic() + choose.choice([0.0001, 0.0003, 0.0012]) * choose.random()
        while time.monotonic() < until:
            pass
        left -= len(end.recv(choose.choice([100_000, 4_000_000]), socket.MSG_DONTWAIT))
    ended(child)


def questions_of_readability(end):
    poll = select.poll()
    poll.register(end, select.POLLIN)
    epoll = select.epoll()
    epoll.register(end, select.EPOLLIN)
    return {
        "select": lambda: select.select([end], [], [], 20)[0],
        "select at once": lambda: select.select([end], [], [], 0)[0],
        "poll": lambda: poll.poll(20_000),
        "poll at once": lambda: poll.poll(0),
        "epoll_wait at once": lambda: epoll.poll(0),
        "FIONREAD": lambda: struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, b"\0" * 4))[0],
        "MSG_PEEK": lambda: end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT),
    }


def what_is_readable_stays_readable():
    """The same, and the receiver asks again and again before it receives."""

    def peer(end):
        for _ in range(300):
            end.sendall(BLOCK[:300_000])

    end, child = started(peer)
    questions = questions_of_readability(end)
    left = 300 * 300_000
    while left > 0:
        for name, ask in questions.items():
            assert select.select([end], [], [], 20)[0], "nothing comes"
            until = time.monotonic() + 0.0015
            while time.monotonic() < until:
                assert ask(), f"{name}: not readable any more"
            left -= len(end.recv(4_000_000, socket.MSG_DONTWAIT))
            if left == 0:
                break
    ended(child)


def what_is_readable_stays_readable_when_the_sender_goes():
    """What has not been read then goes back to the kernel."""
    for round in range(140):
        end, child = started(lambda end: (end.sendall(BLOCK[: 400 * round + 1]), end.recv(1)))
        questions = list(questions_of_readability(end).items())
        name, ask = questions[round % len(questions)]
        assert select.select([end], [], [], 20)[0], "nothing comes"
        end.send(b"x")
        is_there = True
        while is_there:
            is_there = os.waitpid(child, os.WNOHANG)[0] == 0
            assert ask(), f"{name}: not readable any more"
        end.close()


def the_sender_is_killed():
    end, child = started(lambda end: end.sendall(BLOCK * 4))
    data = end.recv(100_000, socket.MSG_WAITALL)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        data += b"".join(rest_of(end))
    except ConnectionResetError:
        pass
    assert (BLOCK * 4).startswith(data), "no prefix"


def the_receiver_is_killed():
    def peer(end):
        end.recv(100_000)
        os.kill(os.getpid(), signal.SIGKILL)

    end, child = started(peer)
    try:
        for _ in range(10):
            end.sendall(BLOCK)
        raise AssertionError("sent to nobody")
    except (BrokenPipeError, ConnectionResetError):
        os.waitpid(child, 0)


def nobody_reads():
    """What has room goes at once; a signal, a time limit and a shutdown end what has not."""
    end, child = started(lambda end: signal.pause())
    began = time.monotonic()
    end.sendall(BLOCK[:200_000])
    assert time.monotonic() - began < 0.5, "a late reader holds a writer up"

    class Alarm(Exception):
        pass

    def alarm(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Alarm

    signal.signal(signal.SIGALRM, alarm)
    # More than one: a signal that comes between two looks at the ring ends no wait.
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.05)
    try:
        end.sendall(BLOCK * 8)
        raise AssertionError("more than there is room for")
    except Alarm:
        pass
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    try:
        end.sendall(BLOCK * 8)
        raise AssertionError("more than there is room for")
    except BlockingIOError:
        pass
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
    threading.Timer(0.1, lambda: end.shutdown(socket.SHUT_WR)).start()
    try:
        end.sendall(BLOCK * 8)
        raise AssertionError("sent behind the end")
    except BrokenPipeError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def a_child_sends_its_own_memory():
    def peer(end):
        message = bytearray(BLOCK)
        child = os.fork()
        if child == 0:
            message[:] = BLOCK[::-1]
            end.sendall(message)
            os._exit(0)
        ended(child)
        end.sendall(message)
        end.shutdown(socket.SHUT_WR)
        end.recv(1)

    end, child = started(peer)
    assert b"".join(rest_of(end)) == BLOCK[::-1] + BLOCK, "the wrong process's bytes"
    end.close()
    ended(child)


def both_ends_in_one_thread():
    listener = socket.create_server(("127.0.0.1", 0))
    out = socket.create_connection(listener.getsockname())
    into, _ = listener.accept()
    for _ in range(3):
        out.send(b"x")
        into.recv(1)
        into.send(b"x")
        out.recv(1)
    out.setblocking(False)
    into.setblocking(False)
    sent, received = 0, b""
    while len(received) < len(BLOCK):
        wanting = [out] if sent < len(BLOCK) else []
        readable, writable, _ = select.select([into], wanting, [], 20)
        assert readable or writable, "nothing goes on"
        if writable:
            sent += out.send(BLOCK[sent:])
        if readable:
            received += into.recv(1 << 20)
    assert received == BLOCK, "other bytes"


for round in range(4):
    integrity(int(sys.argv[1]) + 2 * round)
what_is_readable_can_be_read(int(sys.argv[1]))
what_is_readable_stays_readable()
what_is_readable_stays_readable_when_the_sender_goes()
the_sender_is_killed()
the_receiver_is_killed()
nobody_reads()
a_child_sends_its_own_memory()
both_ends_in_one_thread()
