"""Reading and writing files.

Files are read with bounds, since they may come from strangers: of limited size, and never a pipe or
a device. Errors do not quote a file's contents, since they are passed on to other hosts.

Everything that a run keeps is written so that a kill or a power cut at any moment leaves either the
old file or the new one. A file is written under a temporary name, synced to disk and renamed; then
its folder is synced. Before that, a power cut can lose the name, or leave an empty file under it.
"""

import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from parley.errors import BadValue

LARGEST = 64 << 20
"""Bytes of the largest file of a graph or a partition."""
SMALL = 1 << 20
"""Bytes of the largest experiment, or other file of settings."""
LONGEST = 4096
"""Characters of a name, a spec or a path."""
MOST_PARTS = 32
"""Levels of tables and lists within each other."""
MOST_BITS = 4096
"""Of a whole number; Python shows none of more than 4300 digits."""
_PART = r"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
MANY_PARTS = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")
"""A dotted key of too many parts."""
MOST_OPTION = 1_000_000_000
"""The largest number in the options of a model or a dataset."""


class Unreadable(ValueError):
    """Why a file cannot be read; the message quotes nothing of it."""


def read_text(path: Path, most: int = LARGEST, pipe: bool = False) -> str:
    """The text of a file of at most `most` bytes; `pipe`: a pipe may take its place.

    >>> read_text(Path("/dev/zero"))
    Traceback (most recent call last):
    parley.files.Unreadable: not a regular file
    """
    try:
        return read_bytes(path, most, pipe).decode()
    except UnicodeDecodeError:
        raise Unreadable("not text in UTF-8") from None


def read_bytes(path: Path, most: int = LARGEST, pipe: bool = False) -> bytes:
    """The contents of a file of at most `most` bytes; `pipe` as in `read_text`."""
    with regular(path, pipe=pipe) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Unreadable(f"it has more than {most >> 20} MB")
    return content


def lines_of(path: Path, longest: int = LARGEST, most: int | None = None) -> Iterator[bytes]:
    """The complete lines of a file, without line ends; lines that are too long become empty.

    Anything after the last newline is left out, unless it is too long. Reads at most `most` bytes.
    """
    with regular(path) as file:
        read, skipping = 0, False
        while line := file.readline(longest):
            read += len(line)
            if most is not None and read > most:
                raise Unreadable(f"it has more than {most >> 20} MB")
            whole = line.endswith(b"\n")
            if not skipping and (whole or len(line) == longest):
                yield line[:-1] if whole else b""
            skipping = not whole


@contextmanager
def regular(path: Path, follow: bool = True, pipe: bool = False) -> Iterator[BinaryIO]:
    """Opens a file to be read, if it is a regular one: a pipe would be waited for, and a device may
    have no end. `follow`: whether through symbolic links."""
    try:
        with os.fdopen(_descriptor(path, follow, pipe), "rb") as file:
            yield file
    except OSError as error:
        raise Unreadable(error.strerror or "it cannot be read") from None


