"""Finds the program ``weft``."""

from __future__ import annotations

import os
import shutil
import sysconfig


class ProgramNotFoundError(FileNotFoundError):
    """The program ``weft`` is not installed."""


def find() -> str:
    """Returns the path of ``weft``: that of ``$WEFT``, of this installation, or in ``$PATH``."""
    named = os.environ.get("WEFT")
    if named:
        return named
    for folder in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")):
        path = os.path.join(folder, "weft")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("weft")
    if found is None:
        raise ProgramNotFoundError("there is no program weft: install it, or name it in $WEFT")
    return found


def local(path: os.PathLike[str]) -> str:
    """Returns a path of this host as a text that means no other place."""
    text = os.fspath(path)
    if text.startswith("/"):
        return text
    return os.path.join(".", text)


def place(where: str | os.PathLike[str]) -> str:
    """Returns a place as an operand of ``weft cp``."""
    if not isinstance(where, str):
        return local(where)
    if where == "-":
        raise ValueError("- is a standard stream: use open_reader, open_writer, or ./-")
    if not where:
        raise ValueError("a place is empty")
    return where
