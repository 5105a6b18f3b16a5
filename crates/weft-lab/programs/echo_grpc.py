"""An echo service of gRPC and its client: one call at a time, then a stream of calls' worth.

echo_grpc.py serve PORT CLIENTS
echo_grpc.py connect PORT BYTES
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

TIMEOUT = 200
# Prime: no buffer's size is a multiple of it.
PERIOD = 65521
BLOCK = bytes((i ^ i >> 8) & 255 for i in range(PERIOD))
CALLS = 200


def serve(port, clients):
    left, over = [clients], threading.Event()

    def bye(_, context):
        left[0] -= 1
        if not left[0]:
            context.add_callback(over.set)
        return b""

    handlers = {
        "one": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
        "bye": grpc.unary_unary_rpc_method_handler(bye),
        "all": grpc.stream_stream_rpc_method_handler(lambda requests, _: requests),
    }
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo", handlers)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    over.wait()
    server.stop(TIMEOUT).wait()


def chunks(content):
    sent, chunk = 0, 1
    while sent < len(content):
        yield content[sent : sent + chunk]
        sent += chunk
        chunk = chunk * 3 % 70001 + 1


def connect(port, length):
    content = (BLOCK * (length // PERIOD + 1))[:length]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        one = channel.unary_unary("/echo/one")
        for number in range(CALLS):
            request = BLOCK[number : 3 * number + 1]
            if one(request, timeout=TIMEOUT, wait_for_ready=True) != request:
                sys.exit(f"call {number} has another answer")
        echoed = channel.stream_stream("/echo/all")(chunks(content), timeout=TIMEOUT)
        if (echoed := b"".join(echoed)) != content:
            sys.exit(f"{len(echoed)} bytes are not the {length} that were sent")
        channel.unary_unary("/echo/bye")(b"", timeout=TIMEOUT)
    print("echoed", length)


role, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
{"serve": serve, "connect": connect}[role](port, number)
