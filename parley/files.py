"""Writing files so that a kill at any moment leaves the old one or the new one."""

import os
from pathlib import Path

PARTIAL = ".partial"
"""Suffix of files that are being written; one left behind does no harm."""


def write_atomically(path: Path, text: str) -> None:
    """The whole text or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_partial(path: Path, name: str) -> bool:
    """Whether this is what a killed `write_atomically` of a file of that name left behind."""
    return path.name.startswith(f"{name}.") and path.name.endswith(PARTIAL)
