"""When a run has trained enough: conditions on its records, and callbacks that may say so."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
        known = [value for value in values if value is not None]
        if self.relation == "patience":
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


def parse_stop(spec: str, measures: Sequence[Measure] = ACCURACY) -> Stop:
    """The conditions in a text such as ``accuracy>=0.9, seconds>=600``, on what is measured.

    A metric's name alone stands for that of the averaged model.
    """
    aliases, fields = names_of(measures)
    known = (*aliases, *fields, *LOWER, *SPENT)
    made = []
    for text in (part.strip() for part in spec.split(",") if part.strip()):
        found = re.fullmatch(r"(\w+)\s*(?:(>=|<=)|:\s*(patience)\s*=)\s*(\S+)", text)
        if found is None:
            raise BadValue("stop_when", text, VALID)
        name, relation, patience, number = found.groups()
        if name not in known:
            raise unknown_name("stop_when", name, known)
        metric = aliases.get(name, name)
        try:
            value = float(number)
        except ValueError:
            raise BadValue("stop_when", text, VALID) from None
        if patience and (metric in SPENT or value < 1 or value != int(value)):
            valid = "patience on a loss, a metric or consensus_distance, of 1 record or more"
            raise BadValue("stop_when", text, valid)
        higher = fields.get(metric, False)
        made.append(Condition(text, metric, value, patience or relation, higher))
    return Stop(tuple(made))


OnEpoch = Callable[[int], object]
OnRecord = Callable[[Any], object]


class Callbacks(NamedTuple):
    """A user's functions, called by the first worker; one that returns True ends the run."""

    on_epoch: OnEpoch | None = None
    """Called with the number of epochs made, after each of them."""
    on_record: OnRecord | None = None
    """Called with each record."""

    def silent(self) -> "Callbacks":
        """What the other workers have in their place."""
        return Callbacks(*(_nothing if function else None for function in self))


def _nothing(_: object) -> None:
    """Says nothing about stopping."""
