"""The events of a run, for watchers; needs only the standard library."""

from dataclasses import dataclass

from parley.training.record import Record


@dataclass(frozen=True)
class Started:
    """Everything is loaded and checked; training begins."""

    parameters: int
    """The number of parameters."""
    note: str
    """Which rule the partition could not obey; may be empty."""


@dataclass(frozen=True)
class StepDone:
    """A step was completed."""

    step: int
    steps: int
    loss: float | None
    """Mean over the hosted agents that took the step, or the last known if none of them did."""


@dataclass(frozen=True)
class EpochDone:
    """An epoch was completed; with a record if an evaluation was due."""

    epoch: int
    record: Record | None
    last: bool = False
    """Whether the run ends with it."""


Event = Started | StepDone | EpochDone
