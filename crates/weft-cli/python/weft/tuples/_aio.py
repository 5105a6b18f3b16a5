"""A client for asyncio. Its operations share connections and need not end in their order."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from ssl import SSLContext
from types import TracebackType
from typing import Any, AsyncIterator, Dict, List, Optional, Set, Type, TypeVar

from . import _requests as requests
from . import _wire as wire
from ._client import DEFAULT_SERVER, RECONNECT_PAUSE, WATCH_COUNT, split_address
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
    TuplesError,
    Value,
)

T = TypeVar("T")
#: The most operations from the oldest without an answer to the newest. The server keeps the answers
#: of a few more than these.
LANE_LEN_MAX = 200
#: The most connections of a client.
LANES_MAX = 64


@dataclasses.dataclass
class _Open:
    """An operation without an answer."""

    request: "requests.Request[Any]"
    deadline: Optional[float]
    answer: "asyncio.Future[Any]"
    is_cancelled: bool = False


class AsyncClient:
    """A client of ``weft tuples serve`` for asyncio.

    >>> async with AsyncClient() as client:
    ...     await client.put("jobs", "frame 17")
    ...     (await client.take("jobs")).value
    b'frame 17'

    It has the methods of :class:`Client`, whose calls may be under way together: they take effect
    in the order in which they were made, except that one that waits takes effect when it is served.
    An operation whose task is cancelled is cancelled at the server, too; if it has taken tuples
    meanwhile they are put back. After a ``LostError`` the client is of no use any more.

    Behind an operation that waits, 200 others go over the same connection; then the client makes
    another connection. If it has 64, further operations wait until an old one has ended.
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
        #: The last one takes new operations.
        self._lanes: List[_Lane] = []
        self._turn: Optional[asyncio.Lock] = None
        #: What puts back tuples that nobody wants.
        self._undoing: Set["asyncio.Task[None]"] = set()

    async def connect(self) -> "AsyncClient":
        """Connects to the server."""
        if not self._lanes:
            self._turn = asyncio.Lock()
            self._lanes.append(await self._new_lane())
        return self

    async def close(self) -> None:
        """Closes the connections, and lets the server forget the client."""
        await asyncio.gather(*self._undoing, return_exceptions=True)
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            await lane.close()

    async def __aenter__(self) -> "AsyncClient":
        return await self.connect()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def create(
        self,
        element: Bytes,
        *,
        order: Order = Order.ARRIVAL,
        bound: Optional[int] = None,
        unread: Optional[int] = None,
        exactly: Optional[int] = None,
    ) -> bool:
        """Makes an element. Returns whether it is new."""
        return await self._call(requests.create(element, order, bound, unread, exactly))

    async def put(
        self,
        element: Bytes,
        *values: Value,
        key: Bytes = b"",
        stamp: Optional[Stamp] = None,
        front: bool = False,
        append: bool = False,
        timeout: Optional[float] = None,
    ) -> Put:
        """Puts tuples into an element, all at once. Waits while the element is full."""
        return await self._call(requests.put(element, values, key, stamp, front, append, timeout))

    async def take(
        self, *elements: Bytes, back: bool = False, timeout: Optional[float] = None
    ) -> Item:
        """Takes a tuple out of the first of the elements that has one, and waits for it."""
        return (await self.take_many(*elements, count=1, back=back, timeout=timeout))[0]

    async def take_many(
        self,
        *elements: Bytes,
        count: int,
        exactly: bool = False,
        back: bool = False,
        timeout: Optional[float] = None,
    ) -> List[Item]:
        """Takes up to ``count`` tuples of one element, or with ``exactly`` just as many."""
        return await self._call(requests.take(elements, count, exactly, back, timeout))

    async def observe(
        self,
        places: requests.Places,
        *,
        count: int = 1,
        exactly: bool = False,
        timeout: Optional[float] = None,
    ) -> Dict[bytes, List[Item]]:
        """Reads tuples and leaves them where they are."""
        return await self._call(requests.observe(places, count, exactly, timeout))

    async def watch(self, *elements: Bytes) -> AsyncIterator[Item]:
        """Yields the tuples that are put into elements from now on, and leaves them there."""
        places: Dict[Bytes, Optional[Rank]] = {}
        for element in elements:
            last = await self.read(element, -1)
            places[wire.as_bytes(element)] = last[0].rank if last else None
        while True:
            for name, items in (await self.observe(places, count=WATCH_COUNT)).items():
                places[name] = items[-1].rank
                for item in items:
                    yield item

    async def transfer(
        self,
        source: Bytes,
        target: Bytes,
        *,
        source_back: bool = False,
        target_front: bool = False,
        timeout: Optional[float] = None,
    ) -> Item:
        """Takes a tuple from one element and puts it into another one, in one step."""
        request = requests.transfer(source, target, source_back, target_front, timeout)
        return await self._call(request)

    async def read(
        self, element: Bytes, first: int = 0, last: int = -1, *, count: int = 2**32 - 1
    ) -> List[Item]:
        """Reads the tuples from one place to another. Negative places count from the end."""
        return await self._call(requests.read(element, first, last, count))

    async def read_key(self, element: Bytes, key: Bytes, *, count: int = 2**32 - 1) -> List[Item]:
        """Reads the tuples with a key."""
        return await self._call(requests.read_key(element, key, count))

    async def read_stamps(
        self, element: Bytes, first: Stamp, last: Stamp, *, count: int = 2**32 - 1
    ) -> List[Item]:
        """Reads the tuples with time stamps from one to another."""
        return await self._call(requests.read_stamps(element, first, last, count))

    async def describe(self, element: Bytes) -> Optional[Element]:
        """Returns what an element is. ``None`` if there is none."""
        return await self._call(requests.describe(element))

    async def elements(self) -> List[Element]:
        """Lists the elements in the order of their names."""
        return await self._call(requests.elements())

    async def delete(self, element: Bytes) -> bool:
        """Deletes an element with its tuples. Returns whether there was one."""
        return await self._call(requests.delete(element))

    async def _call(self, request: "requests.Request[T]") -> T:
        lane, number, answer = await self._begin(request)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            lane.cancel(number)
            undoing = asyncio.create_task(self._undo(request, answer))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            # It goes on even if this task is cancelled again.
            await asyncio.shield(undoing)
            raise

    async def _undo(self, request: "requests.Request[T]", answer: "asyncio.Future[T]") -> None:
        """Waits for the answer to an operation that nobody wants any more, and puts back."""
        try:
            result = await answer
            if request.undo is not None:
                await (await self._begin(request.undo(result)))[2]
        except (TimeoutError, TuplesError, ValueError, _Cancelled):
            pass

    async def _begin(
        self, request: "requests.Request[T]"
    ) -> "tuple[_Lane, int, asyncio.Future[T]]":
        if self._turn is None:
            raise ValueError("the client is not connected")
        async with self._turn:
            lane = await self._lane()
            number, answer = lane.begin(request)
            return lane, number, answer

    async def _lane(self) -> "_Lane":
        """Returns the connection for the next operation."""
        while True:
            if not self._lanes:
                raise ValueError("the client is not connected")
            lane = self._lanes[-1]
            if lane.failure is not None:
                raise lane.failure
            if not lane.is_full():
                return lane
            # Whatever was sent by it comes before what is sent by another one.
            await lane.begin(requests.describe(b""))[1]
            other = await self._other_lane()
            if other is not None:
                self._lanes.append(other)

    async def _other_lane(self) -> "Optional[_Lane]":
        """Takes out a connection that has a place, or makes another one, or waits for one."""
        for lane in self._lanes[:-1]:
            if lane.failure is not None or not lane.is_full():
                self._lanes.remove(lane)
                return lane if lane.failure is None else None
        if len(self._lanes) < LANES_MAX:
            return await self._new_lane()
        await asyncio.wait([it for lane in self._lanes for it in lane.answers()], return_when=asyncio.FIRST_COMPLETED)
        return None

    async def _new_lane(self) -> "_Lane":
        lane = _Lane(self._server, self._retry, self._token, self._ssl)
        await lane.connect()
        return lane


