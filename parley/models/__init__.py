"""Models by name: the paper's networks that run on a CPU in seconds, and two plain ones.

>>> model = build("lenet5", input_shape=(1, 28, 28), classes=10)
>>> sum(p.numel() for p in model.parameters())
61706
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from parley.errors import BadValue, unknown_name
from parley.models.cnn5 import cnn5
from parley.models.evonorm import EvoNorm
from parley.models.lenet5 import lenet5
from parley.models.plain import logistic, mlp

__all__ = ["MODELS", "EvoNorm", "build", "options", "refuse_batch_statistics"]

# A builder takes the shape of one input and the number of classes; its keyword-only arguments are
# the model's options.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet5": lenet5,
    "cnn5": cnn5,
}


def build(name: str, input_shape: tuple[int, ...], classes: int, **values: Any) -> nn.Module:
    """A new model, with its initial weights drawn from torch's global generator.

    >>> build("mlp", (1, 8, 8), 10, hiden=32)
    Traceback (most recent call last):
    parley.errors.BadValue: model: 'hiden' is not valid (mlp has no such option); valid: hidden
    """
    valid = options(name)
    for option in values:
        if option not in valid:
            listed = ", ".join(valid) or f"no options: {name} has none"
            raise BadValue("model", option, listed, because=f"{name} has no such option")
    if any(size < 1 for size in input_shape):
        raise BadValue("data", input_shape, "inputs whose every axis has at least one entry")
    if classes < 2:
        raise BadValue("data", classes, "at least 2 classes")
    return MODELS[name](tuple(input_shape), classes, **values)


def options(name: str) -> tuple[str, ...]:
    """The names of a model's options.

    >>> options("cnn5")
    ('evonorm',)
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    arguments = inspect.signature(MODELS[name]).parameters.values()
    return tuple(a.name for a in arguments if a.kind is a.KEYWORD_ONLY)


def refuse_batch_statistics(module: nn.Module) -> None:
    """Refuses a module with layers that normalise by statistics of the batch or of the past.

    >>> refuse_batch_statistics(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8)))
    >>> refuse_batch_statistics(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    Traceback (most recent call last):
    parley.errors.BadValue: model: 'BatchNorm2d' is not valid (layer '1': its running statistics are
    not parameters, ...); valid: GroupNorm or parley.models.EvoNorm in its place
    """
    for path, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or (
            isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
        ):
            raise BadValue(
                "model",
                type(layer).__name__,
                "GroupNorm or parley.models.EvoNorm in its place",
                because=f"layer {path!r}: its running statistics are not parameters, so peers "
                "would not share them, and a padded or one-class batch ruins them",
            )
