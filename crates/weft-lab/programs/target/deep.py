"""Initiators with 128 commands each outstanding write to a unit that another one resets again and again.

Arguments: portal, name of the target, number of initiators, number of resets, and a seed.

Commands that a reset aborts get no response. An initiator that learns of a reset aborts what it has left itself, and waits for the
response: nothing of that can happen any more. What was aborted is written or not. Everything else is as the status says.
"""

import random
import select
import socket
import sys
import threading

import raw

DEPTH = 128
SLOT = 4096
SLOTS = 256


class Part:
    """The part of the unit that one initiator writes, and what it has to contain."""

    def __init__(self, number, portal, target, seed):
        self.number, self.random = number, random.Random(f"{seed} {number}")
        self.first = number * SLOTS * SLOT // raw.BLOCK
        self.raw = raw.Raw(f"iqn.2026-01.org.example:deep{number}", portal, target)
        # The resets are reported here.
        self.reports, self.resetter = socket.socketpair()
        self.expected = [bytes(SLOT)] * SLOTS
        self.serial = self.good = self.refused = self.aborted = 0

    def block(self, slot):
        return self.first + slot * SLOT // raw.BLOCK

    def run(self, is_over):
        while not is_over.is_set():
            self.batch()
        self.batch()
        self.check()
        self.raw.log_out()

    def batch(self):
        """Writes to as many slots as may be outstanding, and reads some that are not written."""
        slots = self.random.sample(range(SLOTS), DEPTH)
        pending = {}
        for slot in slots:
            if self.random.random() < 0.25:
                pending[self.raw.read(self.block(slot), SLOT)] = (slot, None)
                continue
            self.serial += 1
            data = (self.number << 48 | self.serial).to_bytes(8, "big") * (SLOT // 8)
            pending[self.raw.write(self.block(slot), data)] = (slot, data)
        while pending:
            if self.is_reset():
                return self.abort(pending)
            self.take(pending)

    def is_reset(self):
        """Waits for a response, or for a reset that comes first."""
        ready, _, _ = select.select([self.raw.socket, self.reports], [], [], raw.TIMEOUT)
        if not ready:
            sys.exit(f"DEFECT: initiator {self.number} gets no response")
        return self.reports in ready and bool(self.reports.recv(4096))

    def take(self, pending):
        """Takes a response. Returns its header."""
        header, data = self.raw.receive()
        tag = raw.tag_of(header)
        if header[0] == 0x25 and tag in pending:
            slot, _ = pending[tag]
            if slot is not None and data != self.expected[slot]:
                what = f"{len(data)} bytes, {data[:8].hex()} and not {self.expected[slot][:8].hex()}"
                sys.exit(f"DEFECT: initiator {self.number} has read other bytes from slot {slot}: {what}")
            del pending[tag]
        elif header[0] == 0x21 and tag in pending:
            slot, data = pending.pop(tag)
            if header[3] == raw.GOOD and data is not None:
                self.expected[slot] = data
                self.good += 1
            elif header[3] == raw.CHECK_CONDITION:
                # A unit attention: the command has not been carried out.
                self.refused += 1
            else:
                sys.exit(f"initiator {self.number}: status {header[3]}")
        elif header[0] != 0x22:
            sys.exit(f"initiator {self.number}: {header.hex()}")
        return header

    def abort(self, pending):
        """Ends what a reset may have left, and finds out what has been written."""
        self.abort_task_set(pending)
        for slot, data in pending.values():
            self.aborted += 1
            found = self.read(slot)
            if data is not None and found == data:
                self.expected[slot] = data
            if found != self.expected[slot]:
                sys.exit(f"DEFECT: initiator {self.number}: slot {slot} is neither as before nor as written")

    def abort_task_set(self, pending):
        tag = self.raw.manage(raw.ABORT_TASK_SET)
        while (header := self.take(pending))[0] != 0x22:
            pass
        if raw.tag_of(header) != tag or header[2] != raw.COMPLETE:
            sys.exit(f"initiator {self.number}: abort task set: {header.hex()}")

    def read(self, slot):
        """The bytes of a slot, with nothing else under way."""
        while True:
            tag = self.raw.read(self.block(slot), SLOT)
            if self.is_reset():
                # Whatever it has read: what the slot has to contain may not be known yet.
                self.abort_task_set({tag: (None, None)})
                continue
            header, data = self.raw.receive()
            if raw.tag_of(header) != tag:
                sys.exit(f"DEFECT: initiator {self.number} has got a response to an aborted command")
            if header[0] == 0x25:
                return data

    def check(self):
        for slot, expected in enumerate(self.expected):
            if self.read(slot) != expected:
                sys.exit(f"DEFECT: initiator {self.number}: slot {slot} is not as acknowledged")


def main():
    portal, target, count, resets, seed = *sys.argv[1:3], *map(int, sys.argv[3:6])
    parts = [Part(number, portal, target, seed) for number in range(count)]
    is_over, failures = threading.Event(), []

    def run(part):
        try:
            part.run(is_over)
        except BaseException as error:  # Every failure counts.
            failures.append(f"{part.number}: {error!r}")
            is_over.set()

    threads = [threading.Thread(target=run, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    resetter, numbers = raw.Raw("iqn.2026-01.org.example:resetter", portal, target), random.Random(seed)
    for _ in range(resets):
        # Until some of them have written more.
        goal = sum(part.good for part in parts) + numbers.randint(1, 2 * DEPTH)
        while sum(part.good for part in parts) < goal and not failures:
            is_over.wait(0.002)
        resetter.manage(raw.RESET_UNIT)
        header, _ = resetter.receive()
        if header[0] != 0x22 or header[2] != raw.COMPLETE:
            failures.append(f"reset: {header.hex()}")
        for part in parts:
            part.resetter.send(b"r")
        if failures:
            break
    is_over.set()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    good, refused, aborted = (sum(getattr(part, name) for part in parts) for name in ("good", "refused", "aborted"))
    print(f"{resets} resets: {good} writes, {refused} unit attentions, {aborted} commands aborted")


main()
