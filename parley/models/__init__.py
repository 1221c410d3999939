"""Models by name: the paper's networks, two plain ones, and external text classifiers.

>>> model = build("lenet5", input_shape=(1, 28, 28), classes=10)
>>> sum(p.numel() for p in model.parameters())
61706
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from parley.errors import BadValue, unknown_name
from parley.models.cnn5 import cnn5
from parley.models.evonorm import EvoNorm
from parley.models.lenet5 import lenet5
from parley.models.mobilenetv2 import mobilenetv2
from parley.models.norms import replace_batchnorm
from parley.models.plain import logistic, mlp
from parley.models.resnet import resnet18, resnet20
from parley.models.text import bert_mini, distilbert, hugging_face
from parley.models.vgg11 import vgg11
from parley.user_code import is_code

__all__ = [
    "MODELS",
    "EvoNorm",
    "build",
    "check_inputs",
    "is_code",
    "options",
    "replace_batchnorm",
    "tokenizer",
]

# A builder takes the shape of one input and the number of classes; its keyword-only arguments are
# the model's options. One more argument, `source`, is the part after a colon: hf:FOLDER.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet5": lenet5,
    "cnn5": cnn5,
    "vgg11": vgg11,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "mobilenetv2": mobilenetv2,
    "bert-mini": bert_mini,
    "distilbert": distilbert,
    "hf": hugging_face,
}

SMALL = frozenset({"logistic", "mlp", "lenet5"})
"""Networks so fast that messages between processes cost more than a second core saves."""
COMPILED = SMALL | {"cnn5", "vgg11", "resnet20", "resnet18", "mobilenetv2"}
"""Networks that the compiled kernels support."""

TEXT = ("bert-mini", "distilbert", "hf")
"""Models whose inputs are token IDs; all others take images or plain features."""


def build(name: str, input_shape: tuple[int, ...], classes: int, **values: Any) -> nn.Module:
    """A new model, with its initial weights drawn from torch's global generator. `classes` is the
    number of its outputs, whatever the task.

    >>> build("mlp", (1, 8, 8), 10, hiden=32)
    Traceback (most recent call last):
    parley.errors.BadValue: model: 'hiden' is not valid (mlp has no such option); valid: hidden
    """
    builder, source = _split(name)
    valid = options(name)
    for option in values:
        if option not in valid:
            listed = ", ".join(valid) or f"no options: {name} has none"
            raise BadValue("model", option, listed, because=f"{name} has no such option")
    if any(size < 1 for size in input_shape):
        raise BadValue("data", input_shape, "inputs with no axis of length 0")
    return builder(tuple(input_shape), classes, *source, **values)


def options(name: str) -> tuple[str, ...]:
    """The names of a model's options.

    >>> options("cnn5")
    ('evonorm',)
    """
    if is_code(name):
        return ()  # those that its function has, which is not imported to look
    builder, _ = _split(name)
    arguments = inspect.signature(builder).parameters.values()
    return tuple(a.name for a in arguments if a.kind is a.KEYWORD_ONLY)


def tokenizer(name: str, values: Mapping[str, Any]) -> str | None:
    """The folder or hub ID of the tokenizer that belongs to the model, or None if any will do.

    >>> tokenizer("hf:models/minilm", {}), tokenizer("bert-mini", {"dropout": 0.0})
    ('models/minilm', None)
    """
    if is_code(name):
        return None
    _, source = _split(name)
    return source[0] if source else values.get("pretrained") or None


def check_inputs(name: str, inputs: Tensor) -> None:
    """Refuses token IDs for an image model, and images for a text model.

    >>> check_inputs("mlp", torch.zeros(2, 128, dtype=torch.int32))
    Traceback (most recent call last):
    parley.errors.BadValue: model: 'mlp' is not valid (the inputs are token IDs); valid:
    bert-mini, distilbert, hf:FOLDER
    """
    tokens = inputs.dtype in (torch.int32, torch.int64)
    kind = name.partition(":")[0]
    if tokens and kind in MODELS and kind not in TEXT:
        valid = "bert-mini, distilbert, hf:FOLDER"
        raise BadValue("model", name, valid, because="the inputs are token IDs")
    if not tokens and kind in TEXT:
        valid = ", ".join(other for other in MODELS if other not in TEXT)
        raise BadValue("model", name, valid, because="the inputs are not text")


def _split(name: str) -> tuple[Callable[..., nn.Module], tuple[str, ...]]:
    """A model's builder, and the part after the colon, if it takes one."""
    kind, colon, source = name.partition(":")
    builder = MODELS.get(kind)
    if builder is None:
        raise unknown_name("model", name, [*MODELS, "module:function"])
    if "source" not in inspect.signature(builder).parameters:
        if colon:
            raise BadValue("model", name, kind, because="only hf takes a colon")
        return builder, ()
    if not source:
        raise BadValue("model", name, "hf:FOLDER, or hf:OWNER/NAME with a hub ID")
    return builder, (source,)
