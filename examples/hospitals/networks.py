"""The hospitals' own network: a small ResNet with BatchNorm. Each of them has this file."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


def resnet(input_shape: tuple[int, ...], width: int = 8) -> nn.Module:
    """One logit for each scan: is the patient ill?"""
    channels = input_shape[0]
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, 2),
        Block(width, 2 * width, 2),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 1),
        nn.Flatten(0),
    )
