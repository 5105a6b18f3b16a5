"""Uses the tuple space by redis-py: lists, streams, waiting, pipelines.

Arguments: the port, then the password and a file of certificates for TLS, if it is by TLS.
"""

import sys
import threading

import redis

options = {"host": "127.0.0.1", "port": int(sys.argv[1])}
if len(sys.argv) > 2:
    options |= {"password": sys.argv[2], "ssl": True, "ssl_ca_certs": sys.argv[3]}
server = redis.Redis(client_name="lab", **options)
assert server.ping()
for value in range(1000):
    server.rpush("list", f"value-{value}")
assert server.llen("list") == 1000
assert server.lrange("list", 0, 1) == [b"value-0", b"value-1"]
assert server.lmove("list", "other", "LEFT", "RIGHT") == b"value-0"
assert server.lpop("list", 2) == [b"value-1", b"value-2"]
assert server.type("list") == b"list" and server.exists("list", "none") == 1
assert server.blpop(["none"], timeout=0.01) is None

# A waiting client gets what another one moves; each value is taken once.
taken = []
lock = threading.Lock()


def consume():
    own = redis.Redis(**options)
    while (pair := own.blpop(["work", "end"], timeout=0)) and pair[0] == b"work":
        with lock:
            taken.append(int(pair[1]))


threads = [threading.Thread(target=consume) for _ in range(4)]
for thread in threads:
    thread.start()
with server.pipeline(transaction=False) as pipeline:
    for value in range(2000):
        pipeline.rpush("work", value)
    pipeline.rpush("end", *range(len(threads)))
    pipeline.execute()
for thread in threads:
    thread.join()
# `work` comes first in the list of names: a consumer ends when it is empty.
assert sorted(taken) == list(range(2000)), len(taken)

# A transaction, and one that is given up because a watched list has changed.
with server.pipeline() as pipeline:
    pipeline.watch("counter")
    pipeline.multi()
    pipeline.rpush("counter", 1).llen("counter")
    assert pipeline.execute() == [1, 1]
    pipeline.watch("counter")
    server.rpush("counter", 2)
    pipeline.multi()
    pipeline.delete("counter")
    try:
        pipeline.execute()
        raise AssertionError("the list has changed")
    except redis.WatchError:
        pass
assert server.delete("counter") == 1

entries = [server.xadd("stream", {"number": number}) for number in range(100)]
assert server.xlen("stream") == 100
assert server.xrange("stream", entries[1], entries[2]) == [
    (entries[1], {b"number": b"1"}),
    (entries[2], {b"number": b"2"}),
]
((name, found),) = server.xread({"stream": entries[97]}, count=1)
assert name == b"stream" and found == [(entries[98], {b"number": b"98"})]
assert server.xread({"stream": "$"}, block=10) == []
try:
    server.lpush("stream", 1)
    raise AssertionError("a stream is no list")
except redis.ResponseError as error:
    assert "wrong kind of value" in str(error), error
large = bytes(range(256)) * 20_000
server.rpush("large", large)
assert server.blmove("large", "moved", 1, "LEFT", "LEFT") == large
assert server.rpop("moved") == large
assert server.delete("list", "other", "stream") == 3
assert server.keys("*") == []
print("done")
