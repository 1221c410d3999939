"""Reading text files from untrusted sources: of bounded size, and never a device.

What is wrong with a file is said without quoting it: errors are passed on to other hosts.
"""

import json
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

LARGEST = 64 << 20
"""Bytes of the largest file of a graph or a partition."""
SMALL = 1 << 20
"""Bytes of the largest experiment, or other file of settings."""


class Unreadable(ValueError):
    """Why a file cannot be read; the message quotes nothing of it."""


def read_text(path: Path, most: int = LARGEST, pipe: bool = False) -> str:
    """The text of a file of at most so many bytes; `pipe` lets a pipe pass for one.

    >>> read_text(Path("/dev/zero"))
    Traceback (most recent call last):
    parley.reading.Unreadable: not a regular file
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not (pipe and stat.S_ISFIFO(mode)):
            raise Unreadable("Is a directory" if stat.S_ISDIR(mode) else "not a regular file")
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise Unreadable(f"it has more than {most >> 20} MB")
        return content.decode()
    except UnicodeDecodeError:
        raise Unreadable("not text in UTF-8") from None
    except OSError as error:
        raise Unreadable(error.strerror or "it cannot be read") from None
    except Unreadable:
        raise
    except ValueError:  # a path with a zero byte in it
        raise Unreadable("not the name of a file") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Unreadable("not TOML: it is nested too deeply") from None
    except ValueError as error:  # also of numbers with thousands of digits
        # Without the key or the letter that it quotes.
        what = re.split(r"['\"(\[]", str(error))[0].strip()
        place = re.search(r"\((at [\w ,]+)\)$", str(error))
        raise Unreadable(f"not TOML: {what} {place[1] if place else ''}".strip()) from None


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds."""
    try:
        return json.loads(text)
    except RecursionError:
        raise Unreadable("not JSON: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON at line {error.lineno}, column {error.colno}") from None
    except ValueError:  # also of numbers with thousands of digits
        raise Unreadable("not JSON") from None
