"""How things are damaged."""

import os
import random
from pathlib import Path
from typing import Any

TOKENS = (
    *(b"NaN", b"Infinity", b"-1", b"1e999", b"1e308", b"0", b"null", b"true", b"[]", b"{}", b'""'),
    *(b"9" * 400, b"9" * 5000, b"[" * 5000, b'{"a":' * 3000, b"\0", b"\xff\xfe", b"\n", b"round\n"),
    *(b'"' + b"x" * 5000 + b'"', b"..", b"/dev/zero", b"->", b" ", b"#", b"=", b"a.b.c = 1\n"),
)
"""What parsers trip over."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**23, 10**400, 0.5, -0.0),
    *(1e-300, 1e300, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", "x", "nan", "\0", "\x1b[31m", "é" * 50, "x" * 5000, "own", "file:", "file:/dev/zero"),
    *("9" * 5000, "loss:patience=inf", "accuracy>=nan", "cosine:warmup=1e20", "linear:to=nan"),
    *("exponential:1e308", "delay=1e308", "delay=0.1,bandwidth=1e-300", "1,nan", "1e308,1e308"),
    *([], [1], ["a"], [[]], {}, {"name": 3}, {"a": {"b": []}}, (1, 2), b"x"),
)
"""What a field may be given by mistake."""


def bytes_of(source: random.Random, content: bytes) -> bytes:
    """The content with one to four things wrong."""
    made = bytearray(content)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(made) + 1)
        match source.randrange(6):
            case 0 if made:
                made[at % len(made)] ^= 1 << source.randrange(8)
            case 1:
                del made[at:]
            case 2:
                made[at:at] = source.choice(TOKENS)
            case 3:
                end = min(len(made), at + source.randint(1, 20))
                made[at:end] = source.choice(TOKENS)
            case 4:
                made[at:at] = made[at : at + source.randint(1, 200)]
            case _:
                del made[at : at + source.randint(1, 50)]
    return bytes(made)


def value_of(source: random.Random, value: Any) -> Any:
    """The same table or list with something in it replaced, dropped or added."""
    if isinstance(value, dict) and value and source.random() < 0.9:
        key = source.choice(sorted(value))
        match source.randrange(4):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, key: source.choice(VALUES)}
            case _:
                return {**value, key: value_of(source, value[key])}
    if isinstance(value, list) and value and source.random() < 0.9:
        at = source.randrange(len(value))
        match source.randrange(4):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value[:at], source.choice(VALUES), *value[at + 1 :]]
            case _:
                return [*value[:at], value_of(source, value[at]), *value[at + 1 :]]
    return source.choice(VALUES)


SPECIAL = {
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "an enormous file": lambda path: _enormous(path),
}
"""What may stand in the place of a file, and how it is made."""


def _enormous(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 36)


def replaced(source: random.Random, path: Path) -> None:
    """Puts something else in the place of a file."""
    path.unlink()
    SPECIAL[source.choice(sorted(SPECIAL))](path)
