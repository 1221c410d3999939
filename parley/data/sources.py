"""Datasets by name or from the user, and the batches that each agent draws from its share.

Axes: A agents hosted here, B samples of a batch, n samples, c h w channels, rows, columns.

What an agent sees at a step depends on (seed, agent, step) alone: not on the worker it lives in,
nor on the agents that live there with it.
"""

import hashlib
import io
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from parley.data import hub
from parley.data import text as tokens
from parley.errors import BadValue, unknown_name

# Streams of random numbers: default_rng([seed, stream, agent, pass or step]).
_PERMUTATIONS, _AUGMENTATIONS, _SHARE = 1, 2, 5


@dataclass(frozen=True)
class Samples:
    """Inputs with their classes."""

    inputs: Tensor  # [n, ...]: uint8 images [n, c, h, w], float32, or int32/int64 (token numbers)
    targets: Tensor  # [n] int64

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: NDArray[np.int64] | Sequence[int]) -> "Samples":
        """The samples at these indices, in this order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return Samples(self.inputs[index], self.targets[index])


@dataclass(frozen=True)
class Transform:
    """What happens to raw inputs on their way into a model: augmentation, then normalisation.

    Augmentation is for training only and works on raw values, so that the border of a padded crop
    is black (0 before normalisation).
    """

    mean: tuple[float, ...] = ()
    """Per channel, of inputs scaled to 0..1; empty to leave values as they are."""
    std: tuple[float, ...] = ()
    """Per channel."""
    flip: bool = False
    """Whether half of the training images are mirrored left to right."""
    crop_padding: int = 0
    """Training images are padded by so many pixels and cut to their size at a random place."""
    resized_crop: int = 0
    """In place of that, a random part of each training image (8 to 100 % of its area, aspect ratio
    3:4 to 4:3) is scaled to a square of so many pixels."""

    def __post_init__(self) -> None:
        if self.crop_padding and self.resized_crop:
            raise ValueError("crop_padding and resized_crop exclude each other")

    @property
    def augments(self) -> bool:
        """Whether training inputs are changed at random."""
        return self.flip or self.crop_padding > 0 or self.resized_crop > 0

    def normalise(self, inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Raw inputs [..., c, h, w] to what a model takes; uint8 counts as 0..1.

        >>> Transform((0.5,), (0.5,)).normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
        """
        if inputs.dtype in (torch.int32, torch.int64):  # tokens: names, not magnitudes
            return inputs.to(torch.int64)
        scale = 1 / 255 if inputs.dtype == torch.uint8 else 1.0
        x = inputs.to(dtype)
        if not self.mean:
            return x * scale if scale != 1 else x
        # One multiplication and one subtraction per value: (x·scale - mean) / std.
        factor, shift = _line(self.mean, self.std, scale, x.device, dtype)
        return (x * factor if x is inputs else x.mul_(factor)).sub_(shift)

    def draw(
        self, rng: np.random.Generator, n: int, size: tuple[int, int] = (0, 0)
    ) -> NDArray[np.int64]:
        """The random numbers that augment n images of this size (height, width).

        [n, 3]: flip or not, top, left; for resized crops [n, 5]: also height and width of the part.
        """
        if self.resized_crop:
            flip = rng.integers(0, 2 if self.flip else 1, size=(n, 1))
            return np.concatenate([flip, _random_parts(rng, n, *size)], axis=1)
        place = 2 * self.crop_padding + 1
        return rng.integers(0, [2 if self.flip else 1, place, place], size=(n, 3))

    def augment(self, inputs: Tensor, draws: NDArray[np.int64]) -> Tensor:
        """Mirrors and crops raw images [n, c, h, w], each by its own row of draws."""
        flip, top, left, *size = torch.from_numpy(draws).to(inputs.device).unbind(1)
        x = inputs
        if self.resized_crop:
            x = _resized_parts(x, top, left, size[0], size[1], self.resized_crop)
        if self.flip:
            x = torch.where(flip.bool()[:, None, None, None], x.flip(-1), x)
        if self.crop_padding:
            height, width = x.shape[-2:]
            x = functional.pad(x, [self.crop_padding] * 4)
            windows = x.unfold(2, height, 1).unfold(3, width, 1)  # [n, c, top, left, h, w], a view
            x = windows[torch.arange(len(x), device=x.device), :, top, left]
        return x


