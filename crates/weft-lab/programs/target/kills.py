"""Kills a target at random instants while initiators write, and checks after each kill that the files have what was acknowledged.

Arguments: the command that serves, with both files as units 0 and 1, and behind `--` the portal, the target's name, the files, the
number of kills and a seed.
"""

import ctypes
import random
import signal
import subprocess
import sys
import threading
import time

import libiscsi

SLOT = 4096
SLOTS = 1024
# The longest write in slots.
SLOTS_MAX = 16
# The most writes of each initiator that a target acknowledges before it is killed.
WRITES_MAX = 12
# The longest time in seconds from then, or from when the target listens, to the kill.
LIFE_MAX = 0.01
# Seconds after which a target hangs that acknowledges nothing.
TIMEOUT = 240
PR_SET_PDEATHSIG = 1


class Disk:
    """A unit's file and what it has to contain."""

    def __init__(self, lun, path, seed):
        self.lun, self.path, self.random = lun, path, random.Random(seed)
        self.expected = bytearray(SLOT * SLOTS)
        # The write that was not acknowledged: where it begins and its data.
        self.pending = None
        self.number = self.acknowledged = self.sessions = 0

    def use(self, portal, target):
        """Writes until the target is gone."""
        try:
            name = f"iqn.2026-01.org.example:initiator{self.lun}"
            with libiscsi.Initiator(name, portal, target, self.lun) as initiator:
                self.sessions += 1
                while True:
                    self.write(initiator)
                    if self.random.random() < 0.1:
                        initiator.flush()
        except libiscsi.Failed:
            pass

    def write(self, initiator):
        count = self.random.randint(1, SLOTS_MAX)
        start = self.random.randint(0, SLOTS - count) * SLOT
        data = b""
        for _ in range(count):
            self.number += 1
            data += self.number.to_bytes(8, "big") * (SLOT // 8)
        self.pending = (start, data)
        initiator.write(start // libiscsi.BLOCK, data)
        self.expected[start:start + len(data)] = data
        self.pending = None
        self.acknowledged += 1

    def check(self):
        """Each slot of the pending write is old or new. Everything else is as acknowledged."""
        with open(self.path, "rb") as file:
            content = file.read()
        if self.pending:
            start, data = self.pending
            for at in range(0, len(data), SLOT):
                if content[start + at:][:SLOT] == data[at:at + SLOT]:
                    self.expected[start + at:start + at + SLOT] = data[at:at + SLOT]
            self.pending = None
        if content != self.expected:
            wrong = [slot for slot in range(SLOTS)
                     if content[slot * SLOT:][:SLOT] != self.expected[slot * SLOT:][:SLOT]]
            sys.exit(f"DEFECT: unit {self.lun}: slots {wrong} are not as acknowledged")


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def await_writes(disks, counts):
    """Waits until each initiator has written so much."""
    deadline = time.monotonic() + TIMEOUT
    while any(disk.acknowledged < count for disk, count in zip(disks, counts)):
        if time.monotonic() > deadline:
            sys.exit("DEFECT: the target acknowledges nothing")
        time.sleep(0.0005)


def main():
    split = sys.argv.index("--")
    command, (portal, target, one, other, kills, seed) = sys.argv[1:split], sys.argv[split + 1:]
    instants = random.Random(seed)
    disks = [Disk(lun, path, f"{seed} {lun}") for lun, path in enumerate([one, other])]
    for disk in disks:
        with open(disk.path, "wb") as file:
            file.truncate(SLOT * SLOTS)
    for _ in range(int(kills)):
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=die_with_parent)
        while "listening on" not in (line := server.stdout.readline()):
            if not line:
                sys.exit("the target has not started")
        # Now and then the kill comes before any write, perhaps before the login.
        more = [instants.randint(0, WRITES_MAX) for _ in disks] if instants.random() < 0.8 else [0, 0]
        counts = [disk.acknowledged + count for disk, count in zip(disks, more)]
        writers = [threading.Thread(target=disk.use, args=(portal, target)) for disk in disks]
        for writer in writers:
            writer.start()
        await_writes(disks, counts)
        time.sleep(instants.uniform(0, LIFE_MAX))
        server.kill()
        server.wait()
        server.stdout.close()
        for writer in writers:
            writer.join()
        for disk in disks:
            disk.check()
    for disk in disks:
        print(f"unit {disk.lun}: {disk.sessions} sessions, {disk.acknowledged} writes")


main()
