"""Datasets in the Hugging Face layout, decoded into tensors, and the cache of the results."""

import hashlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from parley.cache import cache_folder
from parley.data import hub, images
from parley.data import text as tokens
from parley.data.preparation import Preparation
from parley.data.samples import Data, Samples
from parley.data.transforms import Transform, standardise
from parley.errors import BadValue, unknown_name

MOST = 1_000_000
"""The largest length of a text or size of a vocabulary."""


@dataclass(frozen=True)
class Source:
    """A row of the table of datasets: where one comes from and how its inputs are prepared."""

    description: str
    hub: str | None
    """Its ID on the Hugging Face hub, or None if it ships with a package."""
    transform: Transform | None = None
    """None: normalise by the mean and standard deviation of the training inputs."""
    local: tuple[str, ...] = ()
    """Folders below the data root to look in, in this order; if empty, the hub ID."""
    config: str | None = None
    """Which of several variants on the hub."""
    label: str = ""
    """The column with the classes; if empty, the first such column."""
    resize: int = 0
    """Images are scaled so that their shorter side has this many pixels, then cropped to a central
    square; 0 leaves them unchanged."""
    test_crop: int = 0
    """The side of that square for test data; for training data it is `resize`."""
    enlarge: bool = False
    """Whether to allow this for images that are all smaller than `test_crop`."""


@dataclass(frozen=True)
class Options:
    """How a dataset is read: the options of `load`."""

    folder: str = ""
    """A folder to read a named dataset from instead of its usual location: a stand-in for it."""
    label: str = ""
    """The column with the classes; if empty, the dataset's usual one, or the first."""
    tokenizer: str = ""
    """For text: train (built from the training texts), a folder with tokenizer.json or vocab.txt,
    or a hub ID; if empty, the one that belongs to the model, or train."""
    length: int = 128
    """For text: the number of tokens kept; longer texts are truncated."""
    vocabulary: int = 30_522
    """For text: the maximum vocabulary size of a tokenizer built from it (BERT's size)."""
    labels: str = ""
    """For agents with their own data: the names of all classes, comma-separated, if an agent may
    lack some of them."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """From a table of options, validated.

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
            if known[name].type is int and (type(value) is not int or not 4 <= value <= MOST):
                raise BadValue(f"data.{name}", value, f"a whole number from 4 to {MOST}")
        return cls(**values)


@dataclass(frozen=True)
class Recipe:
    """What `load` was asked to do with a dataset."""

    source: Source
    options: Options
    given: tuple[str, ...] = ()  # the options that the user set
    root: str | Path | None = None
    tokenizer: str = tokens.TRAIN


def load_folder(place: Path | str, looked: str, recipe: Recipe, needs_test: bool = True) -> Data:
    """Images or text with classes, decoded once and then read from the cache."""
    name, source = str(place), recipe.source
    # The folder's files show whether it has changed, so a cached copy spares opening it.
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
        # If it was found to hold text before, that is known without opening it again.
        texts = any(cached.parent.glob(_cached(name, f"{key}-text-*").name))
        if texts or columns_of(_training(opened(), name), name, source.label).are_texts:
            if recipe.tokenizer == tokens.TRAIN and not needs_test:
                valid = "a folder or hub ID of a tokenizer that all of them share"
                raise BadValue("data.tokenizer", tokens.TRAIN, valid, f"{name} is one of several")
            data = _load_texts(opened, name, key, recipe)
        else:
            data = _decode_splits(opened(), name, source)
            _write_cache(cached, data)
    if data.train.inputs.dtype == torch.uint8:
        for option in ("tokenizer", "length", "vocabulary"):
            if option in recipe.given:
                raise BadValue(
                    "data", option, "folder, label", because=f"{name} is not a text dataset"
                )
        data = replace(data, preparation=Preparation(source.resize, source.test_crop))
    if needs_test and not len(data.test):
        raise BadValue("data", name, "a dataset with a test or validation split")
    return data


def _cached(name: str, key: str) -> Path:
    """Where the decoded copy of a dataset is kept."""
    slug = re.sub(r"\W+", "-", "-".join(Path(name).parts[-2:])).strip("-")
    return cache_folder() / f"{slug}-{key}.safetensors"


