"""CGA: Cross-Gradient Aggregation.

Esfandiari et al., "Cross-Gradient Aggregation for Decentralized Learning from Non-IID Data",
ICML 2021. Each agent rotates its gradient g until it opposes none of the gradients g_j of its model
on its neighbours' data:

    u = argmin ½ ‖π (g + Σ_j u_j g_j)‖² + ½ ε ‖u‖²  subject to  u ≥ floor
    g* = π (g + Σ_j u_j g_j)

π is 1, or 1 / (neighbours + 1) as run. ε = 10⁻¹² comes from the authors' code, which solves the
program for the gradients times π: it makes the program regular and has almost no other effect. The
printed program has no ε; here it is the same, with π = 1.

η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted here, O their outgoing edges, M the most
neighbours of an agent, D flat parameters, P quadratic programs.
"""

from abc import ABC
from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST, GradientAt, Options, Rate, Scope
from parley.algorithms.parts import CrossGradientRule, Found, SGDOptions
from parley.algorithms.recipe import Combination
from parley.data import Batch
from parley.neighbourhood import Neighbourhood, OnEdges

GRAM_BLOCK = 16384
"""Entries that are converted to float64 at a time."""
RIDGE = 1e-12
"""What the authors add to the squared length of each π g_j, since equal gradients make the program
singular. Here the program is in terms of the g_j, so it is `RIDGE` / π²."""
TINY = 1e-14
"""The smallest ridge, relative to a gradient's squared length: a smaller one would be lost in the
rounding of the Gram matrix. It matters only where ‖π g_j‖ is above 10, where the authors' solver
may fail."""
FEW = 4
"""With up to this many neighbours, all sets of multipliers above the floor are tried."""


class ProjectionOptions(Options):
    """The hyper-parameters of the projection: of the parts, and of the algorithms."""

    qp_floor: float = Field(0.0, ge=0, le=MOST)
    """Smallest multiplier: 0 as printed. As run it is 0.5, where most multipliers then stay, which
    makes the projection nearly a fixed mean."""
    qp_scale: Literal["none", "neighbourhood"] = "none"
    """Factor applied to the result: none as printed, 1 / (neighbours + 1) as run."""
    scope: Scope = "whole"


class ProjectionRule(ProjectionOptions, CrossGradientRule, ABC):
    """What CGA and CompCGA share: the projection."""

    needs = "symmetric"

    def project(self, g_AD: Tensor, r_OD: Tensor, hood: Neighbourhood) -> Tensor:
        """g* for every hosted agent."""
        sizes = hood.sizes if self.scope == "tensor" else (sum(hood.sizes),)
        result_AD = g_AD.clone()
        # Grouped by number of neighbours: no program may depend on the others in its batch.
        for agents, members_AM in by_neighbours(hood.sender_O, len(g_AD)):
            π = 1 / (members_AM.shape[1] + 1) if self.qp_scale == "neighbourhood" else 1.0
            found_AD = project(g_AD[agents], r_OD[members_AM], sizes, self.qp_floor, RIDGE / π**2)
            result_AD[agents] = π * found_AD
        return result_AD


