"""Pairwise DiLoCo: many local steps of AdamW, then an outer step with one random neighbour.

Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023; without
its sum over everyone, as in Kolehmainen et al., "NoLoCo: no-all-reduce low communication training
method for large models", 2025.

    τ times: x ← x + AdamW(g(x))
    for every pair {i, j} of a random matching, with means over both:
    Δ = mean(φ - x);   v⁺ = μ v + Δ;   φ⁺ = mean(φ) - η_o (Δ + μ v⁺);   x ← φ⁺

φ is where an agent's round has started; Δ is what the rounds of both have changed, taken as a
gradient. An agent that the matching leaves out does the same by itself. τ `local_steps`, η `lr` in
AdamW, η_o `outer_lr`, μ `outer_momentum`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.adam import AdamW, Moments
from parley.algorithms.base import MOST, Algorithm, DecayOn, LocalSteps, Stepped, WeightDecay
from parley.data import Batch
from parley.neighbourhood import Neighbourhood


class State(NamedTuple):
    """Models, the start of their round, outer momentum, and what AdamW keeps."""

    x_AD: Tensor
    φ_AD: Tensor
    v_AD: Tensor
    inner: Moments


class DiLoCo(Algorithm):
    """Long rounds of AdamW by everyone alone, then an outer step of random pairs of neighbours."""

    name = "diloco"
    title = "Pairwise DiLoCo"
    needs = "symmetric"

    local_steps: LocalSteps = 10
    outer_lr: float = Field(0.7, gt=0, le=MOST)
    """η_o, the learning rate of the outer step."""
    outer_momentum: float = Field(0.9, ge=0, lt=1)
    """μ, the Nesterov momentum of the outer steps."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """β₁ of AdamW."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """β₂ of AdamW."""
    epsilon: float = Field(1e-8, gt=0, le=1)
    """ε of AdamW."""
    weight_decay: WeightDecay = 0.01
    decay_on: DecayOn = "all"

    @property
    def is_scale_free(self) -> bool:
        """Its local steps are AdamW's."""
        return True

    @property
    def round_steps(self) -> int:
        """Models are one round's after τ steps."""
        return self.local_steps

    @property
    def _inner(self) -> AdamW:
        return AdamW(
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            decay_on=self.decay_on,
        )

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """Momentum, inside and outside, starts at zero."""
        return State(x_AD, x_AD, torch.zeros_like(x_AD), self._inner.init(x_AD))

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One local step, and the outer one if it is due."""
        x_AD, φ_AD, v_AD, inner = state
        g_AD, loss_A = hood.gradient(x_AD, batch)
        d_AD, inner = self._inner.step(inner, g_AD, x_AD, lr, hood)
        x_AD = x_AD + d_AD
        if (batch.step + 1) % self.local_steps == 0:
            pairs = hood.random_pairs(batch.step // self.local_steps)
            slow_AD = hood.meet(φ_AD, pairs)
            Δ_AD = slow_AD - hood.meet(x_AD, pairs)
            v_AD = self.outer_momentum * v_AD + Δ_AD
            x_AD = φ_AD = slow_AD - self.outer_lr * (Δ_AD + self.outer_momentum * v_AD)
        return Stepped(State(x_AD, φ_AD, v_AD, inner), loss_A)