def _training(splits: Any, name: str) -> Any:
    if "train" not in splits:
        valid = "a dataset with a train split and a test or validation split"
        raise BadValue("data", name, valid, because=f"it has {', '.join(splits)}")
    return splits["train"]


def _train_and_test(splits: Any, name: str) -> tuple[Any, Any]:
    train = _training(splits, name)
    return train, next((splits[s] for s in ("test", "validation") if s in splits), train.select([]))


def _load_texts(opened: Callable[[], Any], name: str, key: str, recipe: Recipe) -> Data:
    """Texts as token IDs, encoded once for each tokenizer and length."""
    length, size, chosen = recipe.options.length, recipe.options.vocabulary, recipe.tokenizer
    label = recipe.source.label
    trained = chosen == tokens.TRAIN
    files = [] if trained else tokens.find(chosen, recipe.root)
    identity = [tokens.TRAIN, size] if trained else [tokens.identity(files)]
    cached = _cached(name, f"{key}-text-{_digest([*identity, length, label])}")
    data = _read_cache(cached, name)
    if data is not None and data.preparation.tokenizer:  # which earlier versions did not keep
        return data
    both = _train_and_test(opened(), name)
    columns = columns_of(both[0], name, label)
    targets = _targets(both, columns.label, name)
    texts = [[text or "" for text in values_of(split, columns.inputs)] for split in both]
    tokenizer = tokens.train(texts[0], size) if trained else tokens.read(files, chosen)
    inputs = [tokens.encode(tokenizer, part, length) for part in texts]
    class_names = tuple(both[0].features[columns.label].names)
    data = Data(
        name,
        Samples(inputs[0], targets[0]),
        Samples(inputs[1], targets[1]),
        class_names,
        Transform(),
        Preparation(tokenizer=tokenizer.to_str()),
    )
    _write_cache(cached, data)
    return data


def _decode_splits(splits: Any, name: str, source: Source) -> Data:
    both = _train_and_test(splits, name)
    columns = columns_of(both[0], name, source.label)
    targets = _targets(both, columns.label, name)
    inputs = decoded(both, columns.inputs, name, source)
    return Data(
        name=name,
        train=Samples(inputs[0], targets[0]),
        test=Samples(inputs[1], targets[1]),
        class_names=tuple(both[0].features[columns.label].names),
        transform=source.transform or standardise(inputs[0]),
    )


def _targets(both: Sequence[Any], label: str, name: str) -> list[Tensor]:
    targets = [torch.tensor(list(values_of(split, label)), dtype=torch.int64) for split in both]
    if not len(targets[0]):
        raise BadValue("data", name, "at least one training sample")
    for labels in targets:
        if len(labels) and labels.min() < 0:
            raise BadValue(
                "data", name, "a class for every sample", because="some samples have none"
            )
    return targets


class _Columns(NamedTuple):
    inputs: str
    label: str
    are_texts: bool


