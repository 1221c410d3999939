"""Images that are none, cut short, or made to fill the memory: each is named and refused."""

import io
import resource
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from parley.data import images
from parley.data.decode import Source, decoded
from parley.errors import BadValue


def encoded(pixels: Any, form: str = "PNG", dtype: Any = np.uint8) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=dtype)).save(out, form)
    return out.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header promises so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    parts = chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


class Rows:
    """As much of a Hugging Face dataset as `decoded` asks for."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def with_format(self, form: str) -> "Rows":
        return self

    def iter(self, batch_size: int) -> list[dict[str, "Rows"]]:
        return [{"picture": self}]

    def to_pylist(self) -> list[Any]:
        return self.values


GOOD = {"bytes": encoded(np.zeros((8, 8, 3))), "path": "good.png"}
WHOLE = encoded(np.random.default_rng(0).integers(0, 256, (32, 32, 3)))
DEEP = encoded(np.arange(64).reshape(8, 8) * 1000, dtype=np.uint16)
BAD: list[tuple[Any, str]] = [
    ({"bytes": DEEP, "path": "bad.png"}, r"bad.png: more than 8 bits per pixel; scale"),
    ({"bytes": b"nothing but text", "path": "bad.png"}, "image 1 bad.png: not an image"),
    ({"bytes": WHOLE[: len(WHOLE) // 2], "path": "bad.png"}, "bad.png: truncated or damaged"),
    ({"bytes": bomb(30_000, 30_000), "path": "bad.png"}, "bad.png: more than 50,000,000 pixels"),
    ({"bytes": bomb(9_000, 9_000), "path": "bad.png"}, "9000 x 9000 are more than 50,000,000"),
    ({"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "path": "bad.png"}, "bad.png"),
    ({"bytes": None, "path": "/dev/zero"}, "image 1 zero: not a regular file"),
    ({"bytes": None, "path": "/nowhere/bad.png"}, "image 1 bad.png: No such file"),
    ({"bytes": None, "path": None}, "image 1: missing"),
    ({"bytes": b"", "path": "a\0b"}, "missing"),
    (None, "image 1: missing"),
]


@pytest.mark.parametrize(("bad", "words"), BAD)
def test_what_is_no_image_is_named(bad: Any, words: str) -> None:
    with pytest.raises(BadValue) as caught:
        decoded([Rows([GOOD, bad])], "picture", "zoo")
    assert str(caught.value).startswith("data: 'zoo' is not valid (training image 1")
    assert words in str(caught.value)


def test_test_images_are_told_apart() -> None:
    with pytest.raises(BadValue, match=r"test image 0 a\.jpg: not an image"):
        decoded([Rows([GOOD]), Rows([{"bytes": b"x", "path": "cats/a.jpg"}])], "picture", "zoo")


def test_a_line_of_pixels_is_not_blown_up() -> None:
    """One pixel high and 100,000 wide: scaled to 256 rows that would be 6.5 thousand million."""
    line = {"bytes": encoded(np.zeros((1, 100_000))), "path": "line.png"}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadValue, match=r"line.png: 25600000 x 256 are more than"):
        decoded([Rows([line])], "picture", "zoo", Source("", None, resize=256, enlarge=True))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kB, or less


def test_a_file_is_read_and_is_not_too_long(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(WHOLE)
    assert images.opened({"bytes": None, "path": str(path)}).size == (32, 32)
    monkeypatch.setattr(images, "MOST_BYTES", 100)
    with pytest.raises(images.NoImage, match="MB"):
        images.opened({"bytes": None, "path": str(path)})


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_formats(form: str) -> None:
    assert images.opened({"bytes": encoded(np.zeros((4, 6, 3)), form), "path": ""}).size == (6, 4)


def test_a_grey_image_stays_grey_whatever_its_mode() -> None:
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    for mode in ("L", "LA"):
        out = io.BytesIO()
        grey.convert(mode).save(out, "PNG")
        image = images.opened({"bytes": out.getvalue(), "path": "a.png"})
        assert image.mode == "L" and np.array_equal(np.asarray(image), np.asarray(grey))
