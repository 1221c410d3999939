"""Feature skew: every agent sees its inputs differently, as if through another camera.

| spec                | agent i of N                                                        |
|---------------------|---------------------------------------------------------------------|
| `feature:noise=S`   | Gaussian noise, of standard deviation S · i / (N - 1)               |
| `feature:contrast=S`| contrast times 1 - S · i / (N - 1), around the mean of each input   |
| `feature:rotation`  | square images turned by i mod 4 quarters                            |

Only training inputs change. Deviations are in units of the range of images, 0 to 1, and for other
inputs in units of their values. Axes: n samples.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley.data.samples import Samples, rng_of
from parley.errors import BadValue

FORMS = "noise=s, feature:contrast=s or feature:rotation"
NOISE, CONTRAST, ROTATION = "noise", "contrast", "rotation"
_STREAM = 6
"""Of random numbers; see `parley.data.samples`."""


class Skew(NamedTuple):
    """How inputs differ, and how much at most."""

    kind: str
    strength: float = 0.0


def parse(text: str) -> Skew:
    """From what follows the colon, or ValueError.

    >>> parse("noise=0.5")
    Skew(kind='noise', strength=0.5)
    """
    kind, _, number = text.partition("=")
    if text == ROTATION:
        return Skew(kind)
    strength = float(number)
    if kind not in (NOISE, CONTRAST) or not 0 < strength <= (1 if kind == CONTRAST else 100):
        raise ValueError(text)
    return Skew(kind, strength)


def changed(spec: str, samples: Samples, agent: int, agents: int, seed: int) -> Samples:
    """An agent's samples as it sees them, if the partition is a feature skew."""
    name, _, text = spec.partition(":")
    if name != "feature":
        return samples
    skew, inputs = parse(text), samples.inputs
    if not isinstance(inputs, Tensor):
        because = "it changes images in memory, and data.mapped leaves them on disk"
        raise BadValue("partition", spec, "another partition, or mapped = false", because)
    if inputs.dtype in (torch.int32, torch.int64):
        raise BadValue("partition", spec, "another partition", "token IDs are names, not numbers")
    if skew.kind == ROTATION:
        return Samples(_turned(spec, inputs, agent), samples.targets)
    share = skew.strength * agent / max(agents - 1, 1)
    scale = 255 if inputs.dtype == torch.uint8 else 1
    values = inputs.double() / scale
    if skew.kind == NOISE:
        draws = rng_of(seed, _STREAM, agent).standard_normal(tuple(values.shape))
        values += share * torch.from_numpy(np.asarray(draws))
    else:
        mean = values.flatten(1).mean(1).reshape(-1, *[1] * (values.ndim - 1))
        values = mean + (1 - share) * (values - mean)
    if scale != 1:
        values = (values * scale).round().clamp(0, scale)
    return Samples(values.to(inputs.dtype), samples.targets)


def _turned(spec: str, inputs: Tensor, agent: int) -> Tensor:
    if inputs.ndim != 4 or inputs.shape[2] != inputs.shape[3]:
        found = f"the inputs have shape {list(inputs.shape[1:])}"
        raise BadValue("partition", spec, "square images", found)
    return inputs.rot90(agent % 4, (2, 3)).contiguous()
