"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from parley.experiment import Experiment
from parley.run import EpochDone, Event, Record, Started, StepDone

console = Console(stderr=True)
"""Everything meant for eyes goes to stderr; stdout is for results."""


def bars() -> Progress:
    """The look of all progress bars."""
    return Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
        console=console,
    )


def megabytes(record: Record) -> float:
    """What an agent has sent so far, in MB."""
    return float(record["bytes_models"] + record["bytes_cross_gradients"]) / 1e6


def brief(record: Record) -> str:
    """A record in so few words that they fit beside a bar."""
    return f"{record['accuracy_mean_model']:.1%} averaged, {record['accuracy_own']:.1%} own"


def status(record: Record) -> str:
    """A record in a few words."""
    distance, sent = f"{record['consensus_distance']:.3g}", f"{megabytes(record):.2f}"
    return f"accuracy {brief(record)}, distance {distance}, {sent} MB sent"


class TrainingProgress:
    """Shows the events of one run."""

    def __init__(self, experiment: Experiment, shown: bool = True) -> None:
        self._label = experiment.algorithm.label
        self._shown = shown
        self._live = shown and console.is_terminal
        self._bars = bars() if self._live else None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._bars:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """One more event."""
        if isinstance(event, Started):
            if self._shown and event.note:
                console.print(f"note: {event.note}", highlight=False)
        elif self._bars:
            self._on_bar(self._bars, event)
        elif self._shown and isinstance(event, EpochDone) and event.record:
            print(f"{self._label}: epoch {event.epoch}: {status(event.record)}", file=sys.stderr)

    def _on_bar(self, bars: Progress, event: StepDone | EpochDone) -> None:
        if isinstance(event, StepDone):
            if self._task is None:
                # The first step may be far from the beginning, when a run is resumed.
                self._task = bars.add_task(
                    self._label, total=event.steps, completed=event.step - 1, status=""
                )
            bars.update(self._task, completed=event.step)
        elif event.record and self._task is not None:
            bars.update(self._task, status=brief(event.record))
