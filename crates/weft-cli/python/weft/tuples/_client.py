"""A client that does one operation after the other."""

from __future__ import annotations

import os
import socket
import threading
import time
from ssl import SSLContext
from types import TracebackType
from typing import Dict, Iterator, List, Optional, Type, TypeVar

from . import _requests as requests
from . import _wire as wire
from ._model import (
    Bytes,
    Element,
    Item,
    LostError,
    Order,
    ProtocolError,
    Put,
    Rank,
    Stamp,
    Value,
)

T = TypeVar("T")
DEFAULT_SERVER = "127.0.0.1:7417"
#: Seconds between two attempts to connect.
RECONNECT_PAUSE = 0.1
#: How many tuples ``watch`` asks for at once.
WATCH_COUNT = 1000


def split_address(server: str) -> "tuple[str, int]":
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"neither ADDRESS:PORT nor a path with a slash: {server!r}")
    return host.strip("[]"), int(port)


class Client:
    """A client of ``weft tuples serve``.

    >>> with Client() as client:
    ...     client.put("jobs", "frame 17")
    ...     client.take("jobs").value
    b'frame 17'

    Connects to ``ADDRESS:PORT``, or to a Unix socket if ``server`` has a slash. After the loss of a
    connection the client tries for ``retry`` seconds to get another one, and repeats its operation,
    which takes effect once. An operation with a ``timeout`` (in seconds, 0: it does not wait)
    raises ``TimeoutError``; without one it waits for ever. ``token`` is what the server was given by
    ``--token-file``; without it such a server raises ``RefusedError``. With ``ssl`` the connection
    is by TLS, to a server that the context trusts: ``ssl.create_default_context(cafile=FILE)``.

    Threads may share a client; its operations are done one after the other, so that each thread
    that waits for tuples wants a client of its own.
    """

    def __init__(
        self,
        server: str = DEFAULT_SERVER,
        *,
        retry: float = 10.0,
        token: Bytes = b"",
        ssl: Optional[SSLContext] = None,
    ) -> None:
        self._server = server
        self._retry = retry
        self._token = wire.as_bytes(token)
        self._ssl = ssl
        self._identity = os.urandom(16)
        self._was_in = False
        self._number = 0
        self._socket: Optional[socket.socket] = None
        self._is_closed = False
        self._lock = threading.Lock()
        try:
            self._enter()
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        """Closes the connection, and lets the server forget the client."""
        with self._lock:
            self._is_closed = True
            if self._socket is not None:
                part = wire.frame(self._number + 1, self._number, bytes([wire.PART]))
                try:
                    self._socket.sendall(part)
                except OSError:
                    pass  # The server forgets the client later.
            self._drop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def create(
        self,
        element: Bytes,
        *,
        order: Order = Order.ARRIVAL,
        bound: Optional[int] = None,
        unread: Optional[int] = None,
        exactly: Optional[int] = None,
    ) -> bool:
        """Makes an element. Returns whether it is new."""
        return self._call(requests.create(element, order, bound, unread, exactly))

    def put(
        self,
        element: Bytes,
        *values: Value,
        key: Bytes = b"",
        stamp: Optional[Stamp] = None,
        front: bool = False,
        append: bool = False,
        timeout: Optional[float] = None,
    ) -> Put:
        """Puts tuples into an element, all at once. Waits while the element is full.

        With ``append`` a put is refused unless ``stamp`` follows all time stamps before.
        """
        return self._call(requests.put(element, values, key, stamp, front, append, timeout))

    def take(self, *elements: Bytes, back: bool = False, timeout: Optional[float] = None) -> Item:
        """Takes a tuple out of the first of the elements that has one, and waits for it."""
        return self.take_many(*elements, count=1, back=back, timeout=timeout)[0]

    def take_many(
        self,
        *elements: Bytes,
        count: int,
        exactly: bool = False,
        back: bool = False,
        timeout: Optional[float] = None,
    ) -> List[Item]:
        """Takes up to ``count`` tuples of one element, or with ``exactly`` just as many."""
        return self._call(requests.take(elements, count, exactly, back, timeout))

    def observe(
        self,
        places: requests.Places,
        *,
        count: int = 1,
        exactly: bool = False,
        timeout: Optional[float] = None,
    ) -> Dict[bytes, List[Item]]:
        """Reads tuples and leaves them where they are.

        ``places`` are elements, or a mapping of elements to the ranks behind which to read.
        """
        return self._call(requests.observe(places, count, exactly, timeout))

    def watch(self, *elements: Bytes) -> Iterator[Item]:
        """Yields the tuples that are put into elements from now on, and leaves them there."""
        places: Dict[Bytes, Optional[Rank]] = {}
        for element in elements:
            last = self.read(element, -1)
            places[wire.as_bytes(element)] = last[0].rank if last else None
        while True:
            for name, items in self.observe(places, count=WATCH_COUNT).items():
                places[name] = items[-1].rank
                yield from items

    def transfer(
        self,
        source: Bytes,
        target: Bytes,
        *,
        source_back: bool = False,
        target_front: bool = False,
        timeout: Optional[float] = None,
    ) -> Item:
        """Takes a tuple from one element and puts it into another one, in one step."""
        return self._call(requests.transfer(source, target, source_back, target_front, timeout))

    def read(
        self, element: Bytes, first: int = 0, last: int = -1, *, count: int = 2**32 - 1
    ) -> List[Item]:
        """Reads the tuples from one place to another. Negative places count from the end."""
        return self._call(requests.read(element, first, last, count))

    def read_key(self, element: Bytes, key: Bytes, *, count: int = 2**32 - 1) -> List[Item]:
        """Reads the tuples with a key."""
        return self._call(requests.read_key(element, key, count))

    def read_stamps(
        self, element: Bytes, first: Stamp, last: Stamp, *, count: int = 2**32 - 1
    ) -> List[Item]:
        """Reads the tuples with time stamps from one to another."""
        return self._call(requests.read_stamps(element, first, last, count))

    def describe(self, element: Bytes) -> Optional[Element]:
        """Returns what an element is. ``None`` if there is none."""
        return self._call(requests.describe(element))

    def elements(self) -> List[Element]:
        """Lists the elements in the order of their names."""
        return self._call(requests.elements())

    def delete(self, element: Bytes) -> bool:
        """Deletes an element with its tuples. Returns whether there was one."""
        return self._call(requests.delete(element))

    def _call(self, request: "requests.Request[T]") -> T:
        with self._lock:
            if self._is_closed:
                raise ValueError("the client is closed")
            self._number += 1
            start = time.monotonic()
            lost_since: Optional[float] = None
            while True:
                left = request.timeout
                if left is not None:
                    left = max(0.0, left - (time.monotonic() - start))
                data = wire.frame(self._number, self._number - 1, request.body + wire.wait(left))
                try:
                    kind, reader = self._attempt(data)
                    break
                except OSError as error:
                    self._drop()
                    now = time.monotonic()
                    lost_since = now if lost_since is None else lost_since
                    if now - lost_since >= self._retry:
                        raise LostError(f"no connection to {self._server}: {error}") from error
                    time.sleep(RECONNECT_PAUSE)
                except BaseException:
                    # What comes next on this connection may be the answer to this operation.
                    self._drop()
                    raise
            return request.result(kind, reader)

    def _attempt(self, data: bytes) -> "tuple[int, wire.Reader]":
        if self._socket is None:
            self._enter()
        connection = self._socket
        assert connection is not None
        connection.sendall(data)
        length = wire.answer_length(_receive(connection, 4))
        number, kind, reader = wire.answer(_receive(connection, length))
        if number != self._number:
            raise ProtocolError("an answer to another operation")
        return kind, reader

    def _enter(self) -> None:
        if "/" in self._server:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(self._server)
        else:
            self._socket = socket.create_connection(split_address(self._server))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ssl is not None:
                host = split_address(self._server)[0]
                self._socket = self._ssl.wrap_socket(self._socket, server_hostname=host)
        self._socket.sendall(wire.hello(self._identity, self._was_in, self._token))
        wire.check_welcome(_receive(self._socket, wire.WELCOME_LEN))
        self._was_in = True

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            raise ConnectionError("the server has closed the connection")
        data += part
    return bytes(data)
