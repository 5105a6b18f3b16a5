"""Servers that hand each connection to a child, and close it themselves at once.

fd_inheritance.py WAY PORT CONNECTIONS
"""

import os
import socket
import subprocess
import sys

SHELL = 'while read -r line; do echo "$line"; done'
CHILDREN = {
    # A child of subprocess that has the connection as its input and output.
    "popen-cat": ["cat"],
    "popen-dash": ["dash", "-c", SHELL],
    "popen-bash": ["bash", "-c", SHELL],
    "popen-python": ["python3", "-uc", "import sys\nfor line in sys.stdin: print(line, end='')"],
    # The same, started by posix_spawn.
    "spawn-cat": ["cat"],
    "spawn-dash": ["dash", "-c", SHELL],
}


def hand(way, connection):
    words = CHILDREN[way]
    if way.startswith("popen"):
        return subprocess.Popen(words, stdin=connection, stdout=connection).pid
    actions = [(os.POSIX_SPAWN_DUP2, connection.fileno(), target) for target in (0, 1)]
    return os.posix_spawnp(words[0], words, os.environ, file_actions=actions)


way, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with socket.create_server(("127.0.0.1", port)) as listener:
    children = []
    for _ in range(connections):
        connection, _ = listener.accept()
        children.append(hand(way, connection))
        connection.close()
for child in children:
    if os.waitpid(child, 0)[1]:
        sys.exit("a child failed")
