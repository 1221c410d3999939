"""How a file becomes an input of a model, so that others than the run can prepare theirs alike.

Axes: n inputs, c h w channels, rows, columns, t tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.data import images, tables
from parley.data import text as tokens
from parley.data.tables import Form
from parley.errors import BadValue, needed
from parley.files import Unreadable, read_text, regular

ARRAYS = (".npy", ".npz")
MOST_INPUTS = 1_000_000
"""Inputs of one array or file of texts."""
MOST_UNZIPPED = 2 << 30
"""Bytes of an array that a zip file may unfold to."""


@dataclass(frozen=True)
class Preparation:
    """What happens to a file before its values are normalised; nothing by default."""

    resize: int = 0
    """Images are scaled until their shorter side has this many pixels; 0: they must fit."""
    crop: int = 0
    """Then their central square with this side is used; 0: all of the image."""
    tokenizer: str = ""
    """For text: the tokenizer, in the JSON of the library `tokenizers`."""
    table: Form | None = None
    """For tables: what becomes of each column."""


AS_IS = Preparation()


@dataclass(frozen=True)
class Expected:
    """What a model takes: raw inputs, before they are normalised."""

    shape: tuple[int, ...]
    dtype: str
    """uint8 (images), float32, or int32 and int64 (token IDs)."""
    preparation: Preparation = AS_IS
    shorter: bool = False
    """Whether rows of fewer tokens fit as well, as they do a language model."""

    @property
    def tokens(self) -> bool:
        """Whether the inputs are token IDs."""
        return self.dtype in ("int32", "int64")

    def read(self, given: Sequence[str]) -> tuple[list[str], Tensor]:
        """Files and texts as raw inputs [n, ...], and what to call each of them."""
        names: list[str] = []
        found: list[Tensor] = []
        for one in given:
            if one.endswith(ARRAYS):
                part = self._array(Path(one))
                labels = [one] if len(part) == 1 else [f"{one}[{i}]" for i in range(len(part))]
            elif one.endswith(tables.FILES):
                part = self._table(Path(one))
                labels = [f"{one}[{i}]" for i in range(len(part))]
            elif self.tokens:
                labels = self._texts(one)
                part = self._encoded(labels)
            else:
                labels, part = [one], self._image(Path(one))
            names += labels
            found.append(part)
        for one, part in zip(given, found, strict=True):
            if part.shape[1:] != found[0].shape[1:]:
                because = f"its rows have {part.shape[1]} tokens"
                valid = f"rows as long as those of {given[0]}: {found[0].shape[1]} tokens"
                raise self._wrong(one, valid, because)
        return names, torch.cat(found)

    def _array(self, path: Path) -> Tensor:
        try:
            with regular(path) as file:
                zipped = is_zipfile(file)
                file.seek(0)
                made = self._unzipped(path, file) if zipped else self._values(path, file)
        except BadValue:
            raise
        except Unreadable as error:
            raise self._wrong(str(path), "a readable file", str(error)) from None
        except Exception:  # each of NumPy, zip and its ways to compress has its own
            valid = "a NumPy array of numbers"
            raise self._wrong(str(path), valid, "truncated, damaged or another format") from None
        values = torch.from_numpy(made).to(getattr(torch, self.dtype))
        if values.is_floating_point() and not bool(values.isfinite().all()):
            raise self._wrong(str(path), "finite numbers", "some are NaN or infinite")
        return values

    def _unzipped(self, path: Path, file: BinaryIO) -> NDArray[Any]:
        with ZipFile(file) as held:
            names = held.namelist()
            if len(names) != 1:
                because = f"it has {len(names)}"
                raise self._wrong(str(path), "an .npz file with one array", because)
            if held.getinfo(names[0]).file_size > MOST_UNZIPPED:
                valid = f"at most {MOST_UNZIPPED >> 20} MB; an .npy file may be larger"
                raise self._wrong(str(path), valid, "the array in it is larger")
            with held.open(names[0]) as entry:
                return self._values(path, entry)

    def _values(self, path: Path, file: IO[bytes]) -> NDArray[Any]:
        """The array behind its header, which is checked before anything else is read: it may ask
        for any amount of memory, or hold pickled objects."""
        major, _ = np.lib.format.read_magic(file)
        header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        shape, by_columns, dtype = header[major](file)
        self._check_kind(path, dtype)
        one = shape == self.shape or (self.shorter and len(shape) == 1)
        shape = (1, *shape) if one else shape
        fits = shape[1:] == self.shape
        if self.shorter and len(shape) == 2:
            fits = 1 <= shape[1] <= self.shape[0]
        if not fits or not 1 <= shape[0] <= MOST_INPUTS:
            fewer = ", or with fewer tokens" if self.shorter else ""
            valid = f"an array of shape {list(self.shape)}, or of several such inputs{fewer}"
            raise self._wrong(str(path), valid, f"its shape is {list(shape)}")
        content = file.read(math.prod(shape) * dtype.itemsize)
        values: NDArray[Any] = np.frombuffer(content, dtype)
        if by_columns:
            values = values.reshape(shape[::-1]).transpose()
        whole = np.ascontiguousarray(values.reshape(shape))
        return whole.astype(dtype.newbyteorder("="))

    def _check_kind(self, path: Path, dtype: "np.dtype[Any]") -> None:
        whole = dtype.kind in "iu"
        fits = {"uint8": dtype == np.uint8, "float32": dtype.kind in "fiub"}
        if not fits.get(self.dtype, whole):
            kind = "Python objects" if dtype.hasobject else str(dtype)[:40]
            raise self._wrong(str(path), f"values of type {self.dtype}", f"they are {kind}")

    def _table(self, path: Path) -> Tensor:
        if self.preparation.table is None:
            raise self._wrong(str(path), "an array or an image", "the model does not take tables")
        if not path.is_file():
            raise self._wrong(str(path), "a .csv or .parquet file", "no such file")
        return self.preparation.table.inputs(tables.opened(path, str(path)), str(path))

    def _image(self, path: Path) -> Tensor:
        if len(self.shape) != 3 or self.shape[0] not in (1, 3):
            valid = f"an .npy or .npz array of shape {list(self.shape)}"
            raise self._wrong(str(path), valid, "the model does not take images")
        if not path.is_file():
            raise self._wrong(str(path), "an image, or an .npy or .npz array", "no such file")
        prepared = self.preparation
        try:
            image = images.opened({"bytes": None, "path": str(path)})
            if prepared.resize or prepared.crop:
                image = images.squared(image, prepared.resize, prepared.crop or prepared.resize)
        except images.NoImage as error:
            raise self._wrong(str(path), "an image that can be decoded", str(error)) from None
        except images.TooSmall as error:
            valid = f"an image of at least {prepared.crop} x {prepared.crop} pixels"
            raise self._wrong(str(path), valid, f"it has {error}") from None
        channels, height, width = self.shape
        if image.size != (width, height):
            valid = f"an image of {width} x {height} pixels; --resize scales and crops others"
            raise self._wrong(str(path), valid, "it has {} x {}".format(*image.size))
        if channels == 1 and image.mode != "L":
            raise self._wrong(str(path), "a grey image", "it has colours")
        pixels = torch.from_numpy(images.pixels(image).transpose(2, 0, 1).copy())
        pixels = pixels.expand(channels, height, width)[None]
        return pixels if self.dtype == "uint8" else pixels.float() / 255

    def _texts(self, given: str) -> list[str]:
        """The lines of a file, or the text itself."""
        try:
            is_file = Path(given).is_file()
        except OSError:  # longer than the name of a file may be
            is_file = False
        if not is_file:
            return [given]
        try:
            lines = [line for line in read_text(Path(given)).splitlines() if line.strip()]
        except Unreadable as error:
            raise self._wrong(given, "a file with one text in each line", str(error)) from None
        if not lines:
            raise self._wrong(given, "a file with one text in each line", "it has none")
        return lines

    def _encoded(self, texts: list[str]) -> Tensor:
        if not self.preparation.tokenizer:
            valid = "an .npy or .npz array of token IDs"
            raise self._wrong(texts[0], valid, "the run has no tokenizer: its data were token IDs")
        library = needed("tokenizers", "text", "input", texts[0])
        tokenizer = library.Tokenizer.from_str(self.preparation.tokenizer)
        return tokens.encode(tokenizer, texts, self.shape[0])

    def _wrong(self, value: str, valid: str, because: str) -> BadValue:
        return BadValue("input", value, valid, because)
