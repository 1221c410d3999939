"""Which layer of a user's model fails."""

from collections.abc import Callable
from typing import Any

from torch import nn


def failing_layer(model: nn.Module, run: Callable[[], object]) -> str:
    """The innermost layer that is at work when `run` fails; empty if it is the model itself.

    >>> import torch
    >>> model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(3, 2)))
    >>> failing_layer(model, lambda: model(torch.zeros(1, 4)))
    'layer 1.0 (Linear)'
    """
    inside: list[str] = []

    def enter(path: str) -> Callable[..., None]:
        return lambda layer, _: inside.append(f"layer {path} ({type(layer).__name__})")

    def leave(*_: Any) -> None:
        inside.pop()

    layers = [(path, layer) for path, layer in model.named_modules() if path]
    hooks = [layer.register_forward_pre_hook(enter(path)) for path, layer in layers]
    hooks += [layer.register_forward_hook(leave) for _, layer in layers]
    try:
        run()
    except Exception:  # whatever the model may raise
        return inside[-1] if inside else ""
    finally:
        for hook in hooks:
            hook.remove()
    return ""