@cache
def _line(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    scale: float,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Factor and shift that normalise, per channel."""
    mean_C11, std_C11 = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
    return (scale / std_C11).to(device, dtype), (mean_C11 / std_C11).to(device, dtype)


def _random_parts(rng: np.random.Generator, n: int, height: int, width: int) -> NDArray[np.int64]:
    """[n, 4]: top, left, height, width of random parts, drawn as torchvision draws them.

    Area and aspect ratio are drawn up to ten times until the part fits into the image; then the
    largest central part whose aspect ratio is allowed is taken.
    """
    tries = 10
    area = height * width * rng.uniform(0.08, 1.0, size=(n, tries))
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), size=(n, tries)))
    place = rng.random(size=(n, 2))
    widths = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    heights = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.argmax(axis=1)
    rows = np.arange(n)
    w, h = widths[rows, first], heights[rows, first]
    top = (place[:, 0] * (height - h + 1)).astype(np.int64)
    left = (place[:, 1] * (width - w + 1)).astype(np.int64)
    central_w = min(width, round(height * 4 / 3))
    central_h = min(height, round(width * 4 / 3))
    central = [(height - central_h) // 2, (width - central_w) // 2, central_h, central_w]
    some_fit = fits.any(axis=1, keepdims=True)
    return np.where(some_fit, np.stack([top, left, h, w], axis=1), central)


def _resized_parts(
    images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, side: int
) -> Tensor:
    """Every image's part, scaled to side x side as Pillow does it: bilinear, without aliasing.

    Rows, then columns are one matrix product each. Pillow's fixed-point weights in doubles leave
    nothing to rounding, so the result does not depend on the batch that an image is in.
    """
    is_bytes = images.dtype == torch.uint8
    across = _resize_weights(left, width, images.shape[-1], side, is_bytes)  # [n, side, w]
    down = _resize_weights(top, height, images.shape[-2], side, is_bytes)  # [n, side, h]
    if not is_bytes:
        x = images @ across[:, None].transpose(-1, -2).to(images.dtype)
        return down[:, None].to(images.dtype) @ x

    def rounded(x: Tensor) -> Tensor:
        return (x + 0.5).floor_().clamp_(0, 255)

    lines = images.double().flatten(1, 2)  # [n, c·h, w]: one product for all channels
    x = rounded(lines @ across.transpose(-1, -2)).unflatten(1, images.shape[1:3])
    return rounded(down[:, None] @ x).to(torch.uint8)


def _resize_weights(start: Tensor, size: Tensor, whole: int, side: int, fixed: bool) -> Tensor:
    """[n, side, whole]: how much of each pixel of a line is in each pixel of its resized part."""
    start, size = start.double()[:, None, None], size.double()[:, None, None]
    step = size / side
    reach = step.clamp(min=1)
    middle = (torch.arange(side, device=start.device).double()[:, None] + 0.5) * step
    pixel = torch.arange(whole, device=start.device).double() - start  # [n, 1, whole]
    weight = (1 - ((pixel - middle + 0.5) / reach).abs()).clamp_(min=0)
    weight *= (pixel >= 0) & (pixel < size)
    weight /= weight.sum(-1, keepdim=True)
    return (weight * 2**22 + 0.5).floor_() / 2**22 if fixed else weight


@dataclass(frozen=True)
class Data:
    """A dataset in memory: what is to be divided among the agents, and what they are tested on."""

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    transform: Transform


class Batch(NamedTuple):
    """One step's samples of all agents hosted by a worker."""

    inputs: Tensor  # [A, B, ...], normalised
    targets: Tensor  # [A, B]
    weights: Tensor  # [A, B]: 1/size for an agent's own samples, 0 for padding
    sizes: tuple[int, ...]  # [A]: how many samples are not padding
    agents: tuple[int, ...]  # [A]: their numbers on the graph
    step: int


class Batches:
    """The batches of the agents hosted by one worker.

    Each agent passes over its own samples again and again, in a new order each time; a pass ends
    with a short batch when the batch size does not divide the number of samples. Agents with few
    samples therefore start a new pass sooner than others.

    >>> samples = Samples(torch.arange(5.0)[:, None], torch.tensor([0, 1, 0, 1, 0]))
    >>> batches = Batches([samples], agents=[7], batch=4, transform=Transform(), seed=0)
    >>> [batches.at(step).sizes for step in range(4)]
    [(4,), (1,), (4,), (1,)]
    """

    def __init__(
        self,
        samples_per_agent: Sequence[Samples],
        agents: Sequence[int],
        batch: int,
        transform: Transform,
        seed: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if batch < 1:
            raise BadValue("batch", batch, "a whole number from 1")
        if not samples_per_agent or len(samples_per_agent) != len(agents):
            raise ValueError(f"{len(samples_per_agent)} datasets for {len(agents)} agents")
        for agent, samples in zip(agents, samples_per_agent, strict=True):
            if not len(samples):
                raise BadValue("data", f"agent {agent}", "at least one sample for every agent")
        # One tensor for all agents, so that one gather makes a step's inputs.
        self.inputs = torch.cat([samples.inputs for samples in samples_per_agent]).to(device)
        self.targets = torch.cat([samples.targets for samples in samples_per_agent]).to(device)
        self.agents = tuple(agents)
        self.batch = batch
        self.transform = transform
        self.seed = seed
        self.dtype = dtype
        self._stream: tuple[int, ...] = ()
        self._length_A = np.array([len(samples) for samples in samples_per_agent])
        self._start_A = np.cumsum(self._length_A) - self._length_A
        self._batches_A = -(-self._length_A // batch)
        # Every agent's samples in the order of its present pass, one agent after the other.
        self._order = np.empty(len(self.inputs), np.int64)
        self._order_of = np.split(self._order, self._start_A[1:])
        self._pass_A = np.full(len(agents), -1)

    def another(self, draw: int) -> "Batches":
        """The same samples in other orders: batches that are independent of these."""
        other = copy(self)
        other._stream = (draw,)
        other._order = np.empty_like(self._order)
        other._order_of = np.split(other._order, self._start_A[1:])
        other._pass_A = np.full_like(self._pass_A, -1)
        return other

    def at(self, step: int) -> Batch:
        """The batch of a step, whichever steps were asked for before."""
        index_AB, size_A = self._indices(step)
        agents, widest = index_AB.shape
        index = torch.from_numpy(index_AB.reshape(-1)).to(self.inputs.device)
        inputs = self.inputs.index_select(0, index)
        sizes = tuple(size_A.tolist())
        if self.transform.augments:
            draws = [
                _pad(self._draw(agent, step, size), widest)
                for agent, size in zip(self.agents, sizes, strict=True)
            ]
            inputs = self.transform.augment(inputs, np.concatenate(draws))
        inputs = self.transform.normalise(inputs, self.dtype)
        weights = torch.from_numpy((np.arange(widest) < size_A[:, None]) / size_A[:, None])
        return Batch(
            inputs=inputs.reshape(agents, widest, *inputs.shape[1:]),
            targets=self.targets.index_select(0, index).reshape(agents, widest),
            weights=weights.to(self.inputs.device, self.dtype),
            sizes=sizes,
            agents=self.agents,
            step=step,
        )

    def _indices(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each agent's samples of a step are in the common tensor, and how many."""
        pass_A, position_A = np.divmod(step, self._batches_A)
        for slot in np.flatnonzero(pass_A != self._pass_A).tolist():
            rng = self._rng(_PERMUTATIONS, self.agents[slot], int(pass_A[slot]))
            self._order_of[slot][:] = rng.permutation(len(self._order_of[slot]))
            self._order_of[slot] += self._start_A[slot]
        self._pass_A = pass_A
        size_A = np.minimum(self._length_A - self.batch * position_A, self.batch)
        first_A1 = (self._start_A + self.batch * position_A)[:, None]
        next_B = np.arange(size_A.max())
        place_AB = first_A1 + next_B
        if size_A.min() < len(next_B):
            # Padding repeats an agent's first sample: finite numbers, and weight 0.
            place_AB = np.where(next_B < size_A[:, None], place_AB, first_A1)
        return self._order[place_AB], size_A

    def _draw(self, agent: int, step: int, n: int) -> NDArray[np.int64]:
        height, width = self.inputs.shape[-2:]
        return self.transform.draw(self._rng(_AUGMENTATIONS, agent, step), n, (height, width))

    def _rng(self, stream: int, agent: int, number: int) -> np.random.Generator:
        return rng_of(self.seed, stream, agent, number, *self._stream)


def rng_of(*numbers: int) -> np.random.Generator:
    """The generator that ``np.random.default_rng(numbers)`` makes, in two thirds of the time."""
    if max(numbers) >= 2**32:
        return np.random.default_rng(numbers)
    return np.random.Generator(np.random.PCG64(np.array(numbers, dtype=np.uint32)))


def share_of(targets: Tensor, fraction: float, seed: int) -> NDArray[np.int64]:
    """The indices of a share of the samples, the same of every class, at least one of each.

    >>> targets = torch.tensor([0, 1] * 5)
    >>> targets[share_of(targets, 0.4, seed=0)].bincount().tolist()
    [2, 2]
    """
    if fraction == 1:
        return np.arange(len(targets))
    rng, classes = np.random.default_rng([seed, _SHARE]), targets.numpy()
    members = [np.flatnonzero(classes == c) for c in np.unique(classes)]
    kept = [rng.permutation(m)[: max(1, round(fraction * len(m)))] for m in members]
    return np.sort(np.concatenate(kept))


def hold_out(
    targets: Tensor, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of what is left, and of a share of every class that is held out.

    >>> left, held = hold_out(torch.tensor([0, 1] * 5), 0.4, seed=0)
    >>> len(left), len(held)
    (6, 4)
    """
    if fraction == 0:
        return np.arange(len(targets)), np.arange(0)
    rng, classes = np.random.default_rng([seed, _SHARE, 1]), targets.numpy()
    orders = [rng.permutation(np.flatnonzero(classes == c)) for c in np.unique(classes)]
    cuts = [(order, max(1, round(fraction * len(order)))) for order in orders]
    if any(cut == len(order) for order, cut in cuts):
        because = "a class has nothing left to train on"
        raise BadValue("validation", fraction, "a smaller share", because)
    left, held = ([o[c:] for o, c in cuts], [o[:c] for o, c in cuts])
    return np.sort(np.concatenate(left)), np.sort(np.concatenate(held))


def cut_own(
    samples: Sequence[Samples], test: Samples, fraction: float, validation: float, seed: int
) -> tuple[list[Samples], Samples]:
    """Agents' own data, each cut by itself, and what they are measured on.

    `fraction` is of each agent's samples; with `validation`, what is held out of each takes the
    place of the test samples.
    """
    kept = [s.take(share_of(s.targets, fraction, seed)) for s in samples]
    if not validation:
        return kept, test
    cuts = [hold_out(s.targets, validation, seed) for s in kept]
    held = joined([s.take(out) for s, (_, out) in zip(kept, cuts, strict=True)])
    return [s.take(left) for s, (left, _) in zip(kept, cuts, strict=True)], held


def steps_per_epoch(sizes: Sequence[int], batch: int) -> int:
    """Steps in which the agent with the most samples passes over them once.

    >>> steps_per_epoch([10_000] * 5, 32)  # CIFAR-10, 5 agents
    313
    """
    return _ceil_div(max(sizes), batch)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _pad(row: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    if len(row) == length:
        return row
    return np.concatenate([row, np.repeat(row[:1], length - len(row), axis=0)])


@dataclass(frozen=True)
class Source:
    """A row of the table of datasets: where it comes from and what is done to its inputs."""

    description: str
    hub: str | None
    """Its id on the Hugging Face hub, or None when it comes inside a package."""
    transform: Transform | None = None
    """None: normalise by mean and deviation of the training inputs."""
    local: tuple[str, ...] = ()
    """Folders below the data root to look in, in this order; none: the hub id."""
    config: str | None = None
    """Which of several variants on the hub."""
    label: str = ""
    """The column of classes; empty: the first."""
    resize: int = 0
    """Images are scaled until their shorter side has so many pixels, and cut to a central square;
    0 to leave them as they are."""
    test_crop: int = 0
    """The side of that square in the test data; in the training data it is `resize`."""
    enlarge: bool = False
    """Whether that may be done to images that are all smaller than `test_crop`."""


_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

SOURCES: dict[str, Source] = {
    "digits": Source("8×8 digits that come with scikit-learn: works offline", None),
    "fashion_mnist": Source(
        "28×28 clothes, zalando-datasets/fashion_mnist on the hub",
        "zalando-datasets/fashion_mnist",
        Transform((0.5,), (0.5,)),
    ),
    "cifar10": Source(
        "32×32 colour photographs, uoft-cs/cifar10 on the hub",
        "uoft-cs/cifar10",
        Transform((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), flip=True, crop_padding=4),
    ),
    "cifar100": Source(
        "32×32 colour photographs of 100 classes, uoft-cs/cifar100 on the hub",
        "uoft-cs/cifar100",
        Transform((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), flip=True, crop_padding=4),
        label="fine_label",
    ),
    # As run, random parts are taken of whole photographs; here of their central squares, so that
    # the images are one tensor.
    "imagenette": Source(
        "photographs of 10 classes at 32×32, frgfm/imagenette on the hub",
        "frgfm/imagenette",
        Transform(*_IMAGENET, flip=True, resized_crop=32),
        config="160px",
        resize=32,
        test_crop=32,
    ),
    "imagenette-224": Source(
        "photographs of 10 classes at 224×224, frgfm/imagenette (full_size) on the hub",
        "frgfm/imagenette",
        Transform(*_IMAGENET, flip=True, resized_crop=224),
        local=("frgfm/imagenette-full_size", "frgfm/imagenette"),
        config="full_size",
        resize=256,
        test_crop=224,
    ),
    "ag_news": Source(
        "news in 4 classes as 128 tokens, fancyzhx/ag_news on the hub", "fancyzhx/ag_news"
    ),
}


@dataclass(frozen=True)
class Options:
    """How a dataset is read: `load`'s options."""

    folder: str = ""
    """Where a dataset with a name is read from instead of its own place: a stand-in for it."""
    label: str = ""
    """The column of classes; empty: the dataset's own, or the first."""
    tokenizer: str = ""
    """Of texts: train (made from the training texts), a folder with tokenizer.json or vocab.txt, or
    a hub id; empty: the one that belongs to the model, or train."""
    length: int = 128
    """Of texts: tokens of each, the rest is cut off."""
    vocabulary: int = 30_522
    """Of texts: the most tokens that a tokenizer made from them has (BERT's number)."""
    labels: str = ""
    """Of agents' own data: the names of all classes, comma-separated, where an agent may lack some
    of them."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """From a table of options, checked.

        >>> Options.of({"lenght": 64})
        Traceback (most recent call last):
        parley.errors.BadValue: data: 'lenght' is not valid (did you mean 'length'?); valid: folder,
        label, labels, length, tokenizer, vocabulary
        """
        known = {field.name: field for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise unknown_name("data", name, known)
            if known[name].type is str and not isinstance(value, str):
                raise BadValue(f"data.{name}", value, "text")
            if known[name].type is int and (type(value) is not int or value < 4):
                raise BadValue(f"data.{name}", value, "a whole number from 4")
        return cls(**values)


def load(
    name: str,
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
) -> Data:
    """A dataset by its name here, its hub id `owner/name`, or its folder.

    A hub dataset is read from `root/owner/name` if that exists (`root` is the argument or the
    environment variable PARLEY_DATA_ROOT), otherwise from the hub. `options` are those of
    `Options`; `tokenizer` is the one for texts when the options do not name any.

    >>> data = load("digits")
    >>> data.train.inputs.shape, len(data.test), len(data.class_names)
    (torch.Size([1437, 1, 8, 8]), 360, 10)
    """
    source = SOURCES.get(name)
    chosen = Options.of(options or {})
    root = root or os.environ.get("PARLEY_DATA_ROOT")
    if source is not None and source.hub is None:
        for option in options or {}:
            raise BadValue("data", option, f"no options: {name} has none")
        data = _digits()
    else:
        place, looked = _locate(name, source, root, chosen.folder)
        recipe = _recipe(source, options or {}, chosen, root, tokenizer)
        data = _load(place, looked, recipe)
    return replace(data, name=name, transform=(source and source.transform) or data.transform)


@dataclass(frozen=True)
class _Recipe:
    """What `load` was asked to make of a dataset."""

    source: Source
    options: Options
    given: tuple[str, ...] = ()  # the options that the user named
    root: str | Path | None = None
    tokenizer: str = tokens.TRAIN


def _recipe(
    source: Source | None,
    given: Mapping[str, Any],
    options: Options,
    root: str | Path | None,
    tokenizer: str | None,
) -> _Recipe:
    source = source or Source("", None)
    source = replace(source, label=options.label or source.label, enlarge=bool(options.folder))
    return _Recipe(
        source, options, tuple(given), root, options.tokenizer or tokenizer or tokens.TRAIN
    )


def load_own(
    place: str | Path,
    like: str = "",
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
) -> Data:
    """One agent's dataset: a folder, or the hub id of a dataset; it may lack a test split.

    The inputs are prepared as those of the dataset `like` that is loaded with the same options.
    """
    chosen = Options.of(options or {})
    recipe = _recipe(SOURCES.get(like), options or {}, chosen, root, tokenizer)
    folder = Path(place).expanduser()
    if folder.is_dir():
        return _load(folder, str(place), recipe, needs_test=False)
    found, looked = _locate(str(place), None, root or os.environ.get("PARLEY_DATA_ROOT"))
    return _load(found, looked, recipe, needs_test=False)


def joined(parts: Sequence[Samples]) -> Samples:
    """Several sets of samples as one."""
    inputs, targets = [part.inputs for part in parts], [part.targets for part in parts]
    return Samples(torch.cat(inputs), torch.cat(targets))


def from_user(data: Sequence[Any], agents: Sequence[int] | None = None) -> list[Samples]:
    """A user's own datasets, one per agent, as tensors.

    Each is a pair (inputs, targets) of tensors or arrays, a torch dataset of (input, target), or a
    Hugging Face dataset with an Image and a ClassLabel column. uint8 inputs are images of 0..255;
    other whole numbers are kept as they are (numbers of tokens); all else becomes float32.

    >>> [samples] = from_user([([[0.5, 1.0], [2.0, 3.0]], [0, 1])])
    >>> samples.inputs.dtype, samples.targets
    (torch.float32, tensor([0, 1]))
    """
    if not len(data):
        raise BadValue("data", [], "one dataset per agent")
    agents = range(len(data)) if agents is None else agents
    samples = [_from_user(dataset, agent) for agent, dataset in zip(agents, data, strict=True)]
    first = samples[0].inputs
    for agent, one in zip(agents, samples, strict=True):
        if one.inputs.shape[1:] != first.shape[1:] or one.inputs.dtype != first.dtype:
            raise BadValue(
                "data",
                f"agent {agent}",
                f"inputs like agent {agents[0]}'s: {_describe(first)}",
                because=f"its inputs are {_describe(one.inputs)}",
            )
    return samples


def _from_user(dataset: Any, agent: int) -> Samples:
    def wrong(valid: str, because: str = "") -> BadValue:
        return BadValue("data", f"agent {agent}", valid, because)

    if isinstance(dataset, Samples):
        pair: Any = (dataset.inputs, dataset.targets)
    elif isinstance(dataset, tuple | list) and len(dataset) == 2:
        pair = dataset
    elif hasattr(dataset, "features") and hasattr(dataset, "cast_column"):
        columns = _columns(dataset, f"agent {agent}")
        if columns.are_texts:
            raise wrong(
                "images, or a pair (inputs, targets) with numbers of tokens", "it has texts"
            )
        [inputs] = _decode([dataset], columns.inputs, f"agent {agent}")
        pair = (inputs, list(_values(dataset, columns.label)))
    elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        items = [dataset[i] for i in range(len(dataset))]
        if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
            raise wrong("a dataset of pairs (input, target)")
        pair = ([x for x, _ in items], [y for _, y in items])
    else:
        found = f"it is a {type(dataset).__name__}"
        raise wrong("a pair (inputs, targets), a map-style torch dataset, or a HF dataset", found)

    try:
        inputs, targets = (_tensor(values) for values in pair)
    except (ValueError, TypeError, RuntimeError) as error:
        raise wrong("inputs of one shape, numbers only", str(error).splitlines()[0]) from None
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        found = f"inputs {list(inputs.shape)}, targets {list(targets.shape)}"
        raise wrong("as many inputs as targets", found)
    if not len(targets):
        raise wrong("at least one sample", "it is empty")
    if targets.ndim != 1 or targets.is_floating_point() or targets.dtype == torch.bool:
        found = f"its targets are {_describe(targets)}"
        raise wrong("one whole number, the class, as each target", found)
    if targets.min() < 0:
        raise wrong("classes numbered from 0", f"it has a class {int(targets.min())}")
    if inputs.dtype != torch.uint8:
        whole = not (inputs.is_floating_point() or inputs.dtype == torch.bool)
        inputs = inputs.to(torch.int64 if whole else torch.float32)
    return Samples(inputs.contiguous(), targets.to(torch.int64))


def _tensor(values: Any) -> Tensor:
    """Stacks whatever has numbers in it; copies only when it must."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    if len(values) and isinstance(values[0], Tensor):
        return torch.stack([value.detach().cpu() for value in values])
    return torch.from_numpy(np.array(values))


def _describe(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} of shape {list(values.shape[1:])}"


def _digits() -> Data:
    """scikit-learn's 1,797 digits of 8 x 8; every fifth of each class, in random order, is test."""
    # Imported here because it takes a second and only this dataset needs it.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    # Exact in float32: the pixels are whole numbers from 0 to 16.
    everything = Samples(
        torch.from_numpy(images.reshape(-1, 1, 8, 8) / 16).float(),
        torch.from_numpy(labels).to(torch.int64),
    )
    # A fixed seed: the test set must not change with the seed of a run.
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    is_test = np.arange(len(order)) % 5 == 0
    train, test = (everything.take(np.sort(order[mask])) for mask in (~is_test, is_test))
    return Data("digits", train, test, tuple("0123456789"), _standardise(train.inputs))


def _standardise(inputs: Tensor) -> Transform:
    """Normalisation by mean and deviation per channel of images [n, c, h, w]."""
    scale = 255 if inputs.dtype == torch.uint8 else 1
    mean, std = [], []
    for channel in inputs.unbind(1):  # one at a time: doubles are eight times the size of bytes
        values = channel.double() / scale
        mean.append(round(values.mean().item(), 6))
        # A constant channel carries nothing: leave its deviation alone.
        std.append(round(values.std(correction=0).item(), 6) or 1.0)
    return Transform(tuple(mean), tuple(std))


def _locate(
    name: str, source: Source | None, root: str | Path | None, instead: str = ""
) -> tuple[Path | str, str]:
    """The folder or the hub id to load, and where else it was looked for, in words."""
    if instead:
        if source is None:
            raise BadValue("data.folder", instead, "nothing, beside a dataset without a name here")
        if not Path(instead).expanduser().is_dir():
            raise BadValue("data.folder", instead, "a folder", because="there is none")
        return Path(instead).expanduser(), instead
    if source is None and Path(name).expanduser().is_dir():
        return Path(name).expanduser(), name
    hub_id = source.hub if source is not None else name
    if hub_id is None or not hub.is_id(hub_id):
        raise unknown_name("data", name, ["a folder's path", "a hub id owner/name", *SOURCES])
    if root is None:
        return hub_id, "no local copy was looked for: no --data-root"
    for local in (source.local if source is not None else ()) or (hub_id,):
        folder = Path(root).expanduser() / local
        if folder.is_dir():
            return folder, local
    return hub_id, f"no local copy in {folder}"


def _load(place: Path | str, looked: str, recipe: _Recipe, needs_test: bool = True) -> Data:
    """Images or texts with classes, decoded once and then read from the cache."""
    name, source = str(place), recipe.source
    # A folder's files tell whether it has changed: with a cached copy it need not be opened.
    splits = None if isinstance(place, Path) else _open(place, looked, source.config)
    key = _fingerprint(place) if isinstance(place, Path) else _hub_fingerprint(splits)

    def opened() -> Any:
        nonlocal splits
        splits = splits or _open(place, looked, source.config)
        return splits

    prepared = [source.label, source.resize, source.test_crop]
    cached = _cached(name, _digest([key, *prepared]) if any(prepared) else key)
    data = _read_cache(cached, name)
    if data is None:
        # Whether it has texts is known without opening it when it was found to have some before.
        texts = any(cached.parent.glob(_cached(name, f"{key}-text-*").name))
        if texts or _columns(_training(opened(), name), name, source.label).are_texts:
            if recipe.tokenizer == tokens.TRAIN and not needs_test:
                valid = "a folder or a hub id with a tokenizer for all of them"
                raise BadValue("data.tokenizer", tokens.TRAIN, valid, f"{name} is one of several")
            data = _load_texts(opened, name, key, recipe)
        else:
            data = _decode_splits(opened(), name, source)
            _write_cache(cached, data)
    if data.train.inputs.dtype == torch.uint8:
        for option in ("tokenizer", "length", "vocabulary"):
            if option in recipe.given:
                raise BadValue("data", option, "folder, label", because=f"{name} has no texts")
    if needs_test and not len(data.test):
        raise BadValue("data", name, "a dataset with a test or a validation split")
    return data


def _cached(name: str, key: str) -> Path:
    """Where a dataset's decoded copy is kept."""
    slug = re.sub(r"\W+", "-", "-".join(Path(name).parts[-2:])).strip("-")
    return cache_folder() / f"{slug}-{key}.safetensors"


def _training(splits: Any, name: str) -> Any:
    if "train" not in splits:
        valid = "a dataset with a train split, and a test or a validation split"
        raise BadValue("data", name, valid, because=f"it has {', '.join(splits)}")
    return splits["train"]


def _train_and_test(splits: Any, name: str) -> tuple[Any, Any]:
    train = _training(splits, name)
    return train, next((splits[s] for s in ("test", "validation") if s in splits), train.select([]))


def _load_texts(opened: Callable[[], Any], name: str, key: str, recipe: _Recipe) -> Data:
    """Texts as numbers of tokens, encoded once for each tokenizer and length."""
    length, size, chosen = recipe.options.length, recipe.options.vocabulary, recipe.tokenizer
    label = recipe.source.label
    trained = chosen == tokens.TRAIN
    files = [] if trained else tokens.find(chosen, recipe.root)
    identity = [tokens.TRAIN, size] if trained else [tokens.identity(files)]
    cached = _cached(name, f"{key}-text-{_digest([*identity, length, label])}")
    data = _read_cache(cached, name)
    if data is not None:
        return data
    both = _train_and_test(opened(), name)
    columns = _columns(both[0], name, label)
    targets = _targets(both, columns.label, name)
    texts = [[text or "" for text in _values(split, columns.inputs)] for split in both]
    tokenizer = tokens.train(texts[0], size) if trained else tokens.read(files, chosen)
    inputs = [tokens.encode(tokenizer, part, length) for part in texts]
    class_names = tuple(both[0].features[columns.label].names)
    data = Data(
        name,
        Samples(inputs[0], targets[0]),
        Samples(inputs[1], targets[1]),
        class_names,
        Transform(),
    )
    _write_cache(cached, data)
    return data


def _decode_splits(splits: Any, name: str, source: Source) -> Data:
    both = _train_and_test(splits, name)
    columns = _columns(both[0], name, source.label)
    targets = _targets(both, columns.label, name)
    inputs = _decode(both, columns.inputs, name, source)
    return Data(
        name=name,
        train=Samples(inputs[0], targets[0]),
        test=Samples(inputs[1], targets[1]),
        class_names=tuple(both[0].features[columns.label].names),
        transform=source.transform or _standardise(inputs[0]),
    )


def _targets(both: Sequence[Any], label: str, name: str) -> list[Tensor]:
    targets = [torch.tensor(list(_values(split, label)), dtype=torch.int64) for split in both]
    if not len(targets[0]):
        raise BadValue("data", name, "at least one training sample")
    for labels in targets:
        if len(labels) and labels.min() < 0:
            raise BadValue("data", name, "a class for every sample", because="some have none")
    return targets


class _Columns(NamedTuple):
    inputs: str
    label: str
    are_texts: bool


def _columns(dataset: Any, name: str, label: str = "") -> _Columns:
    """The first column of images or else of texts, and the named or first column of classes."""
    features = dataset.features
    images = [c for c, feature in features.items() if type(feature).__name__ == "Image"]
    texts = [c for c, f in features.items() if "string" in str(getattr(f, "dtype", ""))]
    classes = [c for c, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    if label:
        classes = [c for c in classes if c == label]
    if not (images or texts) or not classes:
        has = ", ".join(f"{c}: {type(f).__name__}" for c, f in features.items())
        valid = (
            f"a dataset with an Image or a text column, and a ClassLabel column {label}".rstrip()
        )
        raise BadValue("data", name, valid, because=f"it has {has}")
    return _Columns([*images, *texts][0], classes[0], not images)


def _decode(
    datasets: Sequence[Any], column: str, name: str, source: Source | None = None
) -> list[Tensor]:
    """The images of every dataset as uint8 [n, c, h, w]: grey if all are grey, else colour.

    Those of the first are training images, which `source` may prepare in another size.
    """
    source = source or Source("", None)
    sides = [source.resize, *[source.test_crop] * (len(datasets) - 1)]
    largest = 0
    decoded: list[list[NDArray[np.uint8]]] = []
    for one, side in zip(datasets, sides, strict=True):
        decoded.append([])
        for encoded in _values(one, column):
            image = _image(encoded)
            largest = max(largest, min(image.size))
            decoded[-1].append(_pixels(_square(image, source.resize, side) if side else image))
    if largest < source.test_crop and not source.enlarge:
        small = f"its images are at most {largest} x {largest}"
        valid = f"a copy with larger images in {(source.local or (source.hub,))[0]} of --data-root"
        raise BadValue("data", name, f"{valid}, or data.folder = {name} to enlarge these", small)
    channels = max((pixels.shape[2] for pixels in itertools.chain(*decoded)), default=1)
    if not source.resize:
        sizes = sorted({pixels.shape[:2] for pixels in itertools.chain(*decoded)})
        if len(sizes) > 1:
            some = ", ".join(f"{height} x {width}" for height, width in sizes[:3])
            raise BadValue("data", name, "images of one size", because=f"it has {some}, ...")
        default = sizes[0] if sizes else (1, 1)
    tensors = []
    for images, side in zip(decoded, sides, strict=True):
        height, width = (side, side) if side else default
        out = np.empty((len(images), channels, height, width), dtype=np.uint8)
        for i, pixels in enumerate(images):
            out[i] = pixels.transpose(2, 0, 1)  # a grey image fills all channels
        images.clear()
        tensors.append(torch.from_numpy(out))
    return tensors


def _image(encoded: dict[str, Any]) -> Image.Image:
    content = encoded["bytes"] or Path(encoded["path"]).read_bytes()
    image: Image.Image = Image.open(io.BytesIO(content))
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return image


def _square(image: Image.Image, shorter: int, side: int) -> Image.Image:
    """Scales the image until its shorter side is `shorter` pixels; its central square of `side`."""
    width, height = image.size
    if min(width, height) != shorter:
        # Cut off rather than rounded, as torchvision does.
        width, height = (max(shorter, shorter * s // min(image.size)) for s in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return image.crop((left, top, left + side, top + side))


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    """One image as [h, w, 1 or 3]."""
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _values(dataset: Any, column: str) -> Iterator[Any]:
    """A column's stored values (images as encoded bytes); far faster than row by row."""
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        yield from table[column].to_pylist()


def _open(place: Path | str, looked: str, config: str | None = None) -> Any:
    """The splits of a folder or of a hub dataset, through Hugging Face datasets."""
    # Imported here: it takes a second, and a cached folder does without.
    import datasets

    reachable = True
    try:
        with _quiet(), hub.offline_unless_reachable(isinstance(place, str)) as reachable:
            if isinstance(place, Path):
                made = datasets.load_dataset(str(place))
                if set(next(iter(made.values())).features) == {"image"}:
                    # Folders of images: the loader leaves labels out where all are the same, which
                    # is what an agent that has seen one class has.
                    options = {"data_dir": str(place), "drop_labels": False}
                    made = datasets.load_dataset("imagefolder", **options)
                return made
            try:
                return datasets.load_dataset(place, config)
            except RuntimeError as error:
                if "scripts are no longer supported" not in str(error):
                    raise
                # The hub keeps what such a script makes as Parquet files beside it.
                return datasets.load_dataset(place, config, revision="refs/convert/parquet")
    # The libraries below raise errors of a dozen unrelated types; each means: not loadable.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if isinstance(place, Path):
            valid = "a folder with Parquet files in data/, as on the Hugging Face hub, or of images"
            raise BadValue("data", str(place), valid, because=reason) from error
        raise BadValue(
            "data",
            place,
            f"a dataset that the Hugging Face hub has, or --data-root with a folder {place} in it",
            because=f"{reason if reachable else 'the hub cannot be reached'}; {looked}",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars from Hugging Face while this is open."""
    from datasets.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _fingerprint(folder: Path) -> str:
    """Changes when a file of the folder does."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rows = [(str(f.relative_to(folder)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return _digest([str(folder.resolve()), rows])


def _hub_fingerprint(splits: Any) -> str:
    return _digest({name: split._fingerprint for name, split in splits.items()})


def _digest(value: object) -> str:
    # The 1 is the format of the cached files: count it up when that changes.
    return hashlib.sha256(json.dumps([1, value]).encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Where what can be made again is kept: PARLEY_CACHE, or `parley` in the user's cache."""
    if own := os.environ.get("PARLEY_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "parley"


def _read_cache(path: Path, name: str) -> Data | None:
    """What is in the cache; None if it is not there or not readable, and then it is made anew."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return Data(
            name,
            Samples(tensors["train.inputs"], tensors["train.targets"]),
            Samples(tensors["test.inputs"], tensors["test.targets"]),
            tuple(about["class_names"]),
            Transform(tuple(about["mean"]), tuple(about["std"])),
        )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def _write_cache(path: Path, data: Data) -> None:
    """Writes beside the file and renames, so that workers that start together cannot collide."""
    tensors = {
        "train.inputs": data.train.inputs,
        "train.targets": data.train.targets,
        "test.inputs": data.test.inputs,
        "test.targets": data.test.targets,
    }
    about = {
        "class_names": data.class_names,
        "mean": data.transform.mean,
        "std": data.transform.std,
    }
    # The cache saves time only: a full or read-only disk must not stop a run.
    with suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        try:
            save_file(tensors, temporary, metadata={"about": json.dumps(about)})
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
