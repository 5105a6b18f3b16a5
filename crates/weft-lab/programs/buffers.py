"""Large messages in buffers that come and go: made, sent or filled, checked and given back.

Libraries that cache registrations of memory find old ones at addresses that are in use again.
"""

import mmap
import random

from mpi4py import MPI

ROUNDS = 60
SIZES = (4096, 65536, 262144, 1 << 20, 3 << 20)
# 262,144 integers of four bytes.
ALWAYS = 1 << 20

world = MPI.COMM_WORLD
BASE = bytes(range(251)) * (2 + max(SIZES) // 251)


def pattern(size, seed):
    """What a message holds; `seed` tells it from all others nearby."""
    start = seed % 251
    return BASE[start:start + size]


class Buffer:
    """Memory of the kind that a round's number chooses."""

    def __init__(self, size, kind):
        self.mapped = kind % 3 == 0
        if self.mapped:
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            self.memory = bytearray(size)
        self.view = memoryview(self.memory)

    def drop(self):
        self.view.release()
        if self.mapped:
            self.memory.close()
        self.memory = None


def check(buffer, size, seed, what):
    if buffer.view != pattern(size, seed):
        print(f"DEFECT: rank {world.rank}: {what} of {size} bytes is damaged", flush=True)
        world.Abort(1)


def exchange(size, number):
    """All ranks send to the next and receive from the one before, at once."""
    following, preceding = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    out, into = Buffer(size, number), Buffer(size, number + 1)
    out.view[:] = pattern(size, number + 7 * world.rank)
    if number % 2:
        request = world.Isend(out.view, following)
        world.Recv(into.view, preceding)
        request.Wait()
    else:
        world.Sendrecv(out.view, following, recvbuf=into.view, source=preceding)
    check(into, size, number + 7 * preceding, "a message")
    out.drop()
    into.drop()


def all_to_all(size, number):
    """Every rank sends every other a part of its own."""
    part = size // world.size
    out, into = Buffer(part * world.size, number), Buffer(part * world.size, number + 2)
    for rank in range(world.size):
        out.view[rank * part:(rank + 1) * part] = pattern(part, number + world.rank + 11 * rank)
    world.Alltoall(out.view, into.view)
    for rank in range(world.size):
        if into.view[rank * part:(rank + 1) * part] != pattern(part, number + rank + 11 * world.rank):
            print(f"DEFECT: rank {world.rank}: the part of rank {rank} is damaged", flush=True)
            world.Abort(1)
    out.drop()
    into.drop()


chance = random.Random(1)
messages = 0
for number in range(ROUNDS):
    kept = [Buffer(chance.choice(SIZES), kind) for kind in range(2)]
    for size in (ALWAYS, chance.choice(SIZES)):
        exchange(size, number)
        all_to_all(size, number)
        messages += 1 + world.size
    for buffer in kept:
        buffer.drop()
world.Barrier()
if world.rank == 0:
    print(f"buffers: {world.size} ranks, {messages} messages each, all data right")
