"""Clipping: a bound on every agent's gradient.

Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.

    by norm     g ← g · min(1, c / ‖g‖)
    by value    every entry of g between -c and c

What is clipped is the gradient that the update rule gets: NGC's clusters, CGA's projection or what
tracking makes of it, not what is sent. c `clip`. Axes: A agents hosted here, D flat parameters.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import MOST
from parley.algorithms.parts import ClippingRule


class Clip(ClippingRule):
    """Clipping by norm or by value."""

    word = "clip"
    title = "clipping"
    alone = False
    clip: float = Field(1.0, gt=0, le=MOST)
    """c, the upper bound on a gradient's norm, or on the size of each entry."""
    clip_by: Literal["norm", "value"] = "norm"
    """What is bounded: the norm of an agent's whole gradient, or every entry of it."""

    def apply(self, g_AD: Tensor) -> Tensor:
        """The gradients within the bound."""
        if self.clip_by == "value":
            return g_AD.clamp(-self.clip, self.clip)
        size_A1 = g_AD.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return g_AD * torch.clamp(self.clip / size_A1, max=1)
