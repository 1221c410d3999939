"""Datasets in the Hugging Face layout, decoded into tensors, and the cache of the results."""

import hashlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from parley.cache import cache_folder
from parley.data import hub, images, tables
from parley.data import text as tokens
from parley.data.columns import Table
from parley.data.options import OF_IMAGES, OF_TEXTS, Options
from parley.data.preparation import Preparation
from parley.data.samples import Data, Samples
from parley.data.transforms import Transform, standardise
from parley.errors import BadValue, needed
from parley.measures import CLASSIFICATION


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
    input: str = ""
    """The column with the images or texts; if empty, the first such column."""
    resize: int = 0
    """Images are scaled so that their shorter side has this many pixels, then cropped to a central
    square; 0 leaves them unchanged."""
    test_crop: int = 0
    """The side of that square for test data."""
    train_crop: int = 0
    """The same for training data; 0: it is `resize`."""
    enlarge: bool = False
    """Whether to allow this for images that are all smaller than `test_crop`."""

    @property
    def train_side(self) -> int:
        """The side of training images, or 0 if they are left unchanged."""
        return self.train_crop or self.resize

    def sized(self, options: Options) -> "Source":
        """With images of the size that the options ask for, if they do."""
        if not (options.resize or options.crop):
            return self
        if self.resize:
            name = "resize" if options.resize else "crop"
            because = "images of this dataset are scaled and cropped already"
            raise BadValue("data", name, "no size; or the folder itself as --data", because)
        side = options.crop or options.resize
        return replace(self, resize=options.resize, test_crop=side, train_crop=side, enlarge=True)


@dataclass(frozen=True)
class Recipe:
    """What `load` was asked to do with a dataset."""

    source: Source
    options: Options
    given: tuple[str, ...] = ()  # the options that the user set
    root: str | Path | None = None
    tokenizer: str = tokens.TRAIN
    task: str = CLASSIFICATION
    alone: bool = False  # whether these are the data of some agents only
    group: str = ""  # the column that says who holds which sample


def load_folder(place: Path | str, looked: str, recipe: Recipe, needs_test: bool = True) -> Data:
    """Images or text with classes, decoded once and then read from the cache."""
    if recipe.options.target or (isinstance(place, Path) and place.is_file()):
        return _load_table(place, looked, recipe, needs_test)
    name, source = str(place), recipe.source
    # The folder's files show whether it has changed, so a cached copy spares opening it.
    splits = None if isinstance(place, Path) else _open(place, looked, source.config)
    key = _fingerprint(place) if isinstance(place, Path) else _hub_fingerprint(splits)

    def opened() -> Any:
        nonlocal splits
        splits = splits or _open(place, looked, source.config)
        return splits

    prepared = [source.label, source.resize, source.test_crop]
    if source.train_crop or source.input:
        prepared += [source.train_crop, source.input]
    asked = (source.label, source.input)
    cached = _cached(name, _digest([key, *prepared]) if any(prepared) else key)
    data = _read_cache(cached, name)
    if data is None:
        # If it was found to hold text before, that is known without opening it again.
        texts = any(cached.parent.glob(_cached(name, f"{key}-text-*").name))
        if texts or columns_of(_training(opened(), name), name, *asked).are_texts:
            if recipe.tokenizer == tokens.TRAIN and recipe.alone:
                valid = "a folder or hub ID of a tokenizer that all of them share"
                raise BadValue("data.tokenizer", tokens.TRAIN, valid, f"{name} is one of several")
            data = _load_texts(opened, name, key, recipe)
        else:
            data = _decode_splits(opened(), name, source)
            _write_cache(cached, data)
    are_images = data.train.inputs.dtype == torch.uint8
    strange = set(OF_TEXTS if are_images else OF_IMAGES) & set(recipe.given)
    if strange:
        kind = "images" if are_images else "texts"
        valid = ", ".join(["folder", "label", *(OF_IMAGES if are_images else OF_TEXTS)])
        raise BadValue("data", min(strange), valid, because=f"{name} has {kind}")
    if are_images:
        data = replace(data, preparation=Preparation(source.resize, source.test_crop))
    if needs_test and not len(data.test):
        raise without_test(name)
    if recipe.group:
        data = replace(data, groups=groups_of(_training(opened(), name), recipe, name))
    return data


