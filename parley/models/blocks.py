"""What the paper's larger convolutional networks are made of."""

from torch import Tensor, nn

from parley.errors import BadValue


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Without bias, padded to keep the size; weights from N(0, √(2 / (k²·out))), as run."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.normal_(conv.weight, std=(2 / (kernel * kernel * outputs)) ** 0.5)
    return conv


class Residual(nn.Module):
    """The sum of two branches, with no activation after it: EvoNorm ends each branch."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Both branches see the same input."""
        y: Tensor = self.body(x) + self.shortcut(x)
        return y


def mean_pool() -> list[nn.Module]:
    """The mean over all pixels, flat: the pooling of networks that fit images of any size."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def check_images(model: str, input_shape: tuple[int, ...], least: int) -> int:
    """The number of channels; refuses inputs that are not images or too small for the model.

    >>> check_images("vgg11", (3, 32, 32), 32)
    3
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise BadValue(
            "model",
            model,
            f"images of at least {least} x {least}, or another model",
            because=f"the inputs have shape {input_shape}",
        )
    return input_shape[0]
