"""A network as a user may bring it: residual, with GroupNorm, strides and GELU."""

from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions and a shortcut, which is a projection where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(8, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(8, outputs)
        self.project = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.gelu(y + self.project(x))


def own(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """170,474 parameters for colour images and 10 classes."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 3, padding=1),
        nn.GELU(),
        *(Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
