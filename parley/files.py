"""Writing files so that a kill or a power cut at any moment leaves the old one or the new one.

Everything that a run keeps goes through here. A file is written under another name, put on the
disk, given its name, and then its folder is put on the disk too: until that has happened, the name
may be lost or lead to a file full of nothing, whatever the program has been told.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""Suffix of files that are being written; one left behind does no harm."""


def write_atomically(path: Path, text: str) -> None:
    """The whole text or nothing, on disk before this returns."""
    make_folder(path.parent)
    temporary = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    with replacing(path, temporary):
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path, temporary: Path) -> Iterator[None]:
    """Puts what is written to `temporary` meanwhile in the place of `path`, on disk.

    If writing fails, `path` stays as it was and nothing is left of the other.
    """
    try:
        yield
        _sync_file(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a file, on disk before this returns.

    What a power cut has left of an unfinished line is cut off first.
    """
    new = not path.exists()
    with path.open("ab+") as file:
        _cut_unfinished(file)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, as far as they are missing, on disk."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Puts on disk which files a folder has, and under which names."""
    if os.name == "nt":  # Windows has no such call; its file system keeps a journal of names
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_partial(path: Path, name: str) -> bool:
    """Whether this is what a killed `write_atomically` of a file of that name left behind."""
    return path.name.startswith(f"{name}.") and path.name.endswith(PARTIAL)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut_unfinished(file: BinaryIO) -> None:
    """Shortens a file whose last line has no end to the lines that have."""
    if not file.seek(0, os.SEEK_END):
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
