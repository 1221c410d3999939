"""Shows a Python program its run: a progress bar, notes, trackers, and its own callback."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from parley.cluster.run import Watcher
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.training.events import Event
from parley.watch import trackers
from parley.watch.log import LOG, show
from parley.watch.progress import TrainingProgress


def logged_to(log: str | Sequence[str], out: Path | None) -> tuple[str, ...]:
    """The trackers by name, which need a folder to write to."""
    names = trackers.parse(log)
    if names and out is None:
        raise BadValue("log", ",".join(names), "only together with out, the folder to write to")
    return names


@contextmanager
def observed(
    experiment: Experiment,
    logged: Sequence[str],
    out: Path | None,
    *,
    notes: bool,
    bar: bool,
    watch: Watcher | None,
) -> Iterator[Watcher]:
    """A watcher for the run that shows its progress and tells trackers and the program's `watch`.

    Notes are shown next to the bar, unless the program has set up logging.
    """
    if notes and not LOG.hasHandlers():
        show()
    with TrainingProgress(experiment, shown=bar) as progress:

        def shown(event: Event) -> None:
            progress(event)
            if watch:
                watch(event)

        with trackers.logging(logged, experiment, out or Path(), shown) as tell:
            yield tell
