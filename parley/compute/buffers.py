"""Running statistics of a model: what BatchNorm and its like keep in buffers, as a flat vector.

Axes: S flat statistics.

In training such layers use the statistics of the batch, so a gradient does not depend on the
running ones, and gradients are computed by a copy of the model that keeps none. What the model has
seen is followed beside that, and needed when it is used.
"""

import copy
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parley.errors import BadValue

Norm = nn.modules.batchnorm._NormBase
COUNTER = "num_batches_tracked"


def without_graphs(model: nn.Module) -> nn.Module:
    """The model itself. What its code has kept of a forward pass (activations, say) no longer
    leads back to how it was computed: that would stay in memory, and cannot be copied."""
    for layer in model.modules():
        for name, value in layer.__dict__.items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                layer.__dict__[name] = value.detach()
    return model


class Moments(NamedTuple):
    """Where the statistics of one layer are in the flat vector."""

    mean: slice
    variance: slice


class Layout:
    """The running statistics of a model, and where each is.

    >>> layout = Layout(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    >>> layout.names, layout.size
    (('1.running_mean', '1.running_var', '1.num_batches_tracked'), 5)
    """

    def __init__(self, model: nn.Module) -> None:
        layers = {name: layer for name, layer in model.named_modules() if _tracks(layer)}
        found = {
            ".".join(filter(None, (name, own))): buffer
            for name, layer in layers.items()
            for own, buffer in layer.named_buffers(recurse=False)
        }
        self.names = tuple(found)
        self._like = tuple(found.values())
        self._sizes = tuple(buffer.numel() for buffer in found.values())
        self.size = sum(self._sizes)
        at = dict(zip(found, _slices(self._sizes), strict=True))
        self.moments = [
            Moments(at[f"{prefix}running_mean"], at[f"{prefix}running_var"])
            for prefix in (f"{name}." if name else "" for name in layers)
        ]
        self.offsets = {name: part.start for name, part in at.items()}
        """Where each begins in the flat vector."""
        self._momenta = [layer.momentum for layer in layers.values()]
        self._counters = [at[name].start for name in found if name.endswith(COUNTER)]

    def start(self, like: Tensor) -> Tensor:
        """The statistics that the model was given with, [S]."""
        parts = [buffer.detach().flatten().to(like) for buffer in self._like]
        return torch.cat(parts) if parts else like.new_zeros(0)

    def tensors(self, b_S: Tensor) -> dict[str, Tensor]:
        """The flat vector as new named tensors of the types that the model has."""
        parts = zip(self.names, b_S.split(self._sizes), self._like, strict=True)
        return {
            n: (p if like.is_floating_point() else p.round())
            .to(like.dtype)
            .view(like.shape)
            .clone()
            for n, p, like in parts
        }

    def after(self, b_PS: Tensor, seen_PS: Tensor) -> Tensor:
        """The statistics after a batch whose own are `seen_PS`, as PyTorch would move them."""
        moved_PS = b_PS.clone()
        moved_PS[:, self._counters] = b_PS[:, self._counters].round() + 1
        for parts, momentum, counter in zip(
            self.moments, self._momenta, self._counters, strict=True
        ):
            rate_P1 = 1 / moved_PS[:, counter, None] if momentum is None else momentum
            for part in parts:
                moved_PS[:, part] = (1 - rate_P1) * b_PS[:, part] + rate_P1 * seen_PS[:, part]
        return moved_PS

    def squares(self, seen_PS: Tensor) -> Tensor:
        """Mean squares in the place of variances."""
        found_PS = seen_PS.clone()
        for mean, variance in self.moments:
            found_PS[..., variance] += found_PS[..., mean].square()
        return found_PS

    def flat(self, tensors: dict[str, Tensor], like: Tensor) -> Tensor:
        """The reverse."""
        return torch.cat([tensors[name].detach().flatten().to(like) for name in self.names])


def _slices(sizes: tuple[int, ...]) -> list[slice]:
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def _tracks(layer: nn.Module) -> bool:
    return isinstance(layer, Norm) and layer.track_running_stats and layer.running_mean is not None


def check_norms(model: nn.Module) -> None:
    """Refuses BatchNorm without running statistics: its answer to an input would depend on others.

    >>> check_norms(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)))
    Traceback (most recent call last):
    parley.errors.BadValue: model: 'BatchNorm1d' is not valid (layer '1' keeps no running
    statistics, so its answer to an input would depend on the others); valid: with
    track_running_stats=True, or GroupNorm in its place (parley.models.replace_batchnorm)
    """
    for path, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not _tracks(layer):
            because = (
                f"layer {path!r} keeps no running statistics, so its answer to an input would "
            )
            because += "depend on the others"
            valid = "with track_running_stats=True, or GroupNorm in its place "
            valid += "(parley.models.replace_batchnorm)"
            raise BadValue("model", type(layer).__name__, valid, because)


def without_statistics(model: nn.Module) -> nn.Module:
    """The same layers and parameters, not copied, with nothing that training would change."""
    shared: dict[int, object] = {id(p): p for p in model.parameters()}
    made = copy.deepcopy(model, shared)
    for layer in made.modules():
        if isinstance(layer, Norm) and _tracks(layer):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return made


def forgetful(model: nn.Module) -> nn.Module:
    """The same layers and parameters; statistics are those of the last batch alone."""
    shared: dict[int, object] = {id(p): p for p in model.parameters()}
    made = copy.deepcopy(model, shared)
    for layer in made.modules():
        if isinstance(layer, Norm) and _tracks(layer):
            layer.momentum = 1.0
    return made
