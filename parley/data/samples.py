"""Inputs and targets, and which part of them is used.

Axes: n samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.data.preparation import AS_IS, Preparation
from parley.data.targets import strata
from parley.data.transforms import Transform
from parley.errors import BadValue

# Streams of random numbers: default_rng([seed, stream, agent, pass or step]).
PERMUTATIONS, AUGMENTATIONS, _SHARE = 1, 2, 5


@dataclass(frozen=True)
class Samples:
    """Inputs with their answers."""

    inputs: Tensor  # [n, ...]: uint8 images [n, c, h, w], float32, or int32/int64 token IDs
    targets: Tensor  # [n] int64 classes, or what the task has: see parley.data.targets

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: NDArray[np.int64] | Sequence[int]) -> "Samples":
        """The samples at these indices, in this order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return Samples(self.inputs[index], self.targets[index])


@dataclass(frozen=True)
class Data:
    """A dataset in memory: the samples to divide among the agents, and those to test on."""

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    transform: Transform
    preparation: Preparation = AS_IS
    """How the inputs were made of files."""
    groups: NDArray[np.int64] | None = None
    """The numbers of the values that a column of the training samples has, if one was asked for."""


def rng_of(*numbers: int) -> np.random.Generator:
    """The generator that ``np.random.default_rng(numbers)`` makes, in two thirds of the time."""
    if max(numbers) >= 2**32:
        return np.random.default_rng(numbers)
    return np.random.Generator(np.random.PCG64(np.array(numbers, dtype=np.uint32)))


def share_of(targets: Tensor, fraction: float, seed: int) -> NDArray[np.int64]:
    """The indices of a share of the samples, equal for every class, at least one of each.

    >>> targets = torch.tensor([0, 1] * 5)
    >>> targets[share_of(targets, 0.4, seed=0)].bincount().tolist()
    [2, 2]
    """
    if fraction == 1:
        return np.arange(len(targets))
    rng, classes = np.random.default_rng([seed, _SHARE]), strata(targets)
    members = [np.flatnonzero(classes == c) for c in np.unique(classes)]
    kept = [rng.permutation(m)[: max(1, round(fraction * len(m)))] for m in members]
    return np.sort(np.concatenate(kept))


def hold_out(
    targets: Tensor, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of the samples to train on, and of a held-out share of every class.

    >>> left, held = hold_out(torch.tensor([0, 1] * 5), 0.4, seed=0)
    >>> len(left), len(held)
    (6, 4)
    """
    if fraction == 0:
        return np.arange(len(targets)), np.arange(0)
    rng, classes = np.random.default_rng([seed, _SHARE, 1]), strata(targets)
    orders = [rng.permutation(np.flatnonzero(classes == c)) for c in np.unique(classes)]
    cuts = [(order, max(1, round(fraction * len(order)))) for order in orders]
    if any(cut == len(order) for order, cut in cuts):
        because = "a class has nothing left to train on"
        raise BadValue("validation", fraction, "a smaller share", because)
    left, held = ([o[c:] for o, c in cuts], [o[:c] for o, c in cuts])
    return np.sort(np.concatenate(left)), np.sort(np.concatenate(held))


def cut_each(
    samples: Sequence[Samples],
    tests: Sequence[Samples],
    fraction: float,
    validation: float,
    seed: int,
) -> tuple[list[Samples], list[Samples]]:
    """Agents' own data, each cut separately, and the samples that each is evaluated on.

    `fraction` applies to each agent's samples; with `validation`, the samples held out from each
    agent replace its test samples.
    """
    kept = [s.take(share_of(s.targets, fraction, seed)) for s in samples]
    if not validation:
        return kept, list(tests)
    cuts = [hold_out(s.targets, validation, seed) for s in kept]
    held = [s.take(out) for s, (_, out) in zip(kept, cuts, strict=True)]
    return [s.take(left) for s, (left, _) in zip(kept, cuts, strict=True)], held


def cut_own(
    samples: Sequence[Samples], test: Samples, fraction: float, validation: float, seed: int
) -> tuple[list[Samples], Samples]:
    """The same where all agents are evaluated on common samples."""
    kept, held = cut_each(samples, [], fraction, validation, seed)
    return kept, joined(held) if validation else test


def joined(parts: Sequence[Samples]) -> Samples:
    """Several sets of samples as one."""
    inputs, targets = [part.inputs for part in parts], [part.targets for part in parts]
    return Samples(torch.cat(inputs), torch.cat(targets))
