"""What the answers of each task look like as tensors, and how they are counted.

| task | targets |
|---|---|
| classification, binary | ``int64[n]``: the class |
| multilabel | ``float32[n, labels]``: 1 for every label that applies, 0 otherwise |
| regression | ``float32[n, values]`` |
| segmentation | ``int64[n, h, w]``: the class of each pixel |
| language-model | ``int64[n, tokens]``: the token that comes after each position |
| own | numbers of any shape |
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley import measures

IGNORED = -100
"""The target of pixels and tokens that do not count, unless the experiment says otherwise."""

CLASSES = (measures.CLASSIFICATION, measures.BINARY)
"""Tasks in which every sample has one class."""
NAMED = (*CLASSES, measures.MULTILABEL, measures.SEGMENTATION)
"""Tasks whose answers have names."""


class Wrong(ValueError):
    """Targets that a task does not have: what is valid, and what was found."""

    def __init__(self, valid: str, found: str) -> None:
        super().__init__(found)
        self.valid = valid
        self.found = found


def described(tensor: Tensor) -> str:
    """A tensor of samples in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape[1:])}"


def fitted(task: str, targets: Tensor) -> Tensor:
    """The targets in the form of the task; raises `Wrong` if they are something else.

    >>> fitted("regression", torch.tensor([1, 2])).shape
    torch.Size([2, 1])
    """
    whole = not targets.is_floating_point() and targets.dtype != torch.bool
    found = f"its targets are {described(targets)}"
    if task in CLASSES:
        if task == measures.BINARY and targets.dtype == torch.bool:
            targets, whole = targets.to(torch.int64), True
        if targets.ndim != 1 or not whole:
            raise Wrong("the class as a whole number for each target", found)
        if len(targets) and targets.min() < 0:
            raise Wrong("classes numbered from 0", f"it has class {int(targets.min())}")
        if task == measures.BINARY and len(targets) and targets.max() > 1:
            raise Wrong("the targets 0 and 1", f"it has class {int(targets.max())}")
        return targets.to(torch.int64)
    if task == measures.MULTILABEL:
        if targets.ndim != 2 or not bool(((targets == 0) | (targets == 1)).all()):
            raise Wrong("a row of 0 and 1 for each target, one for each label", found)
        return targets.to(torch.float32)
    if task == measures.REGRESSION:
        if targets.ndim not in (1, 2) or targets.dtype == torch.bool:
            raise Wrong("a number, or a row of numbers, for each target", found)
        if not bool(torch.isfinite(targets.double()).all()):
            raise Wrong("finite targets", "some are NaN or infinite")
        return targets.reshape(len(targets), -1).to(torch.float32)
    if task == measures.SEGMENTATION:
        if targets.ndim != 3 or not whole:
            raise Wrong("the class of each pixel, as whole numbers of shape [height, width]", found)
        return targets.to(torch.int64)
    if task == measures.LANGUAGE_MODEL:
        if targets.ndim != 2 or not whole:
            raise Wrong("the next token of each position, as a row of whole numbers", found)
        return targets.to(torch.int64)
    return targets.to(torch.int64) if whole else targets.to(torch.float32)


def classes_in(task: str, parts: Sequence[Tensor], ignored: int) -> tuple[str, ...]:
    """Names for the answers of a task where the data have none: their numbers."""
    parts = [part for part in parts if part.numel()]
    whole = all(part.ndim == 1 and not part.is_floating_point() for part in parts)
    if task in CLASSES or task == measures.SEGMENTATION or (task == measures.OWN and whole):
        kept = [part[part != ignored] for part in parts]
        most = max((int(part.max()) for part in kept if part.numel()), default=0)
        return tuple(map(str, range(max(most + 1, 2 * (task == measures.BINARY)))))
    if task in (measures.MULTILABEL, measures.REGRESSION):
        return tuple(map(str, range(parts[0].shape[1])))
    return ()


def strata(targets: Tensor) -> NDArray[np.int64]:
    """The class of each sample where it has one; otherwise all samples are alike."""
    if targets.ndim == 1 and not targets.is_floating_point():
        return targets.numpy()
    return np.zeros(len(targets), dtype=np.int64)


def held_names(task: str, class_names: Sequence[str]) -> list[str]:
    """What `held` counts."""
    return list(class_names) if task in NAMED else ["samples"]


def held(task: str, targets: Tensor, classes: int) -> list[int]:
    """How often each class occurs: samples of it, samples with the label, or pixels; without
    classes, the number of samples."""
    if task in CLASSES:
        return torch.bincount(targets, minlength=classes).tolist()
    if task == measures.MULTILABEL:
        return targets.sum(0).to(torch.int64).tolist()
    if task == measures.SEGMENTATION:
        named = targets[(targets >= 0) & (targets < classes)]
        return torch.bincount(named, minlength=classes).tolist()
    return [len(targets)]
