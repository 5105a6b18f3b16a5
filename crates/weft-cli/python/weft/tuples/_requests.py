"""The operations: what is sent for each, and what its answer means."""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, Generic, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from . import _wire as wire
from ._model import Bytes, Element, Item, Order, ProtocolError, Put, Rank, RefusedError, Stamp, Value

T = TypeVar("T")
#: Elements to observe, with the ranks behind which to read.
Places = Union[Sequence[Bytes], Mapping[Bytes, Optional[Rank]]]


@dataclasses.dataclass(frozen=True)
class Request(Generic[T]):
    """An operation without its number."""

    body: bytes
    timeout: Optional[float]
    #: The kind of its answer, and what reads the answer.
    kind: int
    read: Callable[[wire.Reader], T]
    #: What puts back what the operation has taken, for a caller that does not want it any more.
    undo: Optional[Callable[[T], "Request[Put]"]] = None

    def result(self, kind: int, reader: wire.Reader) -> T:
        """Reads an answer, or raises what it says."""
        if kind == self.kind:
            result = self.read(reader)
            reader.end()
            return result
        if kind == wire.NOTHING:
            raise TimeoutError("the operation could not be done in its time")
        if kind == wire.REFUSED:
            raise RefusedError(reader.refusal())
        raise ProtocolError("an answer to another operation")


def create(
    element: Bytes,
    order: Order,
    bound: Optional[int],
    unread: Optional[int],
    exactly: Optional[int],
) -> Request[bool]:
    given = [(kind, it) for kind, it in ((1, bound), (2, unread), (3, exactly)) if it is not None]
    if len(given) > 1:
        raise ValueError("only one of bound, unread and exactly")
    sync, count = given[0] if given else (0, 0)
    body = bytes([wire.CREATE]) + wire.text(element) + wire.criteria(order, sync, count)
    return Request(body, None, wire.CREATED, wire.Reader.flag)


def _put(
    element: Bytes, is_back: bool, is_append: bool, tuples: List[bytes], timeout: Optional[float]
) -> Request[Put]:
    body = bytes([wire.PUT]) + wire.text(element) + wire.end(is_back) + bytes([is_append])
    body += wire.sequence(tuples)
    return Request(body, timeout, wire.PUT_DONE, lambda it: Put(it.rank(), it.u64()))


def put(
    element: Bytes,
    values: Sequence[Value],
    key: Bytes,
    stamp: Optional[Stamp],
    front: bool,
    append: bool,
    timeout: Optional[float],
) -> Request[Put]:
    tuples = [wire.new_tuple(value, key, stamp) for value in values]
    return _put(element, not front, append, tuples, timeout)


def _put_back(items: List[Item], is_back: bool) -> Request[Put]:
    """Puts tuples to where they were taken from."""
    tuples = []
    for item in reversed(items):
        stamp = None if item.rank.stamp == Stamp(0) else item.rank.stamp
        tuples.append(wire.new_tuple(item.fields, item.rank.key, stamp))
    # Only an element in the order of arrival has ends.
    is_ordered = any(item.rank.key or item.rank.stamp != Stamp(0) for item in items)
    return _put(items[0].element, is_back or is_ordered, False, tuples, None)


def take(
    elements: Sequence[Bytes], count: int, exactly: bool, back: bool, timeout: Optional[float]
) -> Request[List[Item]]:
    names = [wire.as_bytes(element) for element in elements]
    body = bytes([wire.TAKE]) + wire.sequence([wire.text(name) for name in names])
    body += wire.end(back) + wire.count(count, exactly)

    def read(reader: wire.Reader) -> List[Item]:
        return reader.items(_name(names, reader.u32()))

    return Request(body, timeout, wire.TAKEN, read, lambda items: _put_back(items, back))


def observe(
    places: Places, count: int, exactly: bool, timeout: Optional[float]
) -> Request[Dict[bytes, List[Item]]]:
    ranks: Mapping[Bytes, Optional[Rank]]
    ranks = places if isinstance(places, Mapping) else {element: None for element in places}
    names = [wire.as_bytes(element) for element in ranks]
    entries = []
    for name, rank in zip(names, ranks.values()):
        place = b"\x00" if rank is None else b"\x01" + wire.rank(rank)
        entries.append(wire.text(name) + place)
    body = bytes([wire.OBSERVE]) + wire.sequence(entries) + wire.count(count, exactly)

    def entry(reader: wire.Reader) -> Tuple[bytes, List[Item]]:
        name = _name(names, reader.u32())
        return name, reader.items(name)

    def read(reader: wire.Reader) -> Dict[bytes, List[Item]]:
        return dict(reader.list(lambda: entry(reader)))

    return Request(body, timeout, wire.OBSERVED, read)


def transfer(
    source: Bytes,
    target: Bytes,
    source_back: bool,
    target_front: bool,
    timeout: Optional[float],
) -> Request[Item]:
    body = bytes([wire.TRANSFER]) + wire.text(source) + wire.end(source_back)
    body += wire.text(target) + wire.end(not target_front)
    name = wire.as_bytes(source)
    return Request(body, timeout, wire.TRANSFERRED, lambda it: it.item(name))


def _read(element: Bytes, selection: bytes, count: int) -> Request[List[Item]]:
    body = bytes([wire.READ]) + wire.text(element) + selection + wire.as_u32(count)
    name = wire.as_bytes(element)
    return Request(body, None, wire.READ_DONE, lambda it: it.items(name))


def read(element: Bytes, first: int, last: int, count: int) -> Request[List[Item]]:
    return _read(element, b"\x00" + wire.i64(first) + wire.i64(last), count)


def read_key(element: Bytes, key: Bytes, count: int) -> Request[List[Item]]:
    return _read(element, b"\x01" + wire.text(key), count)


def read_stamps(element: Bytes, first: Stamp, last: Stamp, count: int) -> Request[List[Item]]:
    return _read(element, b"\x02" + wire.stamp(first) + wire.stamp(last), count)


def describe(element: Bytes) -> Request[Optional[Element]]:
    body = bytes([wire.DESCRIBE]) + wire.text(element)
    return Request(body, None, wire.DESCRIBED, lambda it: it.element() if it.flag() else None)


def elements() -> Request[List[Element]]:
    return Request(bytes([wire.LIST]), None, wire.LISTED, lambda it: it.list(it.element))


def delete(element: Bytes) -> Request[bool]:
    body = bytes([wire.DELETE]) + wire.text(element)
    return Request(body, None, wire.DELETED, wire.Reader.flag)


def _name(names: List[bytes], at: int) -> bytes:
    if at >= len(names):
        raise ProtocolError("an answer names an unknown element")
    return names[at]
