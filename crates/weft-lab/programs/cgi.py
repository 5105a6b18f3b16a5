"""A client of a CGI server: many requests, whose answers have the known length and content.

cgi.py PORT REQUESTS PATH FILE
"""

import sys
import threading
import urllib.request

THREADS = 4

port, requests, path, file = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
with open(file, "rb") as content:
    expected = content.read()
wrong = []


def ask(count):
    for _ in range(count):
        # No length is sent: the end of the connection is the end of the answer.
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
            found = answer.read()
        if found != expected:
            wrong.append(f"{len(found)} bytes for {len(expected)}")


threads = [threading.Thread(target=ask, args=(requests // THREADS,)) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if wrong:
    sys.exit(f"{len(wrong)} of {requests} answers are wrong: {wrong[0]}")
print("answered", requests)
