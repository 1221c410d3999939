"""What happens in a run, for whoever watches it; needs nothing but the standard library."""

from dataclasses import dataclass

from parley.training.record import Record


@dataclass(frozen=True)
class Started:
    """Everything is loaded and checked; training begins."""

    parameters: int
    """Entries of the model."""
    note: str
    """What the partition could not obey, or nothing."""


@dataclass(frozen=True)
class StepDone:
    """A step has been made."""

    step: int
    steps: int
    loss: float | None
    """Mean over the hosted agents that took the step, or the last known if none of them did."""


@dataclass(frozen=True)
class EpochDone:
    """An epoch has been made; every few epochs with a record."""

    epoch: int
    record: Record | None


Event = Started | StepDone | EpochDone
