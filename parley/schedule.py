"""The learning rate over time."""

import math
from collections.abc import Callable

from parley.errors import BadValue

Decay = Callable[[int, int], float]
"""``(epoch, epochs) -> factor`` on the learning rate."""

VALID = "constant, step, step:FACTOR,SHARE,…, exponential:FACTOR"


def parse_decay(spec: str) -> Decay:
    """The factor on the learning rate in each epoch.

    >>> [parse_decay("step")(epoch, 8) for epoch in (0, 3, 4, 6)]
    [1.0, 1.0, 0.1, 0.01]
    >>> parse_decay("exponential:0.5")(2, 8)
    0.25
    """
    name, _, arguments = spec.partition(":")
    try:
        numbers = [float(a) for a in arguments.split(",")] if arguments else []
    except ValueError:
        raise BadValue("lr_decay", spec, VALID) from None
    if not all(map(math.isfinite, numbers)):
        raise BadValue("lr_decay", spec, VALID)
    if name == "constant" and not numbers:
        return lambda epoch, epochs: 1.0
    if name == "step":
        factor, *shares = numbers or [0.1, 0.5, 0.75]
        if factor > 0 and shares and all(0 <= s <= 1 for s in shares):
            # Rounded: 0.1 · 0.1 is not 0.01 in floating point, and the rate is shown to people.
            return lambda epoch, epochs: round(
                factor ** sum(epoch >= s * epochs for s in shares), 12
            )
    if name == "exponential" and len(numbers) == 1 and numbers[0] > 0:
        return lambda epoch, epochs: numbers[0] ** epoch
    raise BadValue("lr_decay", spec, VALID)
