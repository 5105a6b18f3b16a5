"""Copies files and trees on this host and between hosts, by ``weft cp`` and ``weft serve``.

>>> import weft
>>> weft.copy("results/", "node7:data/results", resume=True, on_event=print)
Progress(bytes=...)
Summary(copied=12, bytes=1048576, ...)

A place is a text as for ``weft cp``: a path, ``HOST:SHARE/PATH``, or with ``rsh`` also
``[USER@]HOST:PATH``. A ``pathlib.Path`` is always a path of this host.
"""

from ._copy import Copy, CopyError, IncompleteError, copy, plan, public_key, start
from ._events import Decisions, Event, Lost, Planned, Problem, Progress, Summary
from ._options import Options
from ._program import ProgramNotFoundError
from ._server import Server, ServerError
from ._stream import Writer, open_reader, open_writer

__all__ = [
    "Copy",
    "CopyError",
    "Decisions",
    "Event",
    "IncompleteError",
    "Lost",
    "Options",
    "Planned",
    "Problem",
    "ProgramNotFoundError",
    "Progress",
    "Server",
    "ServerError",
    "Summary",
    "Writer",
    "copy",
    "open_reader",
    "open_writer",
    "plan",
    "public_key",
    "start",
]
