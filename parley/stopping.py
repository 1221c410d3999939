"""When a run has trained enough: conditions on its records, and callbacks that may say so."""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from parley.errors import BadValue, unknown_name
from parley.measures import FORMS, KNOWN, Measure

Records = Sequence[Mapping[str, Any]]

ACCURACY = (KNOWN["accuracy"],)
LOWER = ("loss", "loss_train", "consensus_distance")
SPENT = ("seconds", "seconds_network", "bytes", "megabytes")
"""What a run has used up so far; bytes are what an agent has sent, the mean over agents."""
VALID = (
    "conditions such as accuracy>=0.9, loss<=0.2, seconds>=600, megabytes>=50 or loss:patience=5, "
    "joined by commas"
)


@dataclass(frozen=True)
class Condition:
    """One reason to stop."""

    text: str
    metric: str
    value: float
    relation: str
    """``>=``, ``<=``, or ``patience``: no better for so many records."""
    higher: bool = False
    """Whether more is better."""

    def holds(self, records: Records) -> bool:
        """Whether it is met after these records."""
        values = [_value(record, self.metric) for record in records]
        if self.relation == "patience":
            known = [value for value in values if value is not None]
            if not known:
                return False
            best = max(known) if self.higher else min(known)
            return len(values) - 1 - values.index(best) >= self.value
        if values[-1] is None:
            return False
        return values[-1] >= self.value if self.relation == ">=" else values[-1] <= self.value


def _value(record: Mapping[str, Any], metric: str) -> float | None:
    """What a record has; None for a metric that was not defined."""
    if metric in ("bytes", "megabytes"):
        sent = float(record["bytes_models"]) + float(record["bytes_cross_gradients"])
        return sent / 1e6 if metric == "megabytes" else sent
    if metric not in record:
        valid = "a metric of this run's records"
        raise BadValue("stop_when", metric, valid, "its records have no such field")
    return None if record[metric] is None else float(record[metric])


@dataclass(frozen=True)
class Stop:
    """All reasons to stop: one that holds is enough.

    >>> stop = parse_stop("accuracy>=0.9, loss:patience=2")
    >>> seen = [{"accuracy_mean_model": 0.5, "loss": loss} for loss in (0.3, 0.4, 0.5)]
    >>> stop.reason(seen[:2]), stop.reason(seen)
    ('', 'loss:patience=2')
    """

    conditions: tuple[Condition, ...] = ()

    def reason(self, records: Records) -> str:
        """The first condition that is met, as it was written; nothing if none is."""
        held = (c.text for c in self.conditions if records and c.holds(records))
        return next(held, "")


def names_of(measures: Sequence[Measure]) -> tuple[dict[str, str], dict[str, bool]]:
    """The short names of metrics with the fields that they stand for, and all their fields, with
    whether more is better."""
    aliases = {measure.name: measure.field(FORMS[0]) for measure in measures}
    fields = {measure.field(form): measure.higher for measure in measures for form in FORMS}
    return aliases, fields


def parse_stop(
    spec: str,
    measures: Sequence[Measure] = ACCURACY,
    network: bool = True,
    max_steps: int | None = None,
) -> Stop:
    """The conditions in a text such as ``accuracy>=0.9, seconds>=600``, on what is measured, and
    that there are no more than `max_steps`.

    A metric's name alone stands for that of the averaged model. `network` says whether one is
    simulated, so that its time is known.
    """
    aliases, fields = names_of(measures)
    known = (*aliases, *fields, *LOWER, *SPENT)
    made = []
    if max_steps is not None:
        made.append(Condition(f"max_steps={max_steps}", "step", max_steps, ">="))
    for text in (part.strip() for part in spec.split(",") if part.strip()):
        found = re.fullmatch(r"(\w+)\s*(?:(>=|<=)|:\s*(patience)\s*=)\s*(\S+)", text)
        if found is None:
            raise BadValue("stop_when", text, VALID)
        name, relation, patience, number = found.groups()
        if name not in known:
            raise unknown_name("stop_when", name, known)
        if name == "seconds_network" and not network:
            valid = "seconds, or seconds_network together with links"
            raise BadValue("stop_when", text, valid, "no network is simulated")
        metric = aliases.get(name, name)
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadValue("stop_when", text, VALID, f"{number} is not a finite number")
        condition = Condition(text, metric, value, patience or relation, fields.get(metric, False))
        _check_value(condition, measures)
        made.append(condition)
    return Stop(tuple(made))


def _check_value(condition: Condition, measures: Sequence[Measure]) -> None:
    """Refuses what would never end a run, or end it whatever happens."""
    text, metric, value, relation = (
        condition.text, condition.metric, condition.value, condition.relation
    )  # fmt: skip
    if relation == "patience":
        if metric in SPENT or value < 1 or value != int(value):
            valid = "patience on a loss, a metric or consensus_distance, of 1 record or more"
            raise BadValue("stop_when", text, valid)
        return
    if metric in SPENT and (relation == "<=" or value <= 0):
        because = f"{metric} only grow, so a budget is a lower bound above 0"
        raise BadValue("stop_when", text, f"{metric}>= and a number above 0", because)
    for measure in (measure for measure in measures if metric in map(measure.field, FORMS)):
        least = -math.inf if measure.least is None else measure.least
        if not least <= value <= measure.most:
            because = f"{measure.title} is never {'above' if value > least else 'below'} "
            because += f"{measure.most if value > least else least:g}"
            raise BadValue("stop_when", text, f"from {least:g} to {measure.most:g}", because)
        if value == (least if relation == ">=" else measure.most):
            because = f"{measure.title} is never {'below' if relation == '>=' else 'above'} "
            because += f"{value:g}, so every record would meet it"
            raise BadValue("stop_when", text, f"between {least:g} and {measure.most:g}", because)


OnEpoch = Callable[[int], object]
OnRecord = Callable[[Any], object]


class Callbacks(NamedTuple):
    """A user's functions, called by the first worker; one that returns True ends the run."""

    on_epoch: OnEpoch | None = None
    """Called with the number of epochs made, after each of them."""
    on_record: OnRecord | None = None
    """Called with each record."""

    def check(self) -> None:
        """Refuses, before training starts, what could not be called after an epoch."""
        for name, given in zip(("epoch", "record"), self, strict=True):
            check_function(f"on_{name}", given, name)

    def silent(self) -> "Callbacks":
        """What the other workers have in their place."""
        return Callbacks(*(_nothing if function else None for function in self))


def _nothing(_: object) -> None:
    """Says nothing about stopping."""


def check_function(field: str, given: object, *arguments: str) -> None:
    """Refuses what cannot be called with these arguments; None is no function, and allowed."""
    if given is None:
        return
    valid = f"a function of ({', '.join(arguments)})"
    if not callable(given):
        raise BadValue(field, given, valid, "it cannot be called")
    if inspect.iscoroutinefunction(given):
        raise BadValue(field, given, valid, "an async function would never run")
    try:
        signature = inspect.signature(given)
    except ValueError:
        return  # one written in C may not have any
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise BadValue(field, given, valid, str(error)) from None


def says_stop(answer: object) -> bool:
    """Whether a callback returned True, which may be NumPy's or torch's.

    >>> says_stop(True), says_stop(np.float64(0.9) > 0.5), says_stop(None), says_stop(1)
    (True, True, False, False)
    """
    if isinstance(answer, np.generic | np.ndarray | Tensor) and math.prod(answer.shape) == 1:
        answer = answer.item()
    return answer is True
