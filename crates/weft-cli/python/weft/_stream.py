"""Single files as streams of bytes."""

from __future__ import annotations

import atexit
import io
import subprocess
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, Optional

from ._copy import CopyError, Place
from ._options import arguments
from ._program import find, place

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options


# At the end of Python, the end of its pipes must not look like the end of the data.
_open: weakref.WeakSet[_Stream] = weakref.WeakSet()


def _drop_all() -> None:
    for stream in list(_open):
        stream._drop()


atexit.register(_drop_all)


class _Stream(io.RawIOBase):
    """One end of the standard streams of a ``weft cp``."""

    def __init__(self, words: list[str], reads: bool) -> None:
        self._errors = tempfile.TemporaryFile()
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(
            [find(), "cp", "--quiet", *words],
            stdin=none if reads else pipe, stdout=pipe if reads else none, stderr=self._errors,
        )
        _open.add(self)

    def _end(self) -> None:
        """Waits for the program, and raises an exception if it has failed."""
        status = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip().removeprefix("weft: ")
        if status != 0:
            raise CopyError(text or f"weft cp ended with status {status}", status)

    def _drop(self) -> None:
        """Ends the program."""
        self._process.kill()
        self._process.wait()

    def __del__(self) -> None:
        # Without a call of close, nothing is stored.
        if hasattr(self, "_process") and not self.closed:
            self._drop()
            self._release()
            super().close()

    def _release(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


class _Reader(_Stream):
    """The bytes of one file. Reading raises ``CopyError`` if the copy fails."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        assert self._process.stdout is not None
        count = self._process.stdout.readinto1(buffer)  # type: ignore[attr-defined]
        if count == 0 and len(buffer) > 0:
            # Only the exit status says whether the file is complete.
            self._end()
        return int(count)

    def close(self) -> None:
        """Ends the copy, whether all has been read or not."""
        if not self.closed:
            self._drop()
            self._release()
        super().close()


class Writer(_Stream):
    """Writes one file, which gets its name when ``close`` has succeeded.

    If a ``with`` block ends by an exception, nothing is stored.
    """

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        assert self._process.stdin is not None
        try:
            return int(self._process.stdin.write(data))
        except BrokenPipeError:
            self._end()
            raise

    def close(self) -> None:
        """Stores the file. Raises ``CopyError`` if that fails."""
        if self.closed:
            return
        try:
            assert self._process.stdin is not None
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
            self._end()
        finally:
            self._release()
            super().close()

    def discard(self) -> None:
        """Ends the copy, so that nothing is stored."""
        if not self.closed:
            self._drop()
            self._release()
        super().close()

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def open_reader(where: Place, **options: Unpack[Options]) -> io.BufferedReader:
    """Opens a file for reading from its beginning to its end."""
    words = [*arguments(dict(options)), "--", place(where), "-"]
    return io.BufferedReader(_Reader(words, True), 1 << 20)


def open_writer(where: Place, **options: Unpack[Options]) -> Writer:
    """Opens a file for writing. A file of that name is replaced when this one is complete."""
    return Writer([*arguments(dict(options)), "--", "-", place(where)], False)
