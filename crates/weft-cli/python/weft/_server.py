"""Servers of copies."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from typing import Optional, Sequence, Union

from ._program import find


class ServerError(RuntimeError):
    """A server could not be started."""


class Server:
    """A ``weft serve`` that runs until ``close``, or to the end of a ``with`` block.

    ``shares`` are directories, which get their last names, or pairs of a name and a directory.
    """

    def __init__(
        self,
        *shares: Union[str, os.PathLike[str], tuple[str, Union[str, os.PathLike[str]]]],
        bind: Optional[str] = None,
        port: int = 0,
        read_only: bool = False,
        allow: Sequence[str] = (),
        authorised: Optional[str] = None,
        allow_clear: bool = False,
        rdma: bool = False,
        quota: Union[int, str, None] = None,
        quota_files: Optional[int] = None,
    ) -> None:
        words = [find(), "serve", f"--port={port}", *(f"--allow={key}" for key in allow)]
        flags = {"read-only": read_only, "allow-clear": allow_clear, "rdma": rdma}
        words += [f"--{name}" for name, is_set in flags.items() if is_set]
        values = {"bind": bind, "authorised": authorised, "quota": quota,
                  "quota-files": quota_files}
        words += [f"--{name}={value}" for name, value in values.items() if value is not None]
        words.append("--")
        for share in shares:
            name, path = share if isinstance(share, tuple) else (None, share)
            whole = os.path.abspath(os.fspath(path))
            words.append(f"{name or os.path.basename(whole)}={whole}")
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode(errors="replace")
        found = re.match(r"listening on \S*?:(\d+)[, ].*key (\S+)$", line.strip())
        if found is None:
            self.close()
            raise ServerError(self._text or "weft serve says nothing")
        # Its port, and its key, which clients have to know.
        self.port = int(found[1])
        self.key = found[2]

    def close(self) -> None:
        """Ends the server. Copies that still run fail."""
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if not self._errors.closed:
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace").strip()
            self._text = text.removeprefix("weft: ")
            self._errors.close()

    def place(self, path: str, host: str = "127.0.0.1") -> str:
        """Returns the place of a path, which begins with the name of a share, for ``copy``."""
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self.port}//{path}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
