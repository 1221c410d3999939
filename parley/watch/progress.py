"""What people see during a run: a bar in a terminal or notebook, otherwise plain lines."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import timedelta
from html import escape
from types import TracebackType
from typing import Any, Self

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from parley.experiment import Experiment
from parley.measures import KNOWN, Measure, of_record
from parley.training.events import EpochDone, Event, Started, StepDone
from parley.training.record import Record, sent_megabytes, value
from parley.watch.log import console

log = logging.getLogger(__name__)

REDRAWN = 0.2
"""Seconds between updates of a bar in a notebook."""


class RateColumn(ProgressColumn):
    """The rate of progress."""

    def render(self, task: Task) -> Text:
        """Steps (or epochs) per second."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{_few_digits(speed)}/s", style="progress.data.speed")


def bars() -> Progress:
    """The layout of all progress bars."""
    return Progress(*_columns(), TextColumn("{task.fields[status]}"), console=console)


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
    )


class _TwoLines(Progress):
    """A bar, and below it a line for what would not fit beside it."""

    status = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.status:
            yield Text(self.status, overflow="ellipsis", no_wrap=True)


def _few_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def megabytes(record: Mapping[str, Any] | Record) -> float:
    """What an agent has sent so far, in MB."""
    return sent_megabytes(record) or 0.0


def brief(record: Record) -> str:
    """A record, short enough to fit next to a bar."""
    return ", ".join(_forms(record, {"mean_model": "averaged", "own": "own"})) or "unknown"


def status(record: Record) -> str:
    """A record in a few words."""
    parts = [brief(record), *_forms(record, {"after_gossip": "gossiped"})]
    parts += [f"distance {record['consensus_distance']:.3g}", f"{megabytes(record):.2f} MB sent"]
    return f"{_deciding(record).title} {', '.join(parts)}"


def _deciding(record: Record) -> Measure:
    found = of_record(record)
    return found[0] if found else KNOWN["accuracy"]


def _forms(record: Record, names: Mapping[str, str]) -> list[str]:
    """Forms of the metric in words; in some records the agents' own models are not evaluated."""
    measure = _deciding(record)
    found = {name: value(record, measure.field(form)) for form, name in names.items()}
    return [f"{measure.shown(known)} {name}" for name, known in found.items() if known is not None]


class _Clock:
    """The rate of steps, and how long the rest will take at that rate."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first: int | None = None
        self.step = self.steps = 0

    def tick(self, event: StepDone) -> None:
        """Counts a step; in a resumed run the first one may be far from the beginning."""
        if self._first is None:
            self._first, self._began = event.step, time.monotonic()
        self.step, self.steps = event.step, event.steps

    @property
    def rate(self) -> float | None:
        """Steps per second, evaluation included."""
        passed = time.monotonic() - self._began
        made = self.step - (self._first or 0)
        return made / passed if made and passed > 0 else None

    @property
    def left(self) -> str:
        """As 0:01:23; empty while nothing is known."""
        if not self.rate or self.step >= self.steps:
            return ""
        return str(timedelta(seconds=round((self.steps - self.step) / self.rate)))

    def words(self) -> str:
        """For a line."""
        rate = f", {_few_digits(self.rate)} steps/s" if self.rate else ""
        return rate + (f", {self.left} left" if self.left else "")


class _Show(ABC):
    """One way to show a run."""

    def __init__(self, experiment: Experiment) -> None:
        self.label = experiment.algorithm.label
        self.epochs = experiment.epochs

    def start(self) -> None:
        """Before the first event."""
        return

    @abstractmethod
    def step(self, event: StepDone) -> None: ...

    @abstractmethod
    def epoch(self, event: EpochDone) -> None: ...

    def stop(self) -> None:
        """After the last event, even if the run fails."""
        return


class _Terminal(_Show):
    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._bars = _TwoLines(*_columns(), console=console)
        self._task: TaskID | None = None

    def start(self) -> None:
        self._bars.start()

    def step(self, event: StepDone) -> None:
        if self._task is None:
            # The first step may be far from the beginning, when a run is resumed.
            self._task = self._bars.add_task(
                self.label, total=event.steps, completed=event.step - 1
            )
        self._bars.update(self._task, completed=event.step)

    def epoch(self, event: EpochDone) -> None:
        if event.record:
            self._bars.status = f"epoch {event.epoch}: {status(event.record)}"

    def stop(self) -> None:
        self._bars.stop()


class _Lines(_Show):
    """For logs: one line per record, no animation."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._clock = _Clock()

    def step(self, event: StepDone) -> None:
        self._clock.tick(event)

    def epoch(self, event: EpochDone) -> None:
        if event.record:
            line = f"{self.label}: epoch {event.epoch} of {self.epochs}: {status(event.record)}"
            line += self._clock.words()
            console.print(line, highlight=False, markup=False, soft_wrap=True)


class _Notebook(_Show):
    """A display that updates in place: plain HTML without widgets, so that it can be saved."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._clock = _Clock()
        self._handle: Any = None
        self._drawn = 0.0
        self._status = ""

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(self._content(), raw=True, display_id=True)

    def step(self, event: StepDone) -> None:
        self._clock.tick(event)
        if time.monotonic() - self._drawn > REDRAWN:
            self._draw()

    def epoch(self, event: EpochDone) -> None:
        if event.record:
            self._status = f"epoch {event.epoch} of {self.epochs}: {status(event.record)}"
            self._draw()

    def stop(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        clock = self._clock
        done = f"{clock.step}/{clock.steps}{clock.words()}" if clock.steps else "starting"
        html = (
            f'<div style="font-family:monospace"><b>{escape(self.label)}</b> '
            f'<progress value="{clock.step}" max="{clock.steps or 1}" aria-label="progress">'
            f"</progress> {escape(done)}<br>{escape(self._status)}</div>"
        )
        plain = f"{self.label} {done} {self._status}".rstrip()
        return {"text/html": html, "text/plain": plain}


class TrainingProgress:
    """Shows the events of one run in a way that suits where it runs."""

    def __init__(self, experiment: Experiment, shown: bool = True) -> None:
        self._show: _Show | None = None
        if shown:
            kind = _Notebook if console.is_jupyter else _Terminal if console.is_terminal else _Lines
            self._show = kind(experiment)

    def __enter__(self) -> Self:
        if self._show:
            self._show.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._show:
            self._show.stop()

    def __call__(self, event: Event) -> None:
        """Shows an event."""
        if self._show is None:
            return
        match event:
            case Started():
                if event.note:
                    log.info("%s", event.note)
            case StepDone():
                self._show.step(event)
            case EpochDone():
                self._show.epoch(event)
