"""Images that stay on disk: read from memory-mapped Arrow and decoded when a batch needs them.

A thread decodes the next batch while the current one is computed. Axes: n samples, c h w channels,
rows, columns."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.data.decode import (
    Recipe,
    columns_of,
    decoded,
    different_sizes,
    groups_of,
    splits_of,
    targets_of,
    without_test,
)
from parley.data.preparation import Preparation
from parley.data.samples import Data, Samples
from parley.data.transforms import Transform
from parley.errors import BadValue

CHUNK = 32
"""Images that are decoded at once in the first pass over them."""


class _Table(NamedTuple):
    """Some rows of a dataset, in the form that `decoded` reads."""

    table: Any

    def with_format(self, _: str) -> "_Table":
        return self

    def iter(self, batch_size: int) -> list[Any]:
        return [self.table]


class Column:
    """The images of a dataset, and what becomes of them."""

    def __init__(self, dataset: Any, column: str, name: str, recipe: Recipe) -> None:
        self.rows = dataset.with_format("arrow").select_columns([column])
        self.column = column
        self.name = name
        self.source = recipe.source
        self.channels = 1

    def decoded(self, places: NDArray[np.int64]) -> Tensor:
        """uint8 [n, c, h, w]; a place that occurs again is decoded once."""
        once, again = np.unique(places, return_inverse=True)
        table = _Table(self.rows[once.tolist()])
        [found] = decoded([table], self.column, self.name, self.source)
        if found.shape[1] < self.channels:  # a greyscale image fills all channels
            found = found.expand(-1, self.channels, -1, -1)
        return found[torch.from_numpy(again.reshape(-1))]

    def chunks(self) -> Iterator[Tensor]:
        """All images, a few at a time."""
        for start in range(0, len(self.rows), CHUNK):
            yield self.decoded(np.arange(start, min(start + CHUNK, len(self.rows))))


class Rows:
    """Some images of a column, in some order: as much of a tensor as samples need."""

    dtype = torch.uint8

    def __init__(self, column: Column, places: NDArray[np.int64], shape: Sequence[int]) -> None:
        self.column = column
        self.places = places
        self.shape = torch.Size([len(places), *shape])
        self.device = torch.device("cpu")
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: tuple[NDArray[np.int64], Future[Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> "Rows":
        """Other rows; nothing is decoded."""
        places = self.places[index.numpy() if isinstance(index, Tensor) else index]
        return Rows(self.column, places, self.shape[1:])

    def is_floating_point(self) -> bool:
        """They are bytes."""
        return False

    def to(self, device: torch.device | str) -> "Rows":
        """The same, decoded to that device."""
        other = Rows(self.column, self.places, self.shape[1:])
        other.device = torch.device(device)
        return other

    def index_select(self, _: int, index: Tensor) -> Tensor:
        """The images themselves."""
        places = self.places[index.cpu().numpy()]
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.array_equal(ahead[0], places):
            return ahead[1].result().to(self.device)
        return self.column.decoded(places).to(self.device)

    def begin(self, index: NDArray[np.int64]) -> None:
        """Decodes what `index_select` will be asked for next, in the background."""
        self._thread = self._thread or ThreadPoolExecutor(1, "parley-data")
        places = self.places[index]
        self._ahead = (places, self._thread.submit(self.column.decoded, places))


def in_memory(samples: Samples) -> Samples:
    """The samples with all their inputs decoded."""
    rows: Any = samples.inputs
    if not isinstance(rows, Rows):
        return samples
    return Samples(rows.column.decoded(rows.places), samples.targets)


def concatenated(parts: Sequence[Tensor]) -> Tensor:
    """The inputs of several agents one after the other."""
    rows: Any = parts[0]
    if not isinstance(rows, Rows):
        return torch.cat(list(parts))
    places = np.concatenate([cast(Any, part).places for part in parts])
    return cast(Tensor, Rows(rows.column, places, rows.shape[1:]))


def load_mapped(place: Path | str, looked: str, recipe: Recipe, needs_test: bool) -> Data:
    """A dataset whose training images stay on disk, with test images in memory.

    All images are decoded once here: for their size and their mean and standard deviation.
    """
    name = str(place)
    if recipe.options.target or (isinstance(place, Path) and place.is_file()):
        raise BadValue("data.mapped", True, "false, for tables", f"{name} is a table")
    train, test = splits_of(place, looked, recipe)
    if needs_test and not len(test):
        raise without_test(name)
    columns = columns_of(train, name, recipe.source.label, recipe.source.input)
    if columns.are_texts:
        raise BadValue("data.mapped", True, "false, for texts", f"{name} has texts")
    targets, class_names = targets_of((train, test), columns.label, name)
    column = Column(train, columns.inputs, name, recipe)
    sizes: dict[tuple[int, int], str] = {}
    sums, squares = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for number, images in enumerate(column.chunks()):
        column.channels = max(column.channels, images.shape[1])
        sizes.setdefault((images.shape[3], images.shape[2]), f"training image {number * CHUNK}")
        wide = images.expand(-1, 3, -1, -1).to(torch.int64)
        sums += wide.sum((0, 2, 3)).numpy()
        squares += wide.square().sum((0, 2, 3)).numpy()
    if len(sizes) > 1:
        raise different_sizes(name, sizes)
    [(width, height)] = sizes
    held = decoded([_Table(column.rows[:0]), test], columns.inputs, name, recipe.source)[1]
    column.channels = max(column.channels, held.shape[1] if len(held) else 1)
    shape = (column.channels, height, width)
    held = held.expand(-1, column.channels, -1, -1) if len(held) else held.new_empty(0, *shape)
    if held.shape[1:] != shape:
        found = {
            (width, height): "training image 0",
            (held.shape[3], held.shape[2]): "test image 0",
        }
        raise different_sizes(name, found)
    pixels = len(train) * height * width
    mean = sums[: shape[0]] / pixels / 255
    std = np.sqrt(np.maximum(squares[: shape[0]] / pixels / 255**2 - mean**2, 0))
    numbers = [tuple(round(float(v), 6) for v in values) for values in (mean, std)]
    standard = Transform(numbers[0], tuple(v or 1.0 for v in numbers[1]))
    rows = cast(Tensor, Rows(column, np.arange(len(train)), shape))
    return Data(
        name,
        Samples(rows, targets[0]),
        Samples(held.contiguous(), targets[1]),
        class_names,
        recipe.source.transform or standard,
        Preparation(recipe.source.resize, recipe.source.test_crop),
        groups_of(train, recipe, name) if recipe.group else None,
    )