def without_test(name: str) -> BadValue:
    """There is nothing to test on."""
    valid = "a dataset with a test or validation split, or --validation 0.2"
    return BadValue("data", name, valid)


def groups_of(rows: Any, recipe: Recipe, name: str) -> NDArray[np.int64]:
    """The values of the column that says who holds what, as numbers in the order of the values."""
    columns, column = rows.column_names, recipe.group
    if column not in columns:
        raise BadValue("partition", f"column:{column}", f"columns of {name}: {', '.join(columns)}")
    if isinstance(rows, Table):
        cells = rows[column]
        values = list(cells.values) if cells.empty is None else [None]
    else:
        values = list(values_of(rows, column))
    if any(value is None or isinstance(value, dict | list) for value in values):
        valid = "a column with a number or text in every row"
        raise BadValue("partition", f"column:{column}", valid)
    found: NDArray[np.int64] = np.unique(np.array(values), return_inverse=True)[1]
    return found.reshape(-1)


def _load_table(place: Path | str, looked: str, recipe: Recipe, needs_test: bool) -> Data:
    """Rows of a file, or of the splits of a folder or hub dataset, as samples."""
    name, options = str(place), recipe.options
    if strange := {*OF_TEXTS, *OF_IMAGES, "label"} & set(recipe.given):
        raise BadValue("data", min(strange), "target, drop", because=f"{name} is a table")
    if files := tables.files_in(place):
        parts = {str(file): tables.opened(file, str(file)) for file in files}
    else:
        both = splits_of(place, looked, recipe)
        parts = {
            f"{name}, {split}": tables.opened(rows, name)
            for split, rows in zip(("training", "test"), both, strict=True)
            if len(rows)
        }
    if not options.target:
        listed = tables.columns_in(parts.values())
        because = f"{name} is a table, with the columns {listed}"
        raise BadValue("data.target", "", "the column to predict", because)
    told = options.told
    rows = next(iter(parts.values()))
    if recipe.group:  # says who holds a row, and is no input
        groups = groups_of(rows, recipe, name)
        told = told._replace(dropped=(*told.dropped, recipe.group))
    found = tables.read(parts, told, recipe.task, recipe.alone)
    if needs_test and len(parts) < 2:
        valid = "a folder with train.csv and test.csv (or .parquet), or --validation 0.2"
        raise BadValue("data", name, valid, "it has no test rows")
    train, *test = (Samples(inputs, targets) for inputs, targets in found.pairs)
    return Data(
        name,
        train,
        test[0] if test else train.take([]),
        found.class_names,
        Transform(),
        Preparation(table=found.form),
        groups if recipe.group else None,
    )


def _cached(name: str, key: str) -> Path:
    """Where the decoded copy of a dataset is kept."""
    slug = re.sub(r"\W+", "-", "-".join(Path(name).parts[-2:])).strip("-")
    return cache_folder() / f"{slug}-{key}.safetensors"


def _training(splits: Any, name: str) -> Any:
    if "train" not in splits:
        valid = "a dataset with a train split and a test or validation split"
        raise BadValue("data", name, valid, because=f"it has {', '.join(splits)}")
    return splits["train"]


def splits_of(place: Path | str, looked: str, recipe: Recipe) -> tuple[Any, Any]:
    """The rows to train on and those to test on, of which there may be none."""
    return _train_and_test(_open(place, looked, recipe.source.config), str(place))


def _train_and_test(splits: Any, name: str) -> tuple[Any, Any]:
    train = _training(splits, name)
    return train, next((splits[s] for s in ("test", "validation") if s in splits), train.select([]))


