"""Weights to start from: a file, the folder of a run, or a model on the hub.

What fits by name and shape is used; what does not is listed, and starts as the model was built.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from parley.data import hub
from parley.errors import BadValue, needed, shown
from parley.files import user_path
from parley.models import weights

log = logging.getLogger(__name__)

VALID = "a .safetensors file, the folder of a complete run, or hf: and a folder or hub ID"
WEIGHTS, CARD = "model.safetensors", "model.json"
INSIDE = "network"
"""Parley's models of text have the network of `transformers` inside, under this name."""
LISTED = 8
"""Tensors that are named, at most, where some do not fit."""


def start_from(model: nn.Module, source: str) -> None:
    """Gives the model the weights that a source has for it."""
    tensors = _tensors(source)
    mine = model.state_dict()
    named = max(
        ({prefix + name: value for name, value in tensors.items()} for prefix in _prefixes(model)),
        key=lambda there: len(mine.keys() & there.keys()),
    )
    fit = {n: v for n, v in named.items() if n in mine and mine[n].shape == v.shape}
    if not fit:
        because = "no tensor in it has the name and shape of one of the model's"
        raise BadValue("init", source, "weights of this model, or of a part of it", because)
    with torch.no_grad():
        model.load_state_dict(fit, strict=False)
    # Tied weights are one tensor with several names, of which a file need not have all.
    places = {mine[name].data_ptr() for name in fit if mine[name].numel()}
    tied = {n for n in mine.keys() - named.keys() if mine[n].data_ptr() in places}
    if left := strangers({n: v for n, v in mine.items() if n not in tied}, named):
        listed = "; ".join(left[:LISTED]) + f"; and {len(left) - LISTED} more" * (
            len(left) > LISTED
        )
        log.warning("init: %d of the model's %d tensors are from %s; not used: %s",
                    len(fit), len(mine) - len(tied), source, listed)  # fmt: skip
    else:
        log.info("init: all %d tensors are from %s", len(fit), source)


def _prefixes(model: nn.Module) -> list[str]:
    """What may come before the names in a file: nothing, or where the network of `transformers` is,
    or its part without a head, which many files have alone."""
    base = getattr(getattr(model, INSIDE, None), "base_model_prefix", "")
    return ["", f"{INSIDE}.", f"{INSIDE}.{base}."]


def strangers(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    """What does not fit, in words.

    >>> strangers({"a": torch.zeros(2), "b": torch.zeros(1)}, {"a": torch.zeros(3)})
    ['a has shape [3] there and [2] here', 'b is not there']
    """
    found = []
    for name, value in mine.items():
        if name not in theirs:
            found.append(f"{name} is not there")
        elif theirs[name].shape != value.shape:
            there, here = list(theirs[name].shape), list(value.shape)
            found.append(f"{name} has shape {there} there and {here} here")
    return found + [f"{shown(name)} is only there" for name in theirs if name not in mine]


def _tensors(source: str) -> dict[str, Tensor]:
    path = _hub_file(source[3:]) if source.startswith("hf:") else user_path(source)
    path = path / WEIGHTS if path.is_dir() else path
    if not os.path.lexists(path):
        because = f"{path.name} is not there" if path.parent.is_dir() else "it does not exist"
        raise BadValue("init", source, VALID, because)
    try:
        found = weights.load(path)
    except (OSError, SafetensorError, ValueError, MemoryError) as error:
        raise BadValue("init", source, VALID, f"{path.name}: {shown(error, 200)}") from None
    return found


def _hub_file(source: str) -> Path:
    folder = user_path(source)
    if folder.is_dir():
        return folder
    if not hub.is_id(source) and not hub.is_id(f"owner/{source}"):
        raise BadValue("init", f"hf:{source}", VALID, "no such folder")
    library = needed("huggingface_hub", "hub", "init", f"hf:{source}")

    with hub.offline_unless_reachable() as reachable:
        try:
            return Path(library.hf_hub_download(source, WEIGHTS))
        except Exception as error:  # many unrelated types, which all mean "not found"
            why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            why = why if reachable else "no such folder, and the hub cannot be reached"
            valid = f"a model on the Hugging Face hub that has {WEIGHTS}, or a folder with it"
            raise BadValue("init", f"hf:{source}", valid, why) from error