class _Lane:
    """A connection with a client's identity. Its operations need not end in their order."""

    def __init__(
        self, server: str, retry: float, token: bytes, ssl: Optional[SSLContext]
    ) -> None:
        self._server = server
        self._retry = retry
        self._token = token
        self._ssl = ssl
        self._identity = os.urandom(16)
        self._was_in = False
        self._number = 0
        self._open: Dict[int, _Open] = {}
        self._writer: Optional[asyncio.StreamWriter] = None
        self._worker: Optional["asyncio.Task[None]"] = None
        #: Why it has ended.
        self.failure: Optional[BaseException] = None

    async def connect(self) -> None:
        reader = await self._enter()
        self._worker = asyncio.create_task(self._work(reader))

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        self._fail(TuplesError("the client is closed"))
        if self._writer is not None:
            self._send(self._number + 1, bytes([wire.PART]))
            try:
                await self._writer.drain()
            except OSError:
                pass  # The server forgets the client later.
            self._drop()

    def is_full(self) -> bool:
        # A dictionary has the order of insertion: the first number is the smallest one.
        return self._number - next(iter(self._open), self._number) >= LANE_LEN_MAX

    def answers(self) -> "List[asyncio.Future[Any]]":
        return [it.answer for it in self._open.values()]

    def begin(self, request: "requests.Request[T]") -> "tuple[int, asyncio.Future[T]]":
        loop = asyncio.get_running_loop()
        number, answer = self._next_number(), loop.create_future()
        deadline = None if request.timeout is None else loop.time() + request.timeout
        self._open[number] = _Open(request, deadline, answer)
        self._send_open(number)
        return number, answer

    def cancel(self, number: int) -> None:
        it = self._open.get(number)
        if it is not None:
            it.is_cancelled = True
            self._send_cancel(number)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _send(self, number: int, body: bytes) -> None:
        # What is not sent by a lost connection is sent by the next one.
        if self._writer is not None and not self._writer.is_closing():
            confirmed = min(next(iter(self._open), number), number) - 1
            self._writer.write(wire.frame(number, confirmed, body))

    def _send_cancel(self, number: int) -> None:
        self._send(self._next_number(), bytes([wire.CANCEL]) + wire.as_u64(number))

    def _send_open(self, number: int) -> None:
        it = self._open[number]
        left: Optional[float] = None
        if it.deadline is not None:
            left = max(0.0, it.deadline - asyncio.get_running_loop().time())
        self._send(number, it.request.body + wire.wait(left))
        if it.is_cancelled:
            self._send_cancel(number)

    async def _work(self, reader: asyncio.StreamReader) -> None:
        """Hands out answers. Connects again when the connection is lost."""
        try:
            while True:
                try:
                    await self._receive(reader)
                except (OSError, EOFError) as error:
                    reader = await self._reconnect(error)
        except Exception as error:
            self._fail(error)

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while True:
            length = wire.answer_length(await reader.readexactly(4))
            number, kind, answer = wire.answer(await reader.readexactly(length))
            if kind == wire.CANCEL_ANSWER:
                continue
            it = self._open.pop(number, None)
            if it is None:
                raise ProtocolError("an answer to an unknown operation")
            try:
                if kind == wire.CANCELLED:
                    raise _Cancelled
                it.answer.set_result(it.request.result(kind, answer))
            except Exception as error:
                # unittest clears the frames of an error's trace, which would end this coroutine.
                it.answer.set_exception(error.with_traceback(None))
                # It may be that nobody waits for it any more.
                it.answer.exception()

    async def _reconnect(self, error: Exception) -> asyncio.StreamReader:
        self._drop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry
        while True:
            try:
                reader = await self._enter()
            except OSError as other:
                if loop.time() >= deadline:
                    raise LostError(f"no connection to {self._server}: {other}") from error
                await asyncio.sleep(RECONNECT_PAUSE)
                continue
            for number in list(self._open):
                self._send_open(number)
            return reader

    async def _enter(self) -> asyncio.StreamReader:
        if "/" in self._server:
            reader, writer = await asyncio.open_unix_connection(self._server)
        else:
            reader, writer = await asyncio.open_connection(*split_address(self._server), ssl=self._ssl)
        try:
            writer.write(wire.hello(self._identity, self._was_in, self._token))
            try:
                wire.check_welcome(await reader.readexactly(wire.WELCOME_LEN))
            except EOFError as error:
                raise ConnectionError("the server has closed the connection") from error
        except BaseException:
            writer.close()
            raise
        self._was_in = True
        self._writer = writer
        return reader

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _fail(self, error: BaseException) -> None:
        """Ends all operations."""
        self.failure = error
        everything, self._open = self._open, {}
        for it in everything.values():
            if not it.answer.done():
                it.answer.set_exception(error.with_traceback(None))
                it.answer.exception()


class _Cancelled(Exception):
    """The server has cancelled an operation, as the client has asked."""
