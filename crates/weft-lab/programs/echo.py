"""An echo server and its client, with blocking sockets and threads.

echo.py serve PORT CONNECTIONS
echo.py connect PORT BYTES
echo.py take PORT BYTES: the same, but the client ends its side only when it has everything
"""

import socket
import sys
import threading

# Prime: no buffer's size is a multiple of it.
PERIOD = 65521
BLOCK = bytes((i ^ i >> 8) & 255 for i in range(PERIOD))


def echo(client):
    with client:
        while data := client.recv(50000):
            client.sendall(data)


def serve(port, connections):
    with socket.create_server(("127.0.0.1", port)) as listener:
        threads = []
        for _ in range(connections):
            client, _ = listener.accept()
            threads.append(threading.Thread(target=echo, args=(client,)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def send(server, content, ends):
    sent, chunk = 0, 1
    while sent < len(content):
        server.sendall(content[sent : sent + chunk])
        sent += chunk
        chunk = chunk * 3 % 70001 + 1
    if ends:
        server.shutdown(socket.SHUT_WR)


def connect(port, length, ends=True):
    content = (BLOCK * (length // PERIOD + 1))[:length]
    with socket.create_connection(("127.0.0.1", port)) as server:
        # A byte there and back, after which both ends know what carries the rest.
        server.sendall(content[:1])
        echoed = bytearray(server.recv(1))
        sender = threading.Thread(target=send, args=(server, content[1:], ends))
        sender.start()
        while (ends or len(echoed) < length) and (data := server.recv(1 << 16)):
            echoed += data
        sender.join()
    if echoed != content:
        sys.exit(f"{len(echoed)} bytes are not the {length} that were sent")
    print("echoed", length)


def take(port, length):
    connect(port, length, ends=False)


role, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
{"serve": serve, "connect": connect, "take": take}[role](port, number)