def _load_texts(opened: Callable[[], Any], name: str, key: str, recipe: Recipe) -> Data:
    """Texts as token IDs, encoded once for each tokenizer and length."""
    length, size, chosen = recipe.options.length, recipe.options.vocabulary, recipe.tokenizer
    label, chosen_columns = recipe.source.label, [recipe.source.label]
    chosen_columns += [recipe.source.input] if recipe.source.input else []
    trained = chosen == tokens.TRAIN
    files = [] if trained else tokens.find(chosen, recipe.root)
    identity = [tokens.TRAIN, size] if trained else [tokens.identity(files)]
    cached = _cached(name, f"{key}-text-{_digest([*identity, length, *chosen_columns])}")
    data = _read_cache(cached, name)
    if data is not None and data.preparation.tokenizer:  # which earlier versions did not keep
        return data
    both = _train_and_test(opened(), name)
    columns = columns_of(both[0], name, label, recipe.source.input)
    targets, class_names = targets_of(both, columns.label, name)
    texts = [[text or "" for text in values_of(split, columns.inputs)] for split in both]
    tokenizer = tokens.train(texts[0], size) if trained else tokens.read(files, chosen)
    inputs = [tokens.encode(tokenizer, part, length) for part in texts]
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
    columns = columns_of(both[0], name, source.label, source.input)
    targets, class_names = targets_of(both, columns.label, name)
    inputs = decoded(both, columns.inputs, name, source)
    return Data(
        name=name,
        train=Samples(inputs[0], targets[0]),
        test=Samples(inputs[1], targets[1]),
        class_names=class_names,
        transform=source.transform or standardise(inputs[0]),
    )


def targets_of(both: Sequence[Any], label: str, name: str) -> tuple[list[Tensor], tuple[str, ...]]:
    """The classes of each split as numbers, and their names: those that the column has, or else
    the values that occur."""
    values = [list(values_of(split, label)) for split in both]
    if not len(values[0]):
        raise BadValue("data", name, "at least one training sample")
    names = getattr(both[0].features[label], "names", None)
    if names is None:
        names = tables.named_classes([[None if v is None else str(v) for v in p] for p in values])
        place: dict[Any, int] = {label: number for number, label in enumerate(names)}
        values = [[-1 if v is None else place[str(v)] for v in part] for part in values]
    targets = [torch.tensor(part, dtype=torch.int64) for part in values]
    for labels in targets:
        if len(labels) and labels.min() < 0:
            raise BadValue(
                "data", name, "a class for every sample", because="some samples have none"
            )
    return targets, tuple(names)


class _Columns(NamedTuple):
    inputs: str
    label: str
    are_texts: bool


def columns_of(dataset: Any, name: str, label: str = "", chosen: str = "") -> _Columns:
    """The chosen or first column of images, or else of text, and the named column of classes, which
    may be any text or whole numbers, or the first that says so."""
    features = {c: f for c, f in dataset.features.items() if c in (chosen or c, label)}
    images = [c for c, f in features.items() if c != label and type(f).__name__ == "Image"]
    texts = [c for c, f in features.items() if c != label and _dtype(f).endswith("string")]
    classes = [c for c, f in dataset.features.items() if type(f).__name__ == "ClassLabel"]
    if label:
        named = [f for c, f in dataset.features.items() if c == label]
        classes = [label for f in named if re.fullmatch(r"(large_)?string|u?int\d+", _dtype(f))]
    if not (images or texts) or not classes:
        has = ", ".join(f"{c}: {type(f).__name__}" for c, f in dataset.features.items())
        valid = f"a dataset with an Image or text column {chosen}".rstrip()
        valid += f" and a ClassLabel column {label}".rstrip()
        raise BadValue("data", name, valid, because=f"it has {has}")
    return _Columns([*images, *texts][0], classes[0], not images)


def _dtype(feature: Any) -> str:
    return str(getattr(feature, "dtype", ""))


