"""ResNet-20 for 32 x 32 images and ResNet-18 for 224 x 224, with EvoNorm.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. EvoNorm replaces every batch
norm and the activation after it; as run, there is none after the addition either.
Where a block changes the number of channels, its shortcut is a 1x1 convolution with EvoNorm.
"""

from torch import nn

from parley.models.blocks import Residual, check_images, convolution, mean_pool
from parley.models.evonorm import EvoNorm, Form


def resnet20(
    input_shape: tuple[int, ...], classes: int, *, evonorm: Form = "hard-swish"
) -> nn.Module:
    """272,474 parameters for colour images and 10 classes, 278,324 for 100."""
    channels = check_images("resnet20", input_shape, 8)
    return nn.Sequential(
        convolution(channels, 16, 3),
        EvoNorm(16, form=evonorm),
        *_blocks(16, (16, 32, 64), 3, evonorm),
        *mean_pool(),
        nn.Linear(64, classes),
    )


def resnet18(
    input_shape: tuple[int, ...], classes: int, *, evonorm: Form = "hard-swish"
) -> nn.Module:
    """11,181,642 parameters for colour images and 10 classes.

    That is the size of the ImageNet network (a 7x7 convolution with stride 2 and a pool first);
    the variant that starts with one 3x3 convolution, often used at 32 x 32, has 11,173,962.
    """
    channels = check_images("resnet18", input_shape, 32)
    return nn.Sequential(
        convolution(channels, 64, 7, stride=2),
        EvoNorm(64, form=evonorm),
        nn.MaxPool2d(3, stride=2, padding=1),
        *_blocks(64, (64, 128, 256, 512), 2, evonorm),
        *mean_pool(),
        nn.Linear(512, classes),
    )


def _blocks(inputs: int, widths: tuple[int, ...], each: int, form: Form) -> list[nn.Module]:
    """Stages of `each` blocks; every stage but the first starts by halving the image."""
    blocks: list[nn.Module] = []
    for width in widths:
        for _ in range(each):
            stride = 1 if inputs == width else 2
            body = nn.Sequential(
                convolution(inputs, width, 3, stride),
                EvoNorm(width, form=form),
                convolution(width, width, 3),
                EvoNorm(width, form=form),
            )
            shortcut: nn.Module = nn.Identity()
            if stride == 2:
                shortcut = nn.Sequential(
                    convolution(inputs, width, 1, stride), EvoNorm(width, form=form)
                )
            blocks.append(Residual(body, shortcut))
            inputs = width
    return blocks
