"""What ``weft cp --json`` says."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping, Optional, Union


@dataclass(frozen=True)
class Progress:
    """The progress of a copy."""

    # Bytes that have been processed, and their number a second.
    bytes: int
    rate: int
    # What the source has found until now, wanted or not, and whether that is all.
    found_bytes: int
    found_entries: int
    found_all: bool


@dataclass(frozen=True)
class Problem:
    """A problem with one entry. After a warning, the entry is there nevertheless."""

    path: str
    text: str
    is_warning: bool


@dataclass(frozen=True)
class Lost:
    """A connection was lost, and others are made for some seconds."""

    text: str
    retry_for: int


@dataclass(frozen=True)
class Planned:
    """What a copy would do with one entry of the destination."""

    # "copy", "update", "attributes" or "delete".
    action: str
    # "file", "directory", "symlink", "hard-link" or "special".
    kind: str
    path: str
    size: Optional[int] = None


@dataclass(frozen=True)
class Decisions:
    """How a copy is made (``explain``)."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """The result of a copy."""

    copied: int
    bytes: int
    unchanged: int
    deleted: int
    failed: int
    warnings: int
    seconds: float
    rate: int
    # The busiest part.
    bound: str
    # Bytes of blocks before and after compression; 0 without compression.
    blocks_plain: int
    blocks_sent: int
    # What has carried the data, "tcp", "rdma" or "shell", if there was a choice, and why.
    data: Optional[str] = None
    data_reason: Optional[str] = None


Event = Union[Progress, Problem, Lost, Planned, Decisions, Summary]


def parse(value: dict[str, Any]) -> Optional[Event]:
    """Returns an event; ``None`` if this version does not know it."""
    kind = value.pop("event")
    if kind in ("error", "warning"):
        return Problem(value["path"], value["text"], kind == "warning")
    if kind == "decisions":
        return Decisions(value)
    types: dict[str, type[Union[Progress, Lost, Planned, Summary]]] = {
        "progress": Progress, "lost": Lost, "plan": Planned, "summary": Summary,
    }
    if kind not in types:
        return None
    known = types[kind]
    names = {field.name for field in fields(known)}
    return known(**{name: it for name, it in value.items() if name in names})