def decoded(
    datasets: Sequence[Any], column: str, name: str, source: Source | None = None
) -> list[Tensor]:
    """The images of every dataset as uint8 [n, c, h, w]: greyscale if all are, otherwise colour.

    The first dataset holds training images, which `source` may prepare at a different size.
    """
    source = source or Source("", None)
    sides = [source.train_side, *[source.test_crop] * (len(datasets) - 1)]
    largest = 0
    sizes: dict[tuple[int, int], str] = {}  # and the first image of each
    decoded: list[list[NDArray[np.uint8]]] = []
    for one, side in zip(datasets, sides, strict=True):
        decoded.append([])
        for encoded in values_of(one, column):
            which = f"{'test' if len(decoded) > 1 else 'training'} image {len(decoded[-1])}"
            which = " ".join([which, images.name_of(encoded)]).strip()
            try:
                image = images.opened(encoded)
                sizes.setdefault(image.size, which)
                largest = max(largest, min(image.size))
                image = images.squared(image, source.resize, side) if side else image
            except images.NoImage as error:
                valid = "PNG, JPEG, GIF, BMP, TIFF, WebP or PPM images that can be decoded"
                raise BadValue("data", name, valid, f"{which}: {error}") from error
            except images.TooSmall as error:
                because = f"{which} of {name} has {error}"
                raise BadValue("data.crop", side, error.valid, because) from None
            decoded[-1].append(images.pixels(image))
    if largest < source.test_crop and not source.enlarge:
        small = f"its images are at most {largest} x {largest}"
        valid = f"a copy with larger images in {(source.local or (source.hub,))[0]} of --data-root"
        raise BadValue("data", name, f"{valid}, or data.folder = {name} to enlarge these", small)
    channels = max((pixels.shape[2] for pixels in itertools.chain(*decoded)), default=1)
    if len(sizes) > 1 and not source.train_side:
        raise different_sizes(name, sizes)
    width, height = next(iter(sizes), (1, 1))
    default = (height, width)
    tensors = []
    for arrays, side in zip(decoded, sides, strict=True):
        height, width = (side, side) if side else default
        out = np.empty((len(arrays), channels, height, width), dtype=np.uint8)
        for i, pixels in enumerate(arrays):
            out[i] = pixels.transpose(2, 0, 1)  # a greyscale image fills all channels
        arrays.clear()
        tensors.append(torch.from_numpy(out))
    return tensors


def different_sizes(name: str, sizes: Mapping[tuple[int, int], str]) -> BadValue:
    """Names the first image of each of the first two sizes, and the remedy."""
    (one, first), (other, second) = itertools.islice(sizes.items(), 2)
    found = f"{first} has {one[0]} x {one[1]} pixels and {second} {other[0]} x {other[1]}"
    side = min(min(size) for size in sizes)
    valid = f"images of one size; --data-option resize={side} scales and crops them to squares"
    return BadValue("data", name, valid, because=found)


def values_of(dataset: Any, column: str) -> Iterator[Any]:
    """A column's stored values (images as encoded bytes); much faster than row by row."""
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        yield from table[column].to_pylist()


def _open(place: Path | str, looked: str, config: str | None = None) -> Any:
    """The splits of a folder or hub dataset, opened with Hugging Face datasets."""
    # Imported here: it takes a second, and a cached folder does not need it.
    datasets = needed("datasets", "hub", "data", str(place))
    if isinstance(place, Path):
        _files_in(place)
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
    files = [(str(f.relative_to(folder)), f.stat()) for f in _files_in(folder)]
    rows = [(name, about.st_size, about.st_mtime_ns) for name, about in files]
    return _digest([str(folder.resolve()), rows])


def _files_in(folder: Path) -> list[Path]:
    """Regular files at any depth. The loader would leave out anything else without a word."""
    found = sorted(path for path in folder.rglob("*") if not path.is_dir())
    for path in found:
        if not path.is_file():
            because = f"{path.relative_to(folder)} is a pipe, a device or a broken link"
            raise BadValue("data", str(folder), "a folder of regular files", because)
    return found


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
