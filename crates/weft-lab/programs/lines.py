"""A client of servers that answer each line with the same line.

lines.py PORT CONNECTIONS LINES [WORD...]

Uses its connections in turn, then ends what it sends, and expects the end of what it gets. WORDS
begin each line. Prints "answered N".
"""

import socket
import sys

port, connections, count = map(int, sys.argv[1:4])
words = " ".join(sys.argv[4:])
servers = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
files = [server.makefile("rb") for server in servers]
for number in range(count):
    for server, file in zip(servers, files):
        line = f"{words}{number} of {server.getsockname()[1]}\n".encode()
        server.sendall(line)
        if (answer := file.readline()) != line:
            sys.exit(f"{line} was answered with {answer}")
for server, file in zip(servers, files):
    server.shutdown(socket.SHUT_WR)
    if rest := file.read():
        sys.exit(f"{rest} before the end")
print("answered", connections * count)
