"""Datasets by name or from the user, and the batches that each agent draws from its share.

Axes: A agents hosted here, B samples of a batch, n samples, c h w channels, rows, columns.

What an agent sees at a step depends on (seed, agent, step) alone: not on the worker it lives in,
nor on the agents that live there with it.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parley.data import hub
from parley.data import text as tokens
from parley.data.decode import Options, Recipe, Source, load_folder
from parley.data.digits import digits
from parley.data.samples import Data
from parley.data.transforms import Transform
from parley.errors import BadValue, unknown_name

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
        data = digits()
    else:
        place, looked = _locate(name, source, root, chosen.folder)
        recipe = _recipe(source, options or {}, chosen, root, tokenizer)
        data = load_folder(place, looked, recipe)
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
    return Recipe(
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
        return load_folder(folder, str(place), recipe, needs_test=False)
    found, looked = _locate(str(place), None, root or os.environ.get("PARLEY_DATA_ROOT"))
    return load_folder(found, looked, recipe, needs_test=False)


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
