"""LeNet-5 in its ReLU and max-pool form, as the NGC paper runs it on Fashion-MNIST."""

from torch import nn

from parley.errors import BadValue


def lenet5(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """61,706 parameters for 28 x 28 greyscale images and 10 classes; PyTorch's own init."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 12:
        raise BadValue(
            "model",
            "lenet5",
            "images of at least 12 x 12, or another model (logistic, mlp, cnn5)",
            because=f"the inputs have shape {input_shape}",
        )
    channels, height, width = input_shape
    # 5x5 with padding 2 keeps the size, 5x5 without takes 4 off, each pool halves.
    flat = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
