"""Lets many initiators write and read a unit at once, each its own part, and checks what they read.

Arguments: portal, name of the target, number of initiators, and rounds of each.
"""

import random
import sys
import threading

import libiscsi

# Bytes of a part.
PART = 128 << 10
# Seconds after which others count as lost.
TIMEOUT = 240


def use(number, rounds, everybody, portal, target):
    numbers = random.Random(number)
    first = number * PART // libiscsi.BLOCK
    model = bytearray(PART)
    for session in range(2):
        name = f"iqn.2026-01.org.example:initiator{number}"
        with libiscsi.Initiator(name, portal, target, 0) as initiator:
            # All are logged in at the same time.
            everybody.wait(TIMEOUT)
            for _ in range(rounds):
                count = numbers.randint(1, 64)
                block = numbers.randint(0, PART // libiscsi.BLOCK - count)
                at = block * libiscsi.BLOCK
                data = numbers.randbytes(count * libiscsi.BLOCK)
                initiator.write(first + block, data)
                model[at:at + len(data)] = data
                if initiator.read(first, PART) != model:
                    raise libiscsi.Failed(f"DEFECT: initiator {number} has read other bytes")
        everybody.wait(TIMEOUT)
    return bytes(model)


def main():
    portal, target, count, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    everybody, failures = threading.Barrier(count), []

    def run(number):
        try:
            use(number, rounds, everybody, portal, target)
        except Exception as error:  # Every failure counts.
            failures.append(f"{number}: {error!r}\n{error}")
            everybody.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"{count} initiators are done")


main()
