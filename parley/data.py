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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
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

from parley.errors import BadValue, unknown_name

# Streams of random numbers: default_rng([seed, stream, agent, pass or step]).
_PERMUTATIONS, _AUGMENTATIONS = 1, 2


@dataclass(frozen=True)
class Samples:
    """Inputs with their classes."""

    inputs: Tensor  # [n, ...]: uint8 images [n, c, h, w], float32, or int64 (token numbers)
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

    @property
    def augments(self) -> bool:
        """Whether training inputs are changed at random."""
        return self.flip or self.crop_padding > 0

    def normalise(self, inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Raw inputs [..., c, h, w] to what a model takes; uint8 counts as 0..1.

        >>> Transform((0.5,), (0.5,)).normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
        """
        if inputs.dtype == torch.int64:  # numbers of tokens: names, not magnitudes
            return inputs
        scale = 1 / 255 if inputs.dtype == torch.uint8 else 1.0
        x = inputs.to(dtype)
        if not self.mean:
            return x * scale if scale != 1 else x
        # One multiplication and one addition per value: (x·scale - mean) / std.
        std = torch.tensor(self.std, dtype=torch.float64)[:, None, None]
        mean = torch.tensor(self.mean, dtype=torch.float64)[:, None, None]
        factor = (scale / std).to(x.device, dtype)
        return (x * factor).sub_((mean / std).to(x.device, dtype))

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """The random numbers that augment n samples: [n, 3], flip or not, top, left."""
        place = 2 * self.crop_padding + 1
        return rng.integers(0, [2 if self.flip else 1, place, place], size=(n, 3))

    def augment(self, inputs: Tensor, draws: NDArray[np.int64]) -> Tensor:
        """Mirrors and crops raw images [n, c, h, w], each by its own row of draws [n, 3]."""
        flip, top, left = torch.from_numpy(draws).to(inputs.device).unbind(1)
        x = inputs
        if self.flip:
            x = torch.where(flip.bool()[:, None, None, None], x.flip(-1), x)
        if self.crop_padding:
            height, width = x.shape[-2:]
            x = functional.pad(x, [self.crop_padding] * 4)
            windows = x.unfold(2, height, 1).unfold(3, width, 1)  # [n, c, top, left, h, w], a view
            x = windows[torch.arange(len(x), device=x.device), :, top, left]
        return x


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
        self.lengths = tuple(len(samples) for samples in samples_per_agent)
        self._starts = np.cumsum((0, *self.lengths[:-1]))
        self._orders: list[tuple[int, NDArray[np.int64]]] = [(-1, np.empty(0, np.int64))] * len(
            agents
        )

    def at(self, step: int) -> Batch:
        """The batch of a step, whichever steps were asked for before."""
        rows = [self._row(slot, step) for slot in range(len(self.agents))]
        sizes = tuple(map(len, rows))
        widest = max(sizes)
        # Padding repeats an agent's first sample: finite numbers, and weight 0.
        index_AB = np.stack([_pad(row, widest) for row in rows])
        index = torch.from_numpy(index_AB.reshape(-1)).to(self.inputs.device)
        inputs = self.inputs.index_select(0, index)
        if self.transform.augments:
            draws = [
                _pad(self.transform.draw(self._rng(_AUGMENTATIONS, agent, step), size), widest)
                for agent, size in zip(self.agents, sizes, strict=True)
            ]
            inputs = self.transform.augment(inputs, np.concatenate(draws))
        inputs = self.transform.normalise(inputs, self.dtype)
        size_A = np.array(sizes)[:, None]
        weights = torch.from_numpy((np.arange(widest) < size_A) / size_A)
        return Batch(
            inputs=inputs.reshape(len(rows), widest, *inputs.shape[1:]),
            targets=self.targets.index_select(0, index).reshape(len(rows), widest),
            weights=weights.to(self.inputs.device, self.dtype),
            sizes=sizes,
            agents=self.agents,
            step=step,
        )

    def _row(self, slot: int, step: int) -> NDArray[np.int64]:
        """Where the samples of one agent's batch are in the common tensor."""
        length = self.lengths[slot]
        number, position = divmod(step, _ceil_div(length, self.batch))
        if self._orders[slot][0] != number:
            order = self._rng(_PERMUTATIONS, self.agents[slot], number).permutation(length)
            self._orders[slot] = (number, order + self._starts[slot])
        return self._orders[slot][1][position * self.batch : (position + 1) * self.batch]

    def _rng(self, stream: int, agent: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream, agent, number])


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
}


