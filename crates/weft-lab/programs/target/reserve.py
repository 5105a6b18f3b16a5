"""Reserves a unit so that the reservation outlives the target, or checks that it has.

Arguments: `reserve`, `check` or `clear`, then portal and name of the target.
"""

import struct
import sys

import libiscsi

KEY = 0x1234567890ABCDEF
RESERVATION_CONFLICT = 0x18
WRITE_EXCLUSIVE = 1
KEEP = 1
REGISTER, RESERVE, CLEAR = 0, 1, 3


def reserve_out(initiator, action, key, new_key=0, flags=0):
    data = struct.pack(">QQ4xB3x", key, new_key, flags)
    cdb = struct.pack(">BBBHLB", 0x5F, action, WRITE_EXCLUSIVE, 0, len(data), 0)
    initiator.send(cdb, data)


def conflicts(initiator):
    try:
        initiator.write(0, bytes(libiscsi.BLOCK))
        return False
    except libiscsi.Failed as failed:
        if failed.status != RESERVATION_CONFLICT:
            raise
        return True


def main():
    step, portal, target = sys.argv[1:]
    names = (f"iqn.2026-01.org.example:{name}" for name in ("holder", "other"))
    initiators = [libiscsi.Initiator(name, portal, target, 0) for name in names]
    with initiators[0] as holder, initiators[1] as other:
        if step == "reserve":
            reserve_out(holder, REGISTER, 0, KEY, KEEP)
            reserve_out(holder, RESERVE, KEY)
        if step == "clear":
            reserve_out(holder, CLEAR, KEY)
        found = conflicts(holder), conflicts(other)
        expected = (False, step != "clear")
        if found != expected:
            sys.exit(f"{step}: writes of holder and other conflict: {found}")
        print(step, "is done")


main()
