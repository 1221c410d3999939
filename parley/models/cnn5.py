"""The NGC paper's 5-layer CNN for CIFAR-10: four convolutions with EvoNorm, one linear layer."""

from torch import nn

from parley.errors import BadValue
from parley.models.evonorm import EvoNorm, Form


def cnn5(input_shape: tuple[int, ...], classes: int, *, evonorm: Form = "hard-swish") -> nn.Module:
    """76,010 parameters for 32 x 32 colour images and 10 classes (76,202 with `evonorm="s0"`).

    The paper prints a further dense layer of 512 units, which is not in the code that was run.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 8:
        raise BadValue(
            "model",
            "cnn5",
            "images of at least 8 x 8, or another model (logistic, mlp)",
            because=f"the inputs have shape {input_shape}",
        )
    channels, height, width = input_shape

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        nn.init.normal_(conv.weight, std=(2 / (3 * 3 * outputs)) ** 0.5)
        return [conv, EvoNorm(outputs, form=evonorm)]

    return nn.Sequential(
        *block(channels, 32),
        *block(32, 32),
        nn.MaxPool2d(2),
        *block(32, 64),
        nn.MaxPool2d(2),
        *block(64, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 8) * (width // 8), classes),
    )
