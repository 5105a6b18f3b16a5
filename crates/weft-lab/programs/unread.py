"""A server that hands on a connection with a request's body unread, to a program without Weft that
sends it back, and the client.

unread.py WAY PORT
unread.py client PORT whole|half

With `half` the client has shut down its half of the connection before the server hands it on.
"""

import array
import fcntl
import os
import socket
import subprocess
import sys
import termios

ROUNDS = 20
HEADER = b"GO\n"
BODY = bytes(at % 251 for at in range(60_000))
NOBODY = 65534
# It must not be on Weft, which would read what is in memory.
RECEIVER = """
import socket, sys
assert "weft" not in open("/proc/self/maps").read()
unix = socket.socket(fileno=0)
_, (fd,), _, _ = socket.recv_fds(unix, 1, 1)
connection = socket.socket(fileno=fd)
while data := connection.recv(1 << 16):
    connection.sendall(data)
"""


def read(connection, length):
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        assert more, f"the end after {len(data)} of {length} bytes"
        data += more
    return data


def client(port, is_half):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(ROUNDS):
            connection.sendall(b"ping")
            assert read(connection, 4) == b"ping"
        connection.sendall(HEADER + BODY)
        if is_half:
            connection.shutdown(socket.SHUT_WR)
        assert read(connection, len(BODY)) == BODY, "other bytes"
        if not is_half:
            connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "no end"
    print("answered")


def become_cat(connection, user):
    if user is not None:
        os.setuid(user)
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    os.execve("/bin/cat", ["cat"], {})


def serve(way, port):
    unix, other = socket.socketpair()
    receiver = None
    if way == "rights":
        arguments = ["/usr/bin/python3", "-c", RECEIVER]
        receiver = subprocess.Popen(arguments, stdin=other, env={})
    other.close()
    with socket.create_server(("127.0.0.1", port)) as listener:
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(ROUNDS):
        connection.sendall(read(connection, 4))
    assert read(connection, len(HEADER)) == HEADER
    unread = array.array("i", [0])
    while unread[0] < len(BODY):
        fcntl.ioctl(connection, termios.FIONREAD, unread)
    if way == "exec":
        become_cat(connection, None)
    if way == "user":
        become_cat(connection, NOBODY)
    if way == "popen":
        receiver = subprocess.Popen(["cat"], stdin=connection, stdout=connection, env={})
    if way == "fork":
        pid = os.fork()
        if pid == 0:
            become_cat(connection, NOBODY)
    if way == "rights":
        socket.send_fds(unix, [b"x"], [connection.fileno()])
    connection.close()
    if way == "fork":
        assert os.waitpid(pid, 0)[1] == 0
    else:
        assert receiver.wait() == 0


if sys.argv[1] == "client":
    client(int(sys.argv[2]), sys.argv[3] == "half")
else:
    serve(sys.argv[1], int(sys.argv[2]))
