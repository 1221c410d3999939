"""Datasets by name or from the user, and the batches that each agent draws from its share.

Axes: A agents hosted here, B samples of a batch, n samples, c h w channels, rows, columns.

What an agent sees at a step depends only on (seed, agent, step): not on the worker that hosts it,
nor on the other agents there.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parley.data import hub
from parley.data import text as tokens
from parley.data.decode import Recipe, Source, load_folder
from parley.data.digits import digits
from parley.data.mapped import load_mapped
from parley.data.options import Options
from parley.data.samples import Data
from parley.data.tables import FILES
from parley.data.transforms import Transform
from parley.errors import BadValue, unknown_name
from parley.files import user_path
from parley.measures import CLASSIFICATION

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SOURCES: dict[str, Source] = {
    "digits": Source("8×8 digits that ship with Parley; works offline", None),
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
    # The authors' code takes random crops of whole photographs; here they are taken of the central
    # squares, so that the images fit in one tensor.
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
        "news in 4 classes, 128 tokens each, fancyzhx/ag_news on the hub", "fancyzhx/ag_news"
    ),
}


def load(
    name: str,
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    task: str = CLASSIFICATION,
    needs_test: bool = True,
    group: str = "",
) -> Data:
    """A dataset by its name in Parley, its hub ID `owner/name`, or its folder.

    A hub dataset is read from `root/owner/name` if that exists (`root` is the argument or the
    environment variable PARLEY_DATA_ROOT), otherwise from the hub. `options` are those of
    `Options`; `tokenizer` is the one to use for text if the options do not name one. `task` says
    what the targets of a table are; `group` is a column that says who holds which sample.

    >>> data = load("digits")
    >>> data.train.inputs.shape, len(data.test), len(data.class_names)
    (torch.Size([1437, 1, 8, 8]), 360, 10)
    """
    source = SOURCES.get(name)
    chosen = Options.of(options or {})
    root = root or os.environ.get("PARLEY_DATA_ROOT")
    if chosen.labels and not chosen.target:
        because = "the dataset names its own classes"
        raise BadValue("data.labels", chosen.labels, 'none, unless data = "own"', because)
    if source is not None and source.hub is None:
        for option in options or {}:
            raise BadValue("data", option, f"no options: {name} has none")
        data = digits()
    else:
        place, looked = _locate(name, source, root, chosen.folder)
        recipe = _recipe(source, options or {}, chosen, root, tokenizer)
        recipe = replace(recipe, task=task, group=group)
        read = load_mapped if chosen.mapped else load_folder
        data = read(place, looked, recipe, needs_test)
    return replace(data, name=name, transform=(source and source.transform) or data.transform)


def _recipe(
    source: Source | None,
    given: Mapping[str, Any],
    options: Options,
    root: str | Path | None,
    tokenizer: str | None,
) -> Recipe:
    source = source or Source("", None)
    source = replace(source, label=options.label or source.label, enlarge=bool(options.folder))
    source = replace(source, input=options.input)
    source = source.sized(options)
    return Recipe(
        source, options, tuple(given), root, options.tokenizer or tokenizer or tokens.TRAIN
    )


def load_own(
    place: str | Path,
    like: str = "",
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    task: str = CLASSIFICATION,
) -> Data:
    """One agent's dataset: a folder, or the hub ID of a dataset; it may lack a test split.

    The inputs are prepared like those of the dataset `like` loaded with the same options.
    """
    chosen = Options.of(options or {})
    recipe = _recipe(SOURCES.get(like), options or {}, chosen, root, tokenizer)
    recipe = replace(recipe, task=task, alone=True)
    if chosen.mapped:
        because = "the data of single agents are read into memory"
        raise BadValue("data.mapped", True, "false, or a common dataset", because)
    if chosen.target and like:
        because = "agents' own tables cannot be prepared like a common one"
        raise BadValue("data", like, 'data = "own", with test rows in the agents\' tables', because)
    folder = user_path(place)
    if folder.is_dir():
        return load_folder(folder, str(place), recipe, needs_test=False)
    found, looked = _locate(str(place), None, root or os.environ.get("PARLEY_DATA_ROOT"))
    return load_folder(found, looked, recipe, needs_test=False)


def _locate(
    name: str, source: Source | None, root: str | Path | None, instead: str = ""
) -> tuple[Path | str, str]:
    """The folder or hub ID to load, and in words where else Parley looked."""
    if instead:
        if source is None:
            raise BadValue(
                "data.folder",
                instead,
                "no folder: it can only replace a dataset that Parley has a name for",
            )
        if not user_path(instead).is_dir():
            raise BadValue("data.folder", instead, "a folder", because="it does not exist")
        return user_path(instead), instead
    path = user_path(name)
    if source is None and (path.is_dir() or (path.is_file() and path.suffix in FILES)):
        return path, name
    hub_id = source.hub if source is not None else name
    if hub_id is None or not hub.is_id(hub_id):
        raise unknown_name(
            "data",
            name,
            ["a folder's path", "a .csv or .parquet file", "a hub ID owner/name", *SOURCES],
        )
    if root is None:
        return hub_id, "without --data-root, no local copy was looked for"
    for local in (source.local if source is not None else ()) or (hub_id,):
        folder = user_path(root) / local
        if folder.is_dir():
            return folder, local
    return hub_id, f"no local copy in {folder}"
