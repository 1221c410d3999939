"""DeepSqueeze: gossip of compressed models with error compensation.

Tang et al., "DeepSqueeze: decentralization meets error-compensated compression", 2019.

    v = x + d + e;   e⁺ = v - C(v);   x⁺ = x + d + γ Σ_j (w_ij - I_ij) C(v^j)

C `codec`, η `lr` in d, γ `gamma`. Axes: A agents hosted here, D flat parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parley.algorithms.base import LocalSteps
from parley.algorithms.choco import CompressedOptions
from parley.algorithms.parts import Channel, ConservingRule, Sent, SGDOptions, heard, publish
from parley.algorithms.recipe import Combination
from parley.neighbourhood import Neighbourhood


class HeldBack(NamedTuple):
    """What compression has left out so far, e."""

    error_AD: Tensor


class CompensatedGossip(CompressedOptions, ConservingRule):
    """DeepSqueeze's averaging rule."""

    word = "deepsqueeze"
    title = "DeepSqueeze"

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool, edges: bool) -> HeldBack:
        """Errors start at zero."""
        return HeldBack(torch.zeros_like(x_AD))

    def send(
        self, state: HeldBack, x_AD: Tensor, hood: Neighbourhood, channel: Channel
    ) -> tuple[Sent, HeldBack]:
        """C(v), e⁺ = v - C(v)."""
        v_AD = x_AD + state.error_AD
        q_AD, q_I = publish(v_AD, hood, self.codec, channel)
        return Sent(q_AD, q_I), HeldBack(v_AD - q_AD)

    def mix(
        self, state: HeldBack, x_AD: Tensor, sent: Sent, hood: Neighbourhood
    ) -> tuple[Tensor, HeldBack]:
        """x + γ Σ_j (w_ij - I_ij) C(v^j)."""
        q_AD = sent.own_AD
        return x_AD + self.gamma * (hood.average(q_AD, heard(sent)) - q_AD), state


class DeepSqueeze(CompressedOptions, SGDOptions, Combination):
    """Steps on the agent's own data, then averages compressed models; the error is sent later."""

    name = "deepsqueeze"
    title = "DeepSqueeze"
    made_of = (CompensatedGossip,)

    local_steps: LocalSteps = 1
