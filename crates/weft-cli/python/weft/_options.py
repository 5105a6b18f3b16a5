"""Options of copies."""

from __future__ import annotations

from typing import Any, Literal, Sequence, TypedDict


class Options(TypedDict, total=False):
    """Options of ``weft cp``, which ``weft cp --help`` describes."""

    resume: bool
    retry_for: int
    skip_unchanged: bool
    update: bool
    checksum: bool
    size_only: bool
    ignore_existing: bool
    fsync: bool
    delete: bool
    delete_before: bool
    clean: bool
    force: bool
    # Patterns in their order: ("include" or "exclude", pattern).
    patterns: Sequence[tuple[Literal["include", "exclude"], str]]
    verify: bool
    owners: bool
    xattrs: bool
    direct: Literal["auto", "always", "never"]
    compress: Literal["auto", "zstd", "none"]
    # Bytes a second, or a text such as "10M".
    limit: int | str
    congestion: str
    fair_share: bool
    rsh: str
    data: Literal["auto", "rdma", "tcp", "shell"]
    clear: bool
    remote_weft: str
    accept_new: bool
    explain: bool


def arguments(options: dict[str, Any]) -> list[str]:
    """Returns options as arguments of ``weft cp``."""
    words: list[str] = []
    for name, value in options.items():
        if name not in Options.__annotations__:
            raise TypeError(f"weft cp has no option {name}")
        option = "--" + name.replace("_", "-")
        if name == "patterns":
            for kind, pattern in value:
                if kind not in ("include", "exclude"):
                    raise ValueError(f"a pattern is to include or exclude names, not to {kind}")
                words.append(f"--{kind}={pattern}")
        elif value is True:
            words.append(option)
        elif value is not False and value is not None:
            words.append(f"{option}={value}")
    return words
