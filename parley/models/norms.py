"""Replaces BatchNorm with GroupNorm, which has no running statistics."""

import copy

from torch import nn

from parley.errors import BadValue

GROUPS = 8
"""At most; fewer where a group would have a single channel."""


def replace_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of the model with GroupNorm wherever it has BatchNorm; weights and biases are kept.

    >>> made = replace_batchnorm(nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12)))[1]
    >>> type(made).__name__, made.num_groups, made.num_channels
    ('GroupNorm', 6, 12)
    """
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.num_features < 1:
            because = "how many channels it has is not known yet"
            valid = "a model that has seen a batch"
            raise BadValue("model", type(layer).__name__, valid, because)
    if isinstance(model, nn.modules.batchnorm._BatchNorm):
        return _group_norm(model)
    made = copy.deepcopy(model)
    for layer in list(made.modules()):
        for name, child in layer.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(layer, name, _group_norm(child))
    return made


def _group_norm(norm: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    fitting = [g for g in range(1, GROUPS + 1) if channels % g == 0 and channels // g > 1]
    made = nn.GroupNorm(max(fitting, default=1), channels, norm.eps, norm.affine)
    if norm.affine:
        made.load_state_dict({"weight": norm.weight.detach(), "bias": norm.bias.detach()})
    return made.to(norm.weight.device) if norm.affine else made