class Projection(ProjectionRule):
    """CGA's gradient rule."""

    word = "cga"
    title = "CGA"

    def apply(
        self, state: Any, at_AD: Tensor, x_I: OnEdges, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """g*, with self-gradients at `at_AD` and cross-gradients at the agents' own models."""
        g_AD, loss_A = hood.gradient(at_AD, batch)
        r_OD = hood.send_back(hood.cross_gradient(x_I, batch))
        return Found(self.project(g_AD, r_OD, hood), loss_A, state)


class CGA(ProjectionOptions, SGDOptions, Combination):
    """Projects each agent's gradient onto those that its neighbours' data agree with."""

    name = "cga"
    title = "CGA"
    made_of = (Projection,)

    gamma: Rate = 1.0
    gradient_at: GradientAt = "own"


def by_neighbours(sender_O: Tensor, agents: int) -> list[tuple[Tensor, Tensor]]:
    """For each number M, the agents with M outgoing edges, and those edges ``[A, M]``.

    >>> by_neighbours(torch.tensor([0, 1, 1]), 3)
    [(tensor([0]), tensor([[0]])), (tensor([1]), tensor([[1, 2]]))]
    """
    edges_of = [torch.nonzero(sender_O == a).flatten() for a in range(agents)]
    counts = sorted({len(edges) for edges in edges_of} - {0})
    groups = [[a for a in range(agents) if len(edges_of[a]) == count] for count in counts]
    return [(torch.tensor(group), torch.stack([edges_of[a] for a in group])) for group in groups]


def project(
    g_AD: Tensor, r_AMD: Tensor, sizes: Sequence[int], floor: float, ridge: float
) -> Tensor:
    """g + Σ_j u_j g_j, with the multipliers u of a quadratic program for each agent and segment."""
    segments = list(zip(g_AD.split(sizes, 1), r_AMD.split(sizes, 2), strict=True))
    products = [products_of(g_Ad, r_AMd) for g_Ad, r_AMd in segments]
    gram_PMM, along_PM = (torch.cat(parts).cpu().numpy() for parts in zip(*products, strict=True))
    u_PM = torch.from_numpy(multipliers(gram_PMM, along_PM, floor, ridge)).to(g_AD)
    result_AD = torch.empty_like(g_AD)
    for (g_Ad, r_AMd), u_AM, result_Ad in zip(
        segments, u_PM.split(len(g_AD)), result_AD.split(sizes, 1), strict=True
    ):
        result_Ad.copy_(g_Ad)
        for u_A, r_Ad in zip(u_AM.unbind(1), r_AMd.unbind(1), strict=True):
            result_Ad += u_A[:, None] * r_Ad
    return result_AD


def products_of(g_AD: Tensor, r_AMD: Tensor) -> tuple[Tensor, Tensor]:
    """The Gram matrix of each agent's r_M, and their products with g.

    In float64: if gradients are nearly parallel, or outnumber their entries, a float32 Gram matrix
    would be indefinite. One agent at a time: the rounding of a batched product may depend on the
    size of the batch.
    """
    products = [
        _products(torch.cat([r_MD, g_D[None]])) for r_MD, g_D in zip(r_AMD, g_AD, strict=True)
    ]
    products_AMN = torch.stack(products)
    return products_AMN[..., :-1], products_AMN[..., -1]


def _products(v_ND: Tensor) -> Tensor:
    """Of all rows but the last with all rows, ``[N - 1, N]``."""
    wide = (v_Nd.double() for v_Nd in v_ND.split(GRAM_BLOCK, 1))
    return torch.stack([v_Nd[:-1] @ v_Nd.mT for v_Nd in wide]).sum(0)


def multipliers(
    gram_PMM: np.ndarray, along_PM: np.ndarray, floor: float, ridge: float
) -> np.ndarray:
    """argmin ½ uᵀ (G + ridge I) u + cᵀ u subject to u ≥ floor, of many programs P.

    G is the Gram matrix of the g_j and c_j = g·g_j. With u = floor + w it is a non-negative
    least-squares problem. A gradient that is exactly zero has no effect: its multiplier is 0.

    >>> multipliers(np.eye(2)[None], np.array([[-3.0, 1.0]]), floor=0.0, ridge=0.0)
    array([[3., 0.]])
    """
    finite_P = np.isfinite(gram_PMM).all((1, 2)) & np.isfinite(along_PM).all(1)
    gram_PMM = np.where(finite_P[:, None, None], gram_PMM, 0.0)
    along_PM = np.where(finite_P[:, None], along_PM, 0.0)
    square_PM = np.diagonal(gram_PMM, axis1=1, axis2=2)
    entry = np.arange(gram_PMM.shape[1])
    gram_PMM[:, entry, entry] += np.maximum(ridge, TINY * square_PM)
    # Scaled so that every gradient has length about 1: programs of any scale are solved alike.
    # Scaling by powers of two does not round.
    unit_PM = np.ldexp(1.0, -np.frexp(np.sqrt(np.where(square_PM > 0, square_PM, 1.0)))[1])
    slope_PM = (along_PM + gram_PMM.sum(2) * floor) * unit_PM
    gram_PMM = gram_PMM * unit_PM[:, None] * unit_PM[..., None]
    gram_PMM[:, entry, entry] += square_PM == 0
    solve = by_supports if len(entry) <= FEW else by_active_sets
    u_PM: np.ndarray = floor + unit_PM * solve(gram_PMM, slope_PM)
    u_PM *= square_PM > 0
    u_PM[~finite_P] = np.nan  # diverged: the run detects and reports it
    return u_PM


def by_supports(gram_PMM: np.ndarray, slope_PM: np.ndarray) -> np.ndarray:
    """argmin ½ wᵀ G w + cᵀ w subject to w ≥ 0: all sets of free entries are tried.

    The answer is the set for which no entry held at 0 would grow. If rounding leaves none, it is
    the set for which they would grow least, which is sharper than comparing values: near the
    optimum those differ only quadratically. There are 2^M sets, but each is tried on all programs
    at once.
    """
    w_PM = np.zeros_like(slope_PM)
    least_P = -slope_PM.min(1)
    entries = range(slope_PM.shape[1])
    for free in chain.from_iterable(combinations(entries, n + 1) for n in entries):
        held = [entry for entry in entries if entry not in free]
        w_Pf = np.linalg.solve(gram_PMM[:, free][..., free], -slope_PM[:, free, None])[..., 0]
        held_Ph = slope_PM[:, held] + (gram_PMM[:, held][..., free] @ w_Pf[..., None])[..., 0]
        wants_P = -held_Ph.min(1, initial=0.0)
        better_P = (w_Pf >= 0).all(1) & (wants_P < least_P)
        least_P = np.where(better_P, wants_P, least_P)
        trial_PM = np.zeros_like(w_PM)
        trial_PM[:, free] = w_Pf
        w_PM = np.where(better_P[:, None], trial_PM, w_PM)
    return w_PM


def by_active_sets(gram_PMM: np.ndarray, slope_PM: np.ndarray) -> np.ndarray:
    """The same, one program at a time: non-negative least squares in a factor of G finds the free
    entries, and G itself gives them to full precision."""
    from scipy.optimize import nnls  # here: it takes a third of a second to load, and few need it

    w_PM = np.zeros_like(slope_PM)
    for w, gram, slope in zip(w_PM, gram_PMM, slope_PM, strict=True):
        values, vectors = np.linalg.eigh(gram)
        root = np.sqrt(np.maximum(values, TINY))
        rough, _ = nnls(root[:, None] * vectors.T, -(vectors.T @ slope) / root)
        free = np.flatnonzero(rough)
        exact = np.linalg.solve(gram[np.ix_(free, free)], -slope[free])
        w[free] = exact if (exact >= 0).all() else rough[free]
    return w_PM
