"""Decodes images from untrusted sources: anything that is not an image, damaged or enormous is
refused by name."""

import io
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

MOST_PIXELS = 50_000_000
"""Pixels of the largest image, before and after scaling."""
MOST_BYTES = 256 << 20
"""Bytes of the largest file."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""What is decoded. Pillow knows others, some of which it hands to other programs."""


class NoImage(ValueError):
    """Why it cannot be decoded."""


class TooSmall(ValueError):
    """An image with fewer pixels than the square that is to be cut out of it."""

    def __init__(self, image: Image.Image) -> None:
        width, height = image.size
        super().__init__(f"{width} x {height} pixels")
        self.valid = f"at most {min(image.size)}; or data.resize, which scales images first"


def opened(encoded: Any) -> Image.Image:
    """A whole image, grey or RGB, from the table of ``bytes`` and ``path`` that a dataset stores.

    >>> opened({"bytes": b"text", "path": "a.png"})
    Traceback (most recent call last):
    parley.data.images.NoImage: not an image
    """
    content = _content(encoded)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(content), formats=FORMATS)
        check_size(*image.size)  # before a pixel is decoded
        image.load()
        if image.mode.startswith(("I", "F")):
            # Pillow would cut all values off at 255, and which range matters is not known here.
            raise NoImage("more than 8 bits per pixel; scale its values to 0..255 before")
        if image.mode not in ("L", "RGB"):
            image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    except NoImage:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise NoImage(f"more than {MOST_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        raise NoImage("not an image") from None
    except Exception as error:  # every format's reader has its own
        raise NoImage("truncated or damaged") from error
    return image


def check_size(width: int, height: int) -> None:
    """Refuses an image that is too large to be decoded."""
    if width * height > MOST_PIXELS:
        raise NoImage(f"{width} x {height} are more than {MOST_PIXELS:,} pixels")


def squared(image: Image.Image, shorter: int, side: int) -> Image.Image:
    """Scales the image until its shorter side is `shorter` pixels, unless that is 0; then its
    central square of `side`."""
    width, height = image.size
    if min(width, height) < side and not shorter:
        raise TooSmall(image)
    if shorter and min(width, height) != shorter:
        # Cut off rather than rounded, as torchvision does.
        width, height = (max(shorter, shorter * s // min(image.size)) for s in image.size)
        check_size(width, height)  # a line of a million pixels would become an enormous one
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return image.crop((left, top, left + side, top + side))


def pixels(image: Image.Image) -> NDArray[np.uint8]:
    """One image as [h, w, 1 or 3]."""
    found: NDArray[np.uint8] = np.asarray(image)
    return found if found.ndim == 3 else found[:, :, None]


def name_of(encoded: Any) -> str:
    """The last part of the path that an image came from, if it has one."""
    path = encoded.get("path") if isinstance(encoded, dict) else None
    return Path(path).name if isinstance(path, str) else ""


def _content(encoded: Any) -> bytes:
    if not isinstance(encoded, dict):
        raise NoImage("missing")
    content, path = encoded.get("bytes"), encoded.get("path")
    if isinstance(content, bytes) and content:
        return content
    if not isinstance(path, str) or "\0" in path:
        raise NoImage("missing")
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise NoImage("not a regular file")
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NoImage(error.strerror or "unreadable") from None
    if len(content) > MOST_BYTES:
        raise NoImage(f"more than {MOST_BYTES >> 20} MB")
    return content


def save_grey(values: NDArray[np.uint8], path: Path) -> None:
    """Writes [h, w] values as a PNG, whatever the name of the file ends in."""
    Image.fromarray(values).save(path, format="PNG")
