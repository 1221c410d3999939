"""The learning rate and the averaging rate over time: a factor on each, for every step."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from parley.errors import BadValue

RateFunction = Callable[[float, float], float]
"""A user's schedule: ``(epoch, epochs) -> factor``; within an epoch, `epoch` is a fraction."""

VALID = (
    "constant, step, step:FACTOR,SHARE,…, exponential:FACTOR, cosine, linear; behind a colon or a "
    "comma also warmup=EPOCHS, to=FACTOR (cosine, linear), per=step or per=epoch"
)
MOST_FACTOR = 1_000_000
OWN = "own"
"""The spelling of a schedule that a Python program gave."""


@dataclass(frozen=True)
class Schedule:
    """The factor on the learning rate in each step.

    >>> cosine = parse_schedule("cosine:warmup=2")
    >>> [round(cosine.factor(step, 2, 6), 3) for step in range(12)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.962, 0.854, 0.691, 0.5, 0.309, 0.146, 0.038]
    >>> step = parse_schedule("step")
    >>> [step.factor(epoch, 1, 8) for epoch in (0, 3, 4, 6)]
    [1.0, 1.0, 0.1, 0.01]
    """

    name: str
    numbers: tuple[float, ...] = ()
    warmup: float = 0.0
    """Epochs in which the factor rises to 1, by the same amount in every step."""
    to: float = 0.0
    """Where cosine and linear would be one step after the last."""
    per: str = "epoch"
    """Whether the factor changes in every step or only from epoch to epoch."""
    own: RateFunction | None = None

    @property
    def knows_the_end(self) -> bool:
        """Whether the factors of the first steps depend on how many epochs there are."""
        return self.own is not None or self.name in ("step", "cosine", "linear")

    @property
    def grows(self) -> bool:
        """Whether the factor would rise above 1."""
        return self.name in ("step", "exponential") and self.numbers[0] > 1

    @property
    def is_constant(self) -> bool:
        """Whether the factor is always 1."""
        return self.name == "constant" and not self.warmup

    def last_factor(self, epochs: int) -> float:
        """The factor at the end of a run, however many steps an epoch has: the largest if factors
        grow, and 0 only if repeated multiplication gets there.

        >>> parse_schedule("exponential:10").last_factor(4), parse_schedule("linear").last_factor(4)
        (1000.0, 0.25)
        >>> parse_schedule("exponential:1e-200").last_factor(3)
        0.0
        """
        steps = 1000 if self.name == "exponential" and self.per == "step" else 1
        try:
            return self.factor(epochs * steps - 1, steps, epochs)
        except OverflowError:
            return math.inf

    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        """The factor in a step, counted from 0; a limit on steps may end the last epoch early."""
        if self.knows_the_end:
            # A run of whole rounds of local steps may end a few steps after its last epoch.
            step = min(step, round(epochs * steps_per_epoch) - 1)
        rising = round(self.warmup * steps_per_epoch)
        if step < rising:
            return (step + 1) / rising
        epoch = step / steps_per_epoch if self.per == "step" else step // steps_per_epoch
        if self.own is not None:
            return self.own(step / steps_per_epoch, epochs)
        if self.name == "step":
            factor, *shares = self.numbers
            # Rounded: 0.1 · 0.1 is not 0.01 in floating point, and the rate is shown to people.
            return round(float(factor) ** sum(epoch >= share * epochs for share in shares), 12)
        risen = rising / steps_per_epoch
        since = max(0.0, epoch - risen)
        if self.name == "exponential":
            return float(self.numbers[0] ** since)
        share = min(since / max(epochs - risen, 1 / steps_per_epoch), 1.0)
        if self.name == "cosine":
            return self.to + (1 - self.to) * (1 + math.cos(math.pi * share)) / 2
        if self.name == "linear":
            return 1 - (1 - self.to) * share
        return 1.0


def parse_schedule(spec: str, field: str = "lr_decay", own: RateFunction | None = None) -> Schedule:
    """The schedule that a name and its numbers stand for; `own` for what Python gave.

    >>> parse_schedule("exponential:0.5").factor(2, 1, 8)
    0.25
    >>> parse_schedule("linear:to=0.1,warmup=5").to
    0.1
    """
    name, _, arguments = spec.partition(":")
    words = [word.strip() for word in arguments.split(",")] if arguments else []
    pairs = [word.split("=", 1) for word in words if "=" in word]
    named = dict(pairs)
    bad = BadValue(field, spec, VALID)
    if len(named) < len(pairs):
        raise BadValue(field, spec, VALID, "one option is given twice")
    if spec == OWN:
        if own is None:
            raise BadValue(field, spec, VALID, "it is a Python function, which no file can hold")
        return Schedule(OWN, own=own)
    falls = name in ("cosine", "linear")
    if "to" in named and not falls:
        raise BadValue(field, spec, VALID, "only cosine and linear fall to a factor")
    per = named.pop("per", "step" if falls else "epoch")
    try:
        numbers = tuple(float(word) for word in words if "=" not in word)
        warmup, to = float(named.pop("warmup", 0)), float(named.pop("to", 0))
    except ValueError:
        raise bad from None
    finite = all(map(math.isfinite, (*numbers, warmup, to))) and warmup >= 0
    if named or not finite or per not in ("step", "epoch"):
        raise bad
    if not 0 <= to <= 1:
        raise bad
    if numbers and numbers[0] > MOST_FACTOR:
        raise BadValue(field, spec, f"a factor of up to {MOST_FACTOR}")
    if name == "step" and (not numbers or len(numbers) > 1):
        numbers = numbers or (0.1, 0.5, 0.75)
        if numbers[0] > 0 and all(0 <= share <= 1 for share in numbers[1:]):
            return Schedule(name, numbers, warmup, to, per)
    if name == "exponential" and len(numbers) == 1 and numbers[0] > 0:
        return Schedule(name, numbers, warmup, to, per)
    if name in ("constant", "cosine", "linear") and not numbers:
        return Schedule(name, numbers, warmup, to, per)
    raise bad


def own_factor(factor: object, field: str, step: int, most: float = math.inf) -> float:
    """A factor as it may be used: a user's function can give anything."""
    number = math.nan
    if not isinstance(factor, str | None):
        with suppress(TypeError, ValueError, RuntimeError):  # of arrays and tensors with several
            number = float(factor)  # type: ignore[arg-type]
    if not 0 < number <= most or not math.isfinite(number):
        limit = "a number above 0" + (f", at most {most:g}" if math.isfinite(most) else "")
        raise BadValue(field, factor, limit, f"the schedule gave it in step {step + 1}")
    return number


def depends_on_length(spec: str) -> bool:
    """Whether the rates of a schedule's first steps depend on how many epochs there are."""
    return spec == OWN or parse_schedule(spec).knows_the_end
