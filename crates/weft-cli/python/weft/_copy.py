"""Copies of files and trees."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence, Union

from ._events import Event, Planned, Problem, Summary, parse
from ._options import arguments
from ._program import find, place

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options

Place = Union[str, "os.PathLike[str]"]

# The exit status of `weft cp` if single entries could not be copied.
INCOMPLETE = 3


class CopyError(RuntimeError):
    """A copy has failed. ``status`` is the exit status: 1 for the copy, 2 for its arguments."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class IncompleteError(CopyError):
    """Some entries could not be copied: ``problems``. All others have been: ``summary``."""

    def __init__(self, summary: Summary, problems: Sequence[Problem]) -> None:
        first = f": {problems[0].path}: {problems[0].text}" if problems else ""
        super().__init__(f"{summary.failed} entries could not be copied{first}", INCOMPLETE)
        self.summary = summary
        self.problems = problems


class Copy:
    """A running copy, a process of its own. It yields events, and is over when they end.

    Leaving a ``with`` block, and ``cancel``, end a copy that still runs. ``resume=True`` goes on
    with it later.
    """

    def __init__(self, sources: Union[Place, Sequence[Place]], destination: Place,
                 words: Sequence[str]) -> None:
        many = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
        if not many:
            raise ValueError("there is no source")
        places = [place(it) for it in [*many, destination]]
        # Unlike a pipe, a file never blocks a copy that says a lot.
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [find(), "cp", "--json", *words, "--", *places],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors,
        )
        self._summary: Optional[Summary] = None
        self._problems: list[Problem] = []

    def __iter__(self) -> Iterator[Event]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = parse(json.loads(line))
            if isinstance(event, Summary):
                self._summary = event
            elif isinstance(event, Problem) and not event.is_warning:
                self._problems.append(event)
            if event is not None:
                yield event

    def wait(self) -> Summary:
        """Waits for the end of the copy.

        Raises ``IncompleteError`` if entries could not be copied, and ``CopyError`` if the copy
        has failed or was cancelled.
        """
        for _ in self:
            pass
        status = self._process.wait()
        if self._summary is not None and status == 0:
            return self._summary
        if self._summary is not None and status == INCOMPLETE:
            raise IncompleteError(self._summary, self._problems)
        raise CopyError(self._text() or f"weft cp ended with status {status}", status)

    def cancel(self) -> None:
        """Ends the copy."""
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.cancel()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _text(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return text.removeprefix("weft: ")


def start(sources: Union[Place, Sequence[Place]], destination: Place,
          **options: Unpack[Options]) -> Copy:
    """Starts a copy. Use it in a ``with`` block, which ends it if the block ends before."""
    return Copy(sources, destination, arguments(dict(options)))


def copy(sources: Union[Place, Sequence[Place]], destination: Place, *,
         on_event: Optional[Callable[[Event], Any]] = None,
         **options: Unpack[Options]) -> Summary:
    """Copies, and calls ``on_event`` with each event. An exception in between ends the copy."""
    with start(sources, destination, **options) as running:
        for event in running:
            if on_event is not None:
                on_event(event)
        return running.wait()


def plan(sources: Union[Place, Sequence[Place]], destination: Place,
         **options: Unpack[Options]) -> list[Planned]:
    """Returns what a copy would do, and changes nothing."""
    words = [*arguments(dict(options)), "--dry-run"]
    with Copy(sources, destination, words) as running:
        planned = [event for event in running if isinstance(event, Planned)]
        running.wait()
        return planned


def public_key() -> str:
    """Returns this user's public key, which servers have to know."""
    words = [find(), "cp", "--show-key"]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode != 0:
        raise CopyError(ended.stderr.strip().removeprefix("weft: "), ended.returncode)
    return ended.stdout.strip()
