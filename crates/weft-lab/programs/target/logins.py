"""Logs in many times: with a logout, without one, and as an initiator whose session is still there.

Arguments: portal, name of the target, and how many times.
"""

import random
import sys

import raw


def main():
    portal, target, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    numbers, left = random.Random(count), {}
    for _ in range(count):
        number = numbers.randint(0, 9)
        # A session of the same identity is replaced.
        initiator = raw.Raw("iqn.2026-01.org.example:often", portal, target, number)
        if number in left:
            left.pop(number).close()
        tag = initiator.read(0, raw.BLOCK)
        header, data = initiator.receive()
        if raw.tag_of(header) != tag:
            sys.exit(f"DEFECT: {header.hex()}")
        match numbers.randint(0, 2):
            case 0: initiator.log_out()
            case 1: initiator.close()
            case _: left[number] = initiator
    print(f"{count} logins are done, {len(left)} sessions are left")
    for initiator in left.values():
        initiator.log_out()


main()
