"""A client of an echo server by TLS: sends so many bytes, message by message, and expects them back.

    echo_tls.py PORT BYTES
"""

import socket
import ssl
import sys

PERIOD = 65521
SIZE_MAX = 70001


def main():
    port, length = int(sys.argv[1]), int(sys.argv[2])
    content = bytes((i % PERIOD ^ i % PERIOD >> 8) & 255 for i in range(length))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain:
        with context.wrap_socket(plain) as server:
            start, size = 0, 1
            while start < length:
                message = content[start : start + size]
                server.sendall(message)
                left = message
                while left:
                    echoed = server.recv(len(left))
                    if not echoed or not left.startswith(echoed):
                        sys.exit(f"{len(echoed)} wrong bytes at {start + len(message) - len(left)}")
                    left = left[len(echoed) :]
                start += len(message)
                size = size * 3 % SIZE_MAX + 1
            server.unwrap()
    print(f"echoed {length}")


if __name__ == "__main__":
    main()
