"""A client of the tuple space that ``weft tuples serve`` holds.

>>> from weft.tuples import Client
>>> with Client("127.0.0.1:7417") as client:
...     client.put("jobs", "frame 17", "frame 18")
...     client.take("jobs").value
b'frame 17'

:class:`Client` blocks; :class:`AsyncClient` is for asyncio. Both speak the protocol of the server
themselves and need no other package and no program.
"""

from ._aio import AsyncClient
from ._client import Client
from ._model import (
    Element,
    Item,
    LostError,
    Order,
    ProtocolError,
    Put,
    Rank,
    RefusedError,
    Refusal,
    Stamp,
    TuplesError,
    Value,
)

__all__ = [
    "AsyncClient",
    "Client",
    "Element",
    "Item",
    "LostError",
    "Order",
    "ProtocolError",
    "Put",
    "Rank",
    "RefusedError",
    "Refusal",
    "Stamp",
    "TuplesError",
    "Value",
]
