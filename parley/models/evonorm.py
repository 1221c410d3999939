"""EvoNorm-S0: activation and normalisation in one layer, with no statistics across samples.

Liu et al., "Evolving Normalization-Activation Layers", NeurIPS 2020. For a sample and a group of
channels with variance s² over the group's channels and pixels,

    y = x·σ(v·x) / √(s² + ε) · γ + β            form "s0", as published
    y = x·clamp(x/6 + ½, 0, 1) / √(s² + ε) · γ + β    form "hard-swish", no v

The code that produced the NGC paper's numbers ran the second, so it is the default.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from parley.errors import BadValue

Form = Literal["hard-swish", "s0"]


class EvoNorm(nn.Module):
    """Normalises inputs [n, channels, height, width]; one sample never affects another.

    >>> EvoNorm(16)(torch.ones(2, 16, 4, 4)).shape
    torch.Size([2, 16, 4, 4])
    """

    eps = 1e-5

    def __init__(self, num_channels: int, groups: int = 8, form: Form = "hard-swish") -> None:
        super().__init__()
        if form not in get_args(Form):
            raise BadValue("model.evonorm", form, ", ".join(get_args(Form)))
        if num_channels < 1 or groups < 1 or num_channels % groups:
            raise BadValue("model.groups", groups, f"a divisor of the {num_channels} channels")
        self.groups = groups
        self.form = form
        self.gamma = nn.Parameter(torch.ones(num_channels))
        self.beta = nn.Parameter(torch.zeros(num_channels))
        self.v = nn.Parameter(torch.ones(num_channels)) if form == "s0" else None

    def forward(self, x: Tensor) -> Tensor:
        """Gate, divide by the group's standard deviation, scale and shift."""
        if self.v is None:
            gate = (x / 6 + 0.5).clamp(0, 1)
        else:
            gate = torch.sigmoid(self.v[:, None, None] * x)
        n, channels = x.shape[:2]
        variance = x.reshape(n, self.groups, -1).var(dim=2, unbiased=False)
        deviation = (variance + self.eps).sqrt().repeat_interleave(channels // self.groups, dim=1)
        y = x * gate / deviation[:, :, None, None]
        return y * self.gamma[:, None, None] + self.beta[:, None, None]

    def extra_repr(self) -> str:
        """Shown inside `repr(model)`."""
        return f"{len(self.gamma)}, groups={self.groups}, form={self.form!r}"