def columns_of(dataset: Any, name: str, label: str = "") -> _Columns:
    """The first column of images, or else of text, and the named or first column of classes."""
    features = dataset.features
    images = [c for c, feature in features.items() if type(feature).__name__ == "Image"]
    texts = [c for c, f in features.items() if "string" in str(getattr(f, "dtype", ""))]
    classes = [c for c, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    if label:
        classes = [c for c in classes if c == label]
    if not (images or texts) or not classes:
        has = ", ".join(f"{c}: {type(f).__name__}" for c, f in features.items())
        valid = f"a dataset with an Image or text column and a ClassLabel column {label}".rstrip()
        raise BadValue("data", name, valid, because=f"it has {has}")
    return _Columns([*images, *texts][0], classes[0], not images)


def decoded(
    datasets: Sequence[Any], column: str, name: str, source: Source | None = None
) -> list[Tensor]:
    """The images of every dataset as uint8 [n, c, h, w]: greyscale if all are, otherwise colour.

    The first dataset holds training images, which `source` may prepare at a different size.
    """
    source = source or Source("", None)
    sides = [source.resize, *[source.test_crop] * (len(datasets) - 1)]
    largest = 0
    decoded: list[list[NDArray[np.uint8]]] = []
    for one, side in zip(datasets, sides, strict=True):
        decoded.append([])
        for encoded in values_of(one, column):
            try:
                image = images.opened(encoded)
                largest = max(largest, min(image.size))
                image = images.squared(image, source.resize, side) if side else image
            except images.NoImage as error:
                which = f"{'test' if len(decoded) > 1 else 'training'} image {len(decoded[-1])}"
                which = " ".join([which, images.name_of(encoded)]).strip()
                valid = "PNG, JPEG, GIF, BMP, TIFF, WebP or PPM images that can be decoded"
                raise BadValue("data", name, valid, f"{which}: {error}") from error
            decoded[-1].append(images.pixels(image))
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
    for arrays, side in zip(decoded, sides, strict=True):
        height, width = (side, side) if side else default
        out = np.empty((len(arrays), channels, height, width), dtype=np.uint8)
        for i, pixels in enumerate(arrays):
            out[i] = pixels.transpose(2, 0, 1)  # a greyscale image fills all channels
        arrays.clear()
        tensors.append(torch.from_numpy(out))
    return tensors


def values_of(dataset: Any, column: str) -> Iterator[Any]:
    """A column's stored values (images as encoded bytes); much faster than row by row."""
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        yield from table[column].to_pylist()


def _open(place: Path | str, looked: str, config: str | None = None) -> Any:
    """The splits of a folder or hub dataset, opened with Hugging Face datasets."""
    # Imported here: it takes a second, and a cached folder does not need it.
    import datasets

    reachable = True
    try:
        with _quiet(), hub.offline_unless_reachable(isinstance(place, str)) as reachable:
            if isinstance(place, Path):
                made = datasets.load_dataset(str(place), trust_remote_code=False)
                if set(next(iter(made.values())).features) == {"image"}:
                    # For image folders the loader drops labels that are all the same, which is
                    # the case for an agent that has only one class.
                    options = {"data_dir": str(place), "drop_labels": False}
                    options |= {"trust_remote_code": False}
                    made = datasets.load_dataset("imagefolder", **options)
                return made
            try:
                return datasets.load_dataset(place, config, trust_remote_code=False)
            except RuntimeError as error:
                if "scripts are no longer supported" not in str(error):
                    raise
                # The hub keeps the output of such a script as Parquet files next to it.
                parquet = "refs/convert/parquet"
                return datasets.load_dataset(
                    place, config, revision=parquet, trust_remote_code=False
                )
    # The libraries below raise a dozen unrelated error types, which all mean "not loadable".
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if isinstance(place, Path):
            valid = "a folder of images, or with Parquet files in data/ as on the Hugging Face hub"
            raise BadValue("data", str(place), valid, because=reason) from error
        raise BadValue(
            "data",
            place,
            f"a dataset on the Hugging Face hub, or a --data-root that contains {place}",
            because=f"{reason if reachable else 'the hub cannot be reached'}; {looked}",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides Hugging Face's progress bars."""
    from datasets.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _fingerprint(folder: Path) -> str:
    """A digest that changes when any file in the folder does."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rows = [(str(f.relative_to(folder)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return _digest([str(folder.resolve()), rows])


def _hub_fingerprint(splits: Any) -> str:
    return _digest({name: split._fingerprint for name, split in splits.items()})


def _digest(value: object) -> str:
    # The 1 is the format version of the cached files: increment it when the format changes.
    return hashlib.sha256(json.dumps([1, value]).encode()).hexdigest()[:16]


def _read_cache(path: Path, name: str) -> Data | None:
    """The cached dataset; None if there is none or it is unreadable, so that it is rebuilt."""
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
            Preparation(tokenizer=about.get("tokenizer", "")),
        )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def _write_cache(path: Path, data: Data) -> None:
    """Writes a temporary file and renames it, so that workers starting together cannot collide."""
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
        "tokenizer": data.preparation.tokenizer,
    }
    # The cache only saves time: a full or read-only disk must not stop a run.
    with suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        try:
            save_file(tensors, temporary, metadata={"about": json.dumps(about)})
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
