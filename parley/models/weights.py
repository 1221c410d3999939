"""Files of weights: safetensors, whole and on disk, with a checksum of names, types and numbers.

The checksum is in the file's own metadata, so that a copy of the file alone is checked too. Files
of other programs have none.
"""

import logging
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from parley.files import make_folder, regular, replacing

log = logging.getLogger(__name__)

FORMAT, CHECK = {"format": "pt"}, "parley-crc32"


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors; those that share memory, as tied weights do, once for each of their names."""
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    temporary = path.with_suffix(".partial")
    make_folder(path.parent)
    with replacing(path, temporary):
        save_file(own, temporary, FORMAT | {CHECK: checksum(own)})


def load(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, never a pickle; a `ValueError` if they do not match their checksum."""
    with regular(path), safe_open(path, "pt") as file:
        about: dict[str, str] = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # A damaged bit may have renamed the field.
    if any(key == CHECK or "crc32" in key or key.startswith("parley") for key in about):
        if about != FORMAT | {CHECK: checksum(tensors)}:
            raise ValueError("it does not match its checksum")
    else:
        _say_unverified(path)
    return tensors


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Of all names, types, shapes and bytes.

    >>> checksum({"a": torch.zeros(2)}) == checksum({"a": torch.zeros(2, 1)})
    False
    """
    found = 0
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        found = zlib.crc32(f"{name} {value.dtype} {list(value.shape)}\n".encode(), found)
        found = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


@cache
def _say_unverified(path: Path) -> None:
    log.info("%s has no checksum of Parley's: it cannot be verified", path)
