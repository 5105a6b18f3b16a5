"""A message that grows on its way around all ranks, and is checked by each of them."""

import sys

from mpi4py import MPI

LAPS = 3
SIZES = (1, 1000, 65536, 1 << 20, 8 << 20)

world = MPI.COMM_WORLD
following, preceding = (world.rank + 1) % world.size, (world.rank - 1) % world.size


def pattern(size, step):
    return bytes((step + i) % 251 for i in range(min(size, 4096))).ljust(size, bytes([step % 251]))


def lap(size, number):
    """One lap: rank r receives what rank r-1 filled for its step, and passes on the next."""
    steps = number * world.size
    buffer = bytearray(size)
    if world.rank == 0:
        world.Send(pattern(size, steps), following, tag=number)
        world.Recv(buffer, preceding, tag=number)
        expected = steps + world.size - 1
    else:
        world.Recv(buffer, preceding, tag=number)
        expected = steps + world.rank - 1
    if buffer != pattern(size, expected):
        print(f"DEFECT: ring: rank {world.rank}: damaged message of {size} bytes", flush=True)
        world.Abort(1)
    if world.rank != 0:
        world.Send(pattern(size, steps + world.rank), following, tag=number)


for size in SIZES:
    for number in range(LAPS):
        lap(size, number)
total = world.allreduce(world.rank + 1)
if total != world.size * (world.size + 1) // 2:
    sys.exit(f"ring: the ranks add up to {total}")
if world.rank == 0:
    print(f"ring: {world.size} ranks, sizes {SIZES}, {LAPS} laps each, all data right")