def load(name: str, root: str | Path | None = None) -> Data:
    """A dataset by its name here, its hub id `owner/name`, or its folder.

    A hub dataset is read from `root/owner/name` if that exists (`root` is the argument or the
    environment variable PARLEY_DATA_ROOT), otherwise from the hub.

    >>> data = load("digits")
    >>> data.train.inputs.shape, len(data.test), len(data.class_names)
    (torch.Size([1437, 1, 8, 8]), 360, 10)
    """
    source = SOURCES.get(name)
    if source is not None and source.hub is None:
        data = _digits()
    else:
        data = _load_images(*_locate(name, source, root))
    return replace(data, name=name, transform=(source and source.transform) or data.transform)


def load_folders(
    paths: Sequence[str | Path], class_names: Sequence[str] | None = None
) -> list[Samples]:
    """One dataset folder per agent: the training split of each.

    Classes are matched by name to `class_names` (of the test data, say), so an agent's folder need
    not have all of them. Without `class_names` all folders must have the same.
    """
    loaded = []
    for agent, path in enumerate(paths):
        if not Path(path).is_dir():
            raise BadValue("data", str(path), "a folder", because=f"agent {agent}'s is missing")
        loaded.append(_load_images(Path(path), str(path), needs_test=False))
    names = tuple(class_names if class_names is not None else loaded[0].class_names)
    for agent, data in enumerate(loaded):
        strange = [c for c in data.class_names if c not in names]
        if strange or (class_names is None and data.class_names != names):
            found = ", ".join(strange or data.class_names)
            raise BadValue(
                "data",
                str(paths[agent]),
                f"the classes {', '.join(names)}",
                because=f"agent {agent} has the classes {found}",
            )
    matched = []
    for data in loaded:
        number = torch.tensor([names.index(c) for c in data.class_names])
        matched.append(Samples(data.train.inputs, number[data.train.targets]))
    return from_user(matched)