def _descriptor(path: Path, follow: bool, pipe: bool) -> int:
    def check(mode: int) -> None:
        if not stat.S_ISREG(mode) and not (pipe and stat.S_ISFIFO(mode)):
            raise Unreadable("Is a directory" if stat.S_ISDIR(mode) else "not a regular file")

    try:
        mode = path.stat(follow_symlinks=follow).st_mode
    except ValueError:  # a path with a zero byte in it
        raise Unreadable("not the name of a file") from None
    # Looked at first, since opening a device may do something, and again once it is open.
    check(mode)
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    if not stat.S_ISFIFO(mode):
        flags |= getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    try:
        check(os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    >>> parse_toml("a." * 100_000 + "b = 1")
    Traceback (most recent call last):
    parley.files.Unreadable: not TOML: it is nested too deeply
    """
    if MANY_PARTS.search(text):  # it would be read for hours: the time grows with the cube
        raise Unreadable("not TOML: it is nested too deeply")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise Unreadable("not TOML: it is nested too deeply") from None
    except ValueError as error:  # also of numbers with thousands of digits
        # Without the key or the letter that it quotes.
        what = re.split(r"['\"(\[]", str(error))[0].strip()
        place = re.search(r"\((at [\w ,]+)\)$", str(error))
        raise Unreadable(f"not TOML: {what} {place[1] if place else ''}".strip()) from None
    _check_sizes(found)
    return found


def _check_sizes(table: dict[str, Any]) -> None:
    """Refuses what could be read, but neither be shown nor written again."""
    below: list[tuple[Any, int]] = [(table, 0)]
    while below:
        value, depth = below.pop()
        if depth > MOST_PARTS:
            raise Unreadable("not TOML: it is nested too deeply")
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise Unreadable("not TOML: a number is too long")
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            below += [(each, depth + 1) for each in inner]


SEAL = re.compile(rb'"check": "crc32 ([0-9a-f]{8})"\s*}\s*$')
"""The last field of a sealed JSON object: a checksum of its text, in which its digits are zeros."""
SEAL_BYTES = 40
"""The end of a text in which its seal is."""
_ZEROS = "crc32 00000000"


def sealed(content: Mapping[str, Any], indent: int | None = None) -> str:
    """A JSON object with a checksum of itself, which `parse_json` checks and takes off.

    >>> sealed({"epoch": 1})
    '{"epoch": 1, "check": "crc32 457a5654"}'
    >>> parse_json(sealed({"epoch": 1}).replace("1", "2", 1))
    Traceback (most recent call last):
    parley.files.Unreadable: it does not match its checksum
    """
    text = json.dumps({**content, "check": _ZEROS}, indent=indent)
    before, _, after = text.rpartition(_ZEROS)
    return f"{before}crc32 {zlib.crc32(text.encode()):08x}{after}"


def is_sealed(text: bytes) -> bool:
    """Whether a JSON text has a checksum, or what a damaged bit has made of one."""
    end = text[-SEAL_BYTES:]
    return b'"check": ' in end or b"crc32" in end


def _check_seal(text: bytes) -> None:
    text = text.removesuffix(b"\n")
    found = SEAL.search(text, max(0, len(text) - SEAL_BYTES))
    if found is None:
        raise Unreadable("its checksum is damaged")
    at, end = found.span(1)
    if zlib.crc32(b"%b00000000%b" % (text[:at], text[end:])) != int(found[1], 16):
        raise Unreadable("it does not match its checksum")


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds; one with a checksum must match it."""
    content = text.encode() if isinstance(text, str) else text
    if not is_sealed(content):
        return _loaded(text)
    _check_seal(content)
    found = _loaded(text)
    found.pop("check")
    return found


def _loaded(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise Unreadable("not JSON: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON at line {error.lineno}, column {error.colno}") from None
    except ValueError:  # also of numbers with thousands of digits
        raise Unreadable("not JSON") from None


def check_text(name: str, value: str) -> None:
    """Refuses a text that is too long, or not printable."""
    if len(value) > LONGEST:
        raise BadValue(name, value, f"at most {LONGEST} characters", f"it has {len(value)}")
    if not value.isprintable():
        raise BadValue(name, value, "text without control characters")


def check_option(name: str, value: int | float | str | bool) -> None:
    """Refuses an option of a model or a dataset that is out of bounds."""
    if isinstance(value, str):
        check_text(name, value)
    elif not abs(value) <= MOST_OPTION:
        raise BadValue(name, value, f"a number from -{MOST_OPTION} to {MOST_OPTION}")


def user_path(text: str | Path) -> Path:
    """A path as people write it: ``~`` is a home folder, if there is such a user.

    >>> user_path("~nobody-of-that-name/data")
    PosixPath('~nobody-of-that-name/data')
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def path_in(spec: str) -> str | None:
    """The path of the file that a topology, partition or network refers to, if any.

    >>> path_in("spanning-tree:file:graph.txt"), path_in("ring")
    ('graph.txt', None)
    """
    found = re.fullmatch(r"(?:spanning-tree:)*(?:file|schedule):(.+)", spec.strip())
    return found[1] if found else None


def anchored(options: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The options that name files by relative paths, resolved against this folder.

    >>> anchored({"topology": "file:graph.txt", "partition": "iid"}, Path("runs"))
    {'topology': 'file:runs/graph.txt'}
    """
    changed = {}
    for field in ("topology", "partition", "links"):
        spec = options.get(field)
        if isinstance(spec, str) and (path := path_in(spec)) is not None:
            changed[field] = spec.removesuffix(path) + str(folder / path)
    weights = options.get("init")
    if isinstance(weights, str) and weights and not weights.startswith("hf:"):
        changed["init"] = str(folder / weights)
    return changed


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
    """Replaces `path` with what is written to `temporary` in this context, on disk.

    If writing fails, `path` stays as it was and nothing is left of the other. The file may be read
    and written by whom the umask says, even if a library made it for the user alone.
    """
    try:
        temporary.unlink(missing_ok=True)
        temporary.touch()
        mode = temporary.stat().st_mode
        yield
        if temporary.stat().st_mode != mode:
            temporary.chmod(stat.S_IMODE(mode))
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
