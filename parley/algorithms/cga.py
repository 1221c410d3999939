"""CGA: Cross-Gradient Aggregation.

Esfandiari et al., "Cross-Gradient Aggregation for Decentralized Learning from Non-IID Data",
ICML 2021. Each agent turns its gradient g until it opposes none of the gradients g_j that its
neighbours' data give for its model:

    u = argmin ½ ‖g + Σ_j u_j g_j‖²  subject to  u ≥ floor;   g* = g + Σ_j u_j g_j

η `lr`, β `momentum`, γ `gamma`. Axes: A agents hosted here, O their outgoing edges, M most
neighbours of an agent, D flat parameters.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import nnls
from torch import Tensor

from parley.algorithms.base import Memory, MomentumSGD, Part
from parley.data import Batch
from parley.neighbourhood import Flow, Neighbourhood

GRAM_BLOCK = 4096
"""Entries whose products are added up in the gradients' own precision."""


class State(NamedTuple):
    """Models and momentum."""

    x_AD: Tensor
    v_AD: Tensor


class Projection(Part):
    """CGA's gradient rule."""

    looks_around: ClassVar[bool] = True
    qp_floor: float = Field(0.0, ge=0)
    """Smallest multiplier: 0 as printed. As run it is 0.5, where most multipliers then stay, so
    that the projection is nearly a fixed mean."""
    qp_scale: Literal["none", "neighbourhood"] = "none"
    """Factor of the result: none as printed, or as run 1 / (neighbours + 1)."""
    scope: Literal["whole", "tensor"] = "whole"
    """What is handled at once: the whole gradient as printed, or as run each parameter tensor (with
    a compression scale of its own, and for CGA a projection of its own)."""

    def gradient(
        self, at_AD: Tensor, x_I: Flow, hood: Neighbourhood, batch: Batch, memory: Memory
    ) -> Tensor:
        """g*, with self-gradients at `at_AD` and cross-gradients at the own models."""
        g_AD = hood.gradient(at_AD, batch)
        r_OD = hood.send_back(hood.cross_gradient(x_I, batch))
        return self.project(g_AD, r_OD, hood)

    def project(self, g_AD: Tensor, r_OD: Tensor, hood: Neighbourhood) -> Tensor:
        """g* of every hosted agent."""
        sizes = hood.sizes if self.scope == "tensor" else (sum(hood.sizes),)
        members_AM = by_agent(hood.sender_O, len(g_AD))
        if not members_AM.shape[1]:
            return g_AD
        present_AM = members_AM >= 0
        r_AMD = r_OD[members_AM.clamp(min=0)]
        if not present_AM.all():
            r_AMD *= present_AM[..., None]
        result_AD = torch.cat(
            [
                project(g_Ad, r_AMd, self.qp_floor)
                for g_Ad, r_AMd in zip(g_AD.split(sizes, 1), r_AMD.split(sizes, 2), strict=True)
            ],
            dim=1,
        )
        if self.qp_scale == "neighbourhood":
            result_AD /= present_AM.sum(1, keepdim=True) + 1
        return result_AD


class CGA(Projection, MomentumSGD):
    """Projects each agent's gradient onto those that its neighbours' data agree with."""

    name = "cga"
    title = "CGA"
    needs = "symmetric"

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> State:
        """Momentum starts at zero."""
        return State(x_AD, torch.zeros_like(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> State:
        """One iteration."""
        x_AD, v_AD = state
        x_I = hood.exchange(x_AD)
        at_AD = x_AD if self.gradient_at == "own" else self.mixed(x_AD, x_I, hood)
        g_AD = self.gradient(at_AD, x_I, hood, batch, {})
        d_AD, v_AD = self.descend(g_AD, at_AD, v_AD, lr)
        mixed_AD = self.mixed(x_AD, x_I, hood) if self.gradient_at == "own" else at_AD
        return State(mixed_AD + d_AD, v_AD)


def by_agent(sender_O: Tensor, agents: int) -> Tensor:
    """The outgoing edges of each agent, padded with -1, ``[A, M]``.

    >>> by_agent(torch.tensor([0, 1, 1]), 2)
    tensor([[ 0, -1],
            [ 1,  2]])
    """
    groups = [torch.nonzero(sender_O == a).flatten() for a in range(agents)]
    return torch.nn.utils.rnn.pad_sequence(groups, batch_first=True, padding_value=-1)


def project(g_AD: Tensor, r_AMD: Tensor, floor: float) -> Tensor:
    """g + Σ_j u_j g_j with the multipliers u of each agent's quadratic program."""
    # In float64 beyond a block of entries: the Gram matrix squares the gradients' range.
    blocks = zip(r_AMD.split(GRAM_BLOCK, 2), g_AD[..., None].split(GRAM_BLOCK, 1), strict=True)
    products = [((r @ r.mT).double(), (r @ g).double()) for r, g in blocks]
    gram_AMM, along_AM1 = (sum(parts).cpu().numpy() for parts in zip(*products, strict=True))
    u_AM = [multipliers(G, c[:, 0], floor) for G, c in zip(gram_AMM, along_AM1, strict=True)]
    u_A1M = torch.as_tensor(np.stack(u_AM), dtype=g_AD.dtype, device=g_AD.device)[:, None]
    return torch.baddbmm(g_AD[:, None], u_A1M, r_AMD).squeeze(1)


def multipliers(gram: np.ndarray, along: Sequence[float] | np.ndarray, floor: float) -> np.ndarray:
    """argmin ½ uᵀ G u + cᵀ u subject to u ≥ floor; G: Gram matrix of the g_j, c_j = g·g_j.

    With u = floor + w it is a non-negative least-squares problem in any factor of G. A gradient
    that is exactly zero has no say: its multiplier is 0.

    >>> multipliers(np.eye(2), [-3.0, 1.0], floor=0.0)
    array([3., 0.])
    """
    if not (np.isfinite(gram).all() and np.isfinite(along).all()):
        return np.full(len(gram), np.nan)  # diverged: for the run to see and to say
    u = np.zeros(len(gram))
    (present,) = np.nonzero(np.diag(gram) > 0)
    if len(present):
        # The authors' regularisation: equal gradients make G singular.
        gram = gram[np.ix_(present, present)] + 1e-12 * np.eye(len(present))
        shifted = np.asarray(along)[present] + gram.sum(1) * floor
        values, vectors = np.linalg.eigh(gram)
        root = np.sqrt(np.maximum(values, 1e-12))
        w, _ = nnls(root[:, None] * vectors.T, -(vectors.T @ shifted) / root)
        u[present] = floor + w
    return u
