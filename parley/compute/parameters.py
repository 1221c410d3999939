"""Which models' parameters can be taken out as one flat vector of real numbers."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from parley.compute.beside import named
from parley.errors import BadValue


def check_tensors(model: nn.Module) -> None:
    """Refuses a model whose tensors are not there yet, not real, or out of reach.

    >>> check_tensors(nn.Sequential(nn.LazyLinear(3)))
    Traceback (most recent call last):
    parley.errors.BadValue: model: 'Sequential' is not valid (its 0.weight has no shape before the
    first input); valid: a model that has been called once, on an input like those it will see
    """

    def refuse(because: str, valid: str) -> None:
        raise BadValue("model", type(model).__name__, valid, because)

    for path, layer in model.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            valid = "the model as it was before torch.jit.script or torch.jit.trace"
            refuse(f"{named(path, layer)} is scripted, so that its parameters are fixed", valid)
        if "_orig_mod" in layer._modules or isinstance(layer, nn.DataParallel):
            valid = "the model inside, without torch.compile or DataParallel"
            refuse(f"{named(path, layer)} is for one set of parameters", valid)
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(value):
            valid = "a model that has been called once, on an input like those it will see"
            refuse(f"its {name} has no shape before the first input", valid)
        if value.is_meta:
            valid = "a model with values, not on PyTorch's meta device"
            refuse(f"its {name} has no values", valid)
        if value.is_complex():
            valid = "real numbers: torch.view_as_complex of a last axis of two, in forward"
            refuse(f"its {name} is complex, and messages and averages are real", valid)


class WritesTo(TorchDispatchMode):
    """Sees which operation writes to the memory of a tensor, as no version of it may show."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self._memory = tensor.untyped_storage().data_ptr()
        self.written = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch.compile would be loaded to be kept away from here: a second, for nothing,
        as nothing is compiled while this is open."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carries the operation out."""
        for argument, given in zip(func._schema.arguments, args, strict=False):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if not (writes and isinstance(given, Tensor)):
                continue
            if given.untyped_storage().data_ptr() == self._memory:
                self.written = func._schema.name.removeprefix("aten::")
        return func(*args, **(kwargs or {}))
