"""MobileNet-V2 in its variant for 32 x 32 images, with EvoNorm.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018. The variant
omits the first two downsamplings, adds a shortcut (1x1 convolution with EvoNorm) where only the
number of channels changes, and also has EvoNorm, hence an activation, after the bottleneck.
"""

from torch import nn

from parley.models.blocks import Residual, check_images, mean_pool
from parley.models.evonorm import EvoNorm, Form

# Expansion, channels, blocks, stride of the first.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenetv2(
    input_shape: tuple[int, ...], classes: int, *, evonorm: Form = "hard-swish"
) -> nn.Module:
    """2,296,922 parameters for colour images and 10 classes; PyTorch's own init."""
    channels = check_images("mobilenetv2", input_shape, 8)

    def unit(
        inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> nn.Module:
        conv = nn.Conv2d(
            inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
        )
        return nn.Sequential(conv, EvoNorm(outputs, form=evonorm))

    layers = [unit(channels, 32, 3)]
    inputs = 32
    for expansion, outputs, blocks, first in _STAGES:
        for block in range(blocks):
            stride = first if block == 0 else 1
            wide = expansion * inputs
            body: nn.Module = nn.Sequential(
                unit(inputs, wide), unit(wide, wide, 3, stride, groups=wide), unit(wide, outputs)
            )
            if stride == 1:
                same = inputs == outputs
                body = Residual(body, nn.Identity() if same else unit(inputs, outputs))
            layers.append(body)
            inputs = outputs
    return nn.Sequential(*layers, unit(320, 1280), *mean_pool(), nn.Linear(1280, classes))