def from_user(data: Sequence[Any]) -> list[Samples]:
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
    samples = [_from_user(dataset, agent) for agent, dataset in enumerate(data)]
    first = samples[0].inputs
    for agent, one in enumerate(samples):
        if one.inputs.shape[1:] != first.shape[1:] or one.inputs.dtype != first.dtype:
            raise BadValue(
                "data",
                f"agent {agent}",
                f"inputs like agent 0's: {_describe(first)}",
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
        image, label = _columns(dataset, f"agent {agent}")
        [inputs] = _decode([dataset], image, f"agent {agent}")
        pair = (inputs, list(_values(dataset, label)))
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


def _locate(name: str, source: Source | None, root: str | Path | None) -> tuple[Path | str, str]:
    """The folder or the hub id to load, and where else it was looked for, in words."""
    if source is None and Path(name).expanduser().is_dir():
        return Path(name).expanduser(), name
    hub = source.hub if source is not None else name
    if hub is None or not re.fullmatch(r"[\w.-]+/[\w.-]+", hub):
        raise unknown_name("data", name, ["a folder's path", "a hub id owner/name", *SOURCES])
    root = root or os.environ.get("PARLEY_DATA_ROOT")
    if root is None:
        return hub, "no local copy was looked for: no --data-root"
    folder = Path(root).expanduser() / hub
    return (folder, hub) if folder.is_dir() else (hub, f"no local copy in {folder}")


def _load_images(place: Path | str, looked: str, needs_test: bool = True) -> Data:
    """Images with classes from a folder or the hub, decoded once and then read from the cache."""
    name = str(place)
    # A folder's files tell whether it has changed: with a cached copy it need not be opened.
    splits = None if isinstance(place, Path) else _open(place, looked)
    key = _fingerprint(place) if isinstance(place, Path) else _hub_fingerprint(splits)
    slug = re.sub(r"\W+", "-", "-".join(Path(name).parts[-2:])).strip("-")
    cached = _cache_folder() / f"{slug}-{key}.safetensors"
    data = _read_cache(cached, name)
    if data is None:
        data = _decode_splits(splits or _open(place, looked), name)
        _write_cache(cached, data)
    if needs_test and not len(data.test):
        raise BadValue("data", name, "a dataset with a test or a validation split")
    return data


def _decode_splits(splits: Any, name: str) -> Data:
    if "train" not in splits:
        valid = "a dataset with a train split, and a test or a validation split"
        raise BadValue("data", name, valid, because=f"it has {', '.join(splits)}")
    train = splits["train"]
    test = next((splits[s] for s in ("test", "validation") if s in splits), train.select([]))
    image, label = _columns(train, name)
    inputs = _decode([train, test], image, name)
    targets = [
        torch.tensor(list(_values(split, label)), dtype=torch.int64) for split in (train, test)
    ]
    if not len(targets[0]):
        raise BadValue("data", name, "at least one training sample")
    for labels in targets:
        if len(labels) and labels.min() < 0:
            raise BadValue("data", name, "a class for every sample", because="some have none")
    return Data(
        name=name,
        train=Samples(inputs[0], targets[0]),
        test=Samples(inputs[1], targets[1]),
        class_names=tuple(train.features[label].names),
        transform=_standardise(inputs[0]),
    )


def _columns(dataset: Any, name: str) -> tuple[str, str]:
    """The names of the first column of images and the first column of classes."""
    features = dataset.features
    found = [
        next((column for column, feature in features.items() if type(feature).__name__ == kind), "")
        for kind in ("Image", "ClassLabel")
    ]
    if not all(found):
        columns = ", ".join(f"{c}: {type(f).__name__}" for c, f in features.items())
        valid = "a dataset with an Image and a ClassLabel column"
        raise BadValue("data", name, valid, because=f"it has {columns}")
    return found[0], found[1]


def _decode(datasets: Sequence[Any], column: str, name: str) -> list[Tensor]:
    """The images of every dataset as uint8 [n, c, h, w]: grey if all are grey, else colour."""
    decoded = [[_pixels(image) for image in _values(one, column)] for one in datasets]
    shapes = {pixels.shape for pixels in itertools.chain(*decoded)}
    sizes = sorted({shape[:2] for shape in shapes})
    if len(sizes) > 1:
        some = ", ".join(f"{height} x {width}" for height, width in sizes[:3])
        raise BadValue("data", name, "images of one size", because=f"it has {some}, ...")
    height, width = sizes[0] if sizes else (1, 1)
    channels = max((shape[2] for shape in shapes), default=1)
    tensors = []
    for images in decoded:
        out = np.empty((len(images), channels, height, width), dtype=np.uint8)
        for i, pixels in enumerate(images):
            out[i] = pixels.transpose(2, 0, 1)  # a grey image fills all channels
        tensors.append(torch.from_numpy(out))
    return tensors


def _pixels(encoded: dict[str, Any]) -> NDArray[np.uint8]:
    """One image as [h, w, 1 or 3]."""
    content = encoded["bytes"] or Path(encoded["path"]).read_bytes()
    image: Image.Image = Image.open(io.BytesIO(content))
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _values(dataset: Any, column: str) -> Iterator[Any]:
    """A column's stored values (images as encoded bytes); far faster than row by row."""
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        yield from table[column].to_pylist()


def _open(place: Path | str, looked: str) -> Any:
    """The splits of a folder or of a hub dataset, through Hugging Face datasets."""
    # Imported here: it takes a second, and a cached folder does without.
    import datasets

    reachable = True
    try:
        with _quiet(), _offline_unless_reachable(isinstance(place, str)) as reachable:
            return datasets.load_dataset(str(place))
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


@contextmanager
def _offline_unless_reachable(wanted: bool) -> Iterator[bool]:
    """Keeps the hub's clients from retrying for half a minute when there is no network.

    One request with a short limit finds out; without an answer, only what was downloaded before is
    used. It goes through the client's own session, so that proxies and mirrors count.
    """
    import datasets.config
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    before = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    if wanted and not any(before):
        try:
            get_session().head(constants.ENDPOINT, timeout=5)
        except Exception:  # which type depends on the client's version (requests or httpx)
            datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield not datasets.config.HF_HUB_OFFLINE
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


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


def _cache_folder() -> Path:
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
