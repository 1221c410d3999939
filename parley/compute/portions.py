"""What each thread of the compiled engine does.

Axes: P pairs of a model and a batch, S sums that their gradients are added to."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parley.compute.engine import Pairs, Share


class Part(NamedTuple):
    """What one thread adds up."""

    model_P: NDArray[np.int64]
    row_P: NDArray[np.int64]
    target_SP: NDArray[np.int64]
    weight_SP: NDArray[np.float32]


class PairSums(NamedTuple):
    """What is added to what, as the kernels take it: the same in every step."""

    of: tuple[Pairs, Sequence[Share], int]
    parts: list[Part]
    last_model: int
    last_targets: list[int]
    """Of each share."""

    @classmethod
    def of_shares(cls, pairs: Pairs, shares: Sequence[Share], threads: int) -> "PairSums":
        """Cut up for so many threads."""
        model_P, row_P = pairs.models.numpy(), pairs.rows.numpy()
        target_SP = np.stack([share.target_P.numpy() for share in shares])
        weight_SP = np.stack([share.weight_P.float().numpy() for share in shares])
        for index in (model_P, target_SP):
            if index.size and index.min() < 0:
                raise IndexError(f"row {index.min()}")
        chosen = by_target(target_SP[0], threads)
        parts = [
            Part(model_P[p], row_P[p], target_SP[:, p].copy(), weight_SP[:, p].copy())
            for p in chosen
        ]
        last_model, *last_targets = (int(i.max(initial=-1)) for i in (model_P, *target_SP))
        return cls((pairs, shares, threads), parts, last_model, last_targets)

    def is_of(self, pairs: Pairs, shares: Sequence[Share], threads: int) -> bool:
        """Whether it is for these."""
        return self.of[0] is pairs and self.of[1] is shares and self.of[2] == threads


def by_target(target_P: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Pairs in parts of about the same size, all pairs of a target in the same one, in order."""
    order = np.argsort(target_P, kind="stable")
    sorted_P = target_P[order]
    middle = [len(order) * k // parts for k in range(1, parts) if len(order)]
    cuts = np.searchsorted(sorted_P, sorted_P[middle])
    return [np.sort(part) for part in np.split(order, cuts) if len(part)]


def slices(n: int, parts: int) -> list[slice]:
    """0 to n in so many parts of about the same size, or fewer where n is small."""
    cuts = [n * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(cuts) if a < b]
