"""How a file becomes an input of a model, so that others than the run can prepare theirs alike.

Axes: n inputs, c h w channels, rows, columns, t tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.data import hub, images
from parley.data import text as tokens
from parley.errors import BadValue
from parley.reading import Unreadable, read_text

ARRAYS = (".npy", ".npz")
MOST_INPUTS = 1_000_000
"""Inputs of one array or file of texts."""


@dataclass(frozen=True)
class Preparation:
    """What happens to a file before its values are normalised; nothing by default."""

    resize: int = 0
    """Images are scaled until their shorter side has this many pixels; 0: they must fit."""
    crop: int = 0
    """Then their central square with this side is used."""
    tokenizer: str = ""
    """For text: the tokenizer, in the JSON of the library `tokenizers`."""


AS_IS = Preparation()


@dataclass(frozen=True)
class Expected:
    """What a model takes: raw inputs, before they are normalised."""

    shape: tuple[int, ...]
    dtype: str
    """uint8 (images), float32, or int32 and int64 (token IDs)."""
    preparation: Preparation = AS_IS

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
            elif self.tokens:
                labels = self._texts(one)
                part = self._encoded(labels)
            else:
                labels, part = [one], self._image(Path(one))
            names += labels
            found.append(part)
        return names, torch.cat(found)

    def _array(self, path: Path) -> Tensor:
        try:
            with path.open("rb") as file:  # never a pickle: allow_pickle is off
                made: Any = np.load(file, allow_pickle=False)
                if hasattr(made, "files"):
                    if len(made.files) != 1:
                        held = ", ".join(made.files) or "none"
                        raise self._wrong(
                            str(path), "an .npz file with one array", f"it has {held}"
                        )
                    made = made[made.files[0]]
        except OSError as error:
            raise self._wrong(str(path), "a readable file", error.strerror or str(error)) from None
        except (ValueError, EOFError, KeyError) as error:
            why = (str(error).splitlines() or ["damaged"])[0]
            raise self._wrong(str(path), "a NumPy array of numbers", why) from None
        if made.shape == self.shape:
            made = made[None]
        if made.shape[1:] != self.shape or not 1 <= len(made) <= MOST_INPUTS:
            valid = f"an array of shape {list(self.shape)}, or of several such inputs"
            raise self._wrong(str(path), valid, f"its shape is {list(made.shape)}")
        whole = made.dtype.kind in "iu"
        fits = {"uint8": made.dtype == np.uint8, "float32": made.dtype.kind in "fiub"}
        if not fits.get(self.dtype, whole):
            raise self._wrong(str(path), f"values of type {self.dtype}", f"they are {made.dtype}")
        return torch.from_numpy(np.ascontiguousarray(made)).to(getattr(torch, self.dtype))

    def _image(self, path: Path) -> Tensor:
        if len(self.shape) != 3 or self.shape[0] not in (1, 3):
            valid = f"an .npy or .npz array of shape {list(self.shape)}"
            raise self._wrong(str(path), valid, "the model does not take images")
        if not path.is_file():
            raise self._wrong(str(path), "an image, or an .npy or .npz array", "no such file")
        prepared = self.preparation
        try:
            image = images.opened({"bytes": None, "path": str(path)})
            if prepared.resize:
                image = images.squared(image, prepared.resize, prepared.crop or prepared.resize)
        except images.NoImage as error:
            raise self._wrong(str(path), "an image that can be decoded", str(error)) from None
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
        library = hub.text_library("tokenizers", "input", texts[0])
        tokenizer = library.Tokenizer.from_str(self.preparation.tokenizer)
        return tokens.encode(tokenizer, texts, self.shape[0])

    def _wrong(self, value: str, valid: str, because: str) -> BadValue:
        return BadValue("input", value, valid, because)
