"""The values of a tuple space."""

from __future__ import annotations

import dataclasses
import enum
from typing import Tuple, Union

#: A field of a tuple, or the name of an element. A text is taken as UTF-8.
Bytes = Union[bytes, str]
#: A tuple to put: its one field, or a Python tuple of its fields.
Value = Union[Bytes, Tuple[Bytes, ...]]


class Order(enum.IntEnum):
    """The order of the tuples of an element."""

    ARRIVAL = 0
    KEY = 1
    TIME = 2


@dataclasses.dataclass(frozen=True, order=True)
class Stamp:
    """A time stamp: milliseconds since 1970, and a number within the millisecond."""

    ms: int
    count: int = 0


@dataclasses.dataclass(frozen=True, order=True)
class Rank:
    """The place of a tuple in the order of its element."""

    key: bytes
    stamp: Stamp
    position: int


@dataclasses.dataclass(frozen=True)
class Item:
    """A tuple of an element."""

    element: bytes
    rank: Rank
    fields: Tuple[bytes, ...]

    @property
    def value(self) -> bytes:
        """The only field of a tuple that has one."""
        (value,) = self.fields
        return value


@dataclasses.dataclass(frozen=True)
class Put:
    """Where the last tuple of a put is, and how many tuples its element had then."""

    rank: Rank
    tuples: int


@dataclasses.dataclass(frozen=True)
class Element:
    """What an element is. At most one of ``bound``, ``unread`` and ``exactly`` is not ``None``."""

    name: bytes
    order: Order
    bound: int | None
    unread: int | None
    exactly: int | None
    tuples: int
    last_stamp: Stamp
    waiting: int


class Refusal(enum.IntEnum):
    """Why the server refuses an operation."""

    LIMIT = 1
    EXISTS = 2
    COUNT = 3
    ORDER = 4
    STAMP = 5
    FULL = 6
    MEMORY = 7
    ANSWER = 8
    BUSY = 9
    DELETED = 10
    STALE = 11
    WINDOW = 12
    LOG = 13
    ELSEWHERE = 14
    TOKEN = 15
    RIGHTS = 16


_TEXTS = {
    Refusal.LIMIT: "a name, a tuple or a number is beyond the limits",
    Refusal.EXISTS: "the element exists with other criteria",
    Refusal.COUNT: "the element never has so many tuples for this",
    Refusal.ORDER: "the order of the element does not allow this",
    Refusal.STAMP: "the time stamp does not follow the last one",
    Refusal.FULL: "the element is full",
    Refusal.MEMORY: "the server has no memory for it",
    Refusal.ANSWER: "the answer would be too long",
    Refusal.BUSY: "too many operations wait, or too many elements or clients exist",
    Refusal.DELETED: "the element was deleted",
    Refusal.STALE: "the server does not know the operation any more: it may have taken effect",
    Refusal.WINDOW: "too many operations of the client have no answer",
    Refusal.LOG: "the server cannot write its log: the operation may have taken effect",
    Refusal.ELSEWHERE: "another server leads, or none does: the operation may have taken effect",
    Refusal.TOKEN: "the server asks for a token, and the client has none or a wrong one",
    Refusal.RIGHTS: "the user may not do this with the element",
}


class TuplesError(Exception):
    """An operation has failed."""


class RefusedError(TuplesError):
    """The server has refused an operation, which has changed nothing but where it says so."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(_TEXTS[refusal])
        self.refusal = refusal


class LostError(TuplesError):
    """The connection is lost, and there was no other one in the time for it.

    It is not known whether operations without an answer have taken effect.
    """


class ProtocolError(TuplesError):
    """The peer is no server of a tuple space, or one of another version."""
