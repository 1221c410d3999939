"""Two models for inputs of any shape: logistic regression, and one hidden layer."""

from math import prod

from torch import nn

from parley.errors import BadValue

WIDEST = 100_000
"""Hidden units."""


def logistic(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """One linear layer: with cross-entropy, multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))


def mlp(input_shape: tuple[int, ...], classes: int, *, hidden: int = 64) -> nn.Module:
    """One hidden layer of `hidden` ReLU units."""
    if type(hidden) is not int or not 1 <= hidden <= WIDEST:
        raise BadValue("model.hidden", hidden, f"a whole number from 1 to {WIDEST}")
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )
