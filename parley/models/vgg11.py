"""The NGC paper's VGG-11 for CIFAR-10: a quarter of the usual filters, one linear layer."""

from torch import nn

from parley.models.blocks import check_images
from parley.models.evonorm import EvoNorm, Form

# Filters of the convolutions between one pool and the next.
_STAGES = ((16,), (32,), (64, 64), (128, 128), (128, 128))


def vgg11(input_shape: tuple[int, ...], classes: int, *, evonorm: Form = "hard-swish") -> nn.Module:
    """579,786 parameters for 32 x 32 colour images and 10 classes (580,474 with `evonorm="s0"`).

    Unlike in the other networks, the convolutions have a bias, which PyTorch initialises. The
    paper's "dense layer with 128 units" is no separate layer but the input width of the last one.
    """
    channels = check_images("vgg11", input_shape, 32)
    layers: list[nn.Module] = []
    for stage in _STAGES:
        for outputs in stage:
            conv = nn.Conv2d(channels, outputs, 3, padding=1)
            nn.init.normal_(conv.weight, std=(2 / (3 * 3 * outputs)) ** 0.5)
            layers += [conv, EvoNorm(outputs, form=evonorm)]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    flat = channels * (input_shape[1] // 32) * (input_shape[2] // 32)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, classes))
