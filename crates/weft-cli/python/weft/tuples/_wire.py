"""The bytes of the protocol. ``docs/tuples-protocol.md`` describes them."""

from __future__ import annotations

import struct
from typing import Callable, List, Optional, Sequence, Tuple, TypeVar

from ._model import (
    Bytes,
    Element,
    Item,
    Order,
    ProtocolError,
    Rank,
    RefusedError,
    Refusal,
    Stamp,
    Value,
)

MAGIC = b"\xf7WTUP\x01"
HELLO_LEN = 24
WELCOME_LEN = 8
#: The longest answer.
ANSWER_LEN_MAX = (256 << 20) + (1 << 20)
FOR_EVER = 2**64 - 1

CREATE, PUT, TAKE, OBSERVE, TRANSFER, READ, DESCRIBE, LIST, DELETE, CANCEL, PART = range(1, 12)
(
    CREATED,
    PUT_DONE,
    TAKEN,
    OBSERVED,
    TRANSFERRED,
    READ_DONE,
    DESCRIBED,
    LISTED,
    DELETED,
    NOTHING,
    CANCELLED,
    REFUSED,
    CANCEL_ANSWER,
) = range(1, 14)

_T = TypeVar("_T")


def as_bytes(value: Bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def hello(identity: bytes, returns: bool, token: bytes) -> bytes:
    return MAGIC + bytes([returns, bool(token)]) + identity + (text(token) if token else b"")


def check_welcome(data: bytes) -> None:
    """Raises an error if the server does not let the client in, one of a lost connection if it
    stops."""
    if data[:6] != MAGIC or data[7] != 0:
        raise ProtocolError("the peer is no server of a tuple space, or one of another version")
    if data[6] != 0:
        refusal = RefusedError(_refusal(data[6]))
        if refusal.refusal == Refusal.LOG:
            raise ConnectionError(str(refusal)) from refusal
        raise refusal


def answer_length(data: bytes) -> int:
    """The length of an answer, from the bytes in front of it."""
    length = int.from_bytes(data, "big")
    if length > ANSWER_LEN_MAX:
        raise ProtocolError("an answer is too long")
    return length


def answer(data: bytes) -> "Tuple[int, int, Reader]":
    """The number and the kind of an answer, and what reads the rest. Raises an error of a lost
    connection if the server stops."""
    reader = Reader(data)
    number, kind = reader.u64(), reader.u8()
    if number == 0:
        # The server cannot write its log, and stops. The next one knows what took effect.
        raise ConnectionError(str(RefusedError(Refusal.LOG)))
    return number, kind, reader


def frame(number: int, confirmed: int, body: bytes) -> bytes:
    return struct.pack(">IQQ", 16 + len(body), number, confirmed) + body


def wait(timeout: Optional[float]) -> bytes:
    """The time that an operation may wait, rounded up to milliseconds."""
    if timeout is None:
        return struct.pack(">Q", FOR_EVER)
    return struct.pack(">Q", min(max(0, -int(-timeout * 1000 // 1)), FOR_EVER - 1))


def as_u32(value: int) -> bytes:
    if not 0 <= value < 2**32:
        raise ValueError(f"not a number from 0 to 2**32 - 1: {value}")
    return struct.pack(">I", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


def as_u64(value: int) -> bytes:
    return struct.pack(">Q", value)


def text(value: Bytes) -> bytes:
    data = as_bytes(value)
    return as_u32(len(data)) + data


def criteria(order: Order, sync: int, bound: int) -> bytes:
    return bytes([order, sync]) + as_u32(bound)


def end(is_back: bool) -> bytes:
    return bytes([is_back])


def count(count: int, is_exact: bool) -> bytes:
    return bytes([is_exact]) + as_u32(count)


def stamp(stamp: Stamp) -> bytes:
    return struct.pack(">QQ", stamp.ms, stamp.count)


def rank(rank: Rank) -> bytes:
    return text(rank.key) + stamp(rank.stamp) + i64(rank.position)


def new_tuple(value: Value, key: Bytes, given: Optional[Stamp]) -> bytes:
    fields = value if isinstance(value, tuple) else (value,)
    at = b"\x00" if given is None else b"\x01" + stamp(given)
    return text(key) + at + as_u32(len(fields)) + b"".join(map(text, fields))


def sequence(items: Sequence[bytes]) -> bytes:
    return as_u32(len(items)) + b"".join(items)


def _refusal(value: int) -> Refusal:
    try:
        return Refusal(value)
    except ValueError:
        raise ProtocolError("the server refuses for an unknown reason") from None


class Reader:
    """Reads an answer from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) != count:
            raise ProtocolError("an answer is cut")
        self._at += count
        return found

    def u8(self) -> int:
        return self._take(1)[0]

    def flag(self) -> bool:
        value = self.u8()
        if value > 1:
            raise ProtocolError("an answer has a wrong flag")
        return value == 1

    def u32(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def u64(self) -> int:
        return int.from_bytes(self._take(8), "big")

    def text(self) -> bytes:
        return self._take(self.u32())

    def list(self, read: Callable[[], _T]) -> List[_T]:
        return [read() for _ in range(self.u32())]

    def stamp(self) -> Stamp:
        return Stamp(self.u64(), self.u64())

    def rank(self) -> Rank:
        key, stamp = self.text(), self.stamp()
        return Rank(key, stamp, int.from_bytes(self._take(8), "big", signed=True))

    def item(self, element: bytes) -> Item:
        return Item(element, self.rank(), tuple(self.list(self.text)))

    def items(self, element: bytes) -> List[Item]:
        return self.list(lambda: self.item(element))

    def element(self) -> Element:
        name, order, sync, bound = self.text(), self.u8(), self.u8(), self.u32()
        if order > 2 or sync > 3:
            raise ProtocolError("an element has unknown criteria")
        at_most, unread, exactly = (bound if sync == kind else None for kind in (1, 2, 3))
        tuples, last, waiting = self.u64(), self.stamp(), self.u64()
        return Element(name, Order(order), at_most, unread, exactly, tuples, last, waiting)

    def refusal(self) -> Refusal:
        return _refusal(self.u8())

    def end(self) -> None:
        if self._at != len(self._data):
            raise ProtocolError("an answer is too long")
