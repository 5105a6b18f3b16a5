"""An echo server and its client on uvloop: asyncio over libuv.

echo_uvloop.py serve PORT CONNECTIONS
echo_uvloop.py connect PORT BYTES
"""

import asyncio
import sys

import uvloop

# Prime: no buffer's size is a multiple of it.
PERIOD = 65521
BLOCK = bytes((i ^ i >> 8) & 255 for i in range(PERIOD))


async def serve(port, connections):
    ended = asyncio.Queue()

    async def echo(reader, writer):
        while data := await reader.read(50000):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.put_nowait(None)

    server = await asyncio.start_server(echo, "127.0.0.1", port)
    for _ in range(connections):
        await ended.get()
    server.close()


async def send(writer, content):
    sent, chunk = 0, 1
    while sent < len(content):
        writer.write(content[sent : sent + chunk])
        await writer.drain()
        sent += chunk
        chunk = chunk * 3 % 70001 + 1
    writer.write_eof()


async def connect(port, length):
    content = (BLOCK * (length // PERIOD + 1))[:length]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # Many single bytes there and back: the loop sleeps before each.
    for place in range(1000):
        writer.write(content[place : place + 1])
        if await reader.readexactly(1) != content[place : place + 1]:
            sys.exit(f"byte {place} differs")
    sending = asyncio.create_task(send(writer, content[1000:]))
    echoed = await reader.read(-1)
    await sending
    if echoed != content[1000:]:
        sys.exit(f"{len(echoed)} bytes are not the {length - 1000} that were sent")
    print("echoed", length)


role, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
uvloop.run({"serve": serve, "connect": connect}[role](port, number))
