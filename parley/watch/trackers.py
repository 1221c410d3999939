"""Trackers that receive the metrics of a run live: TensorBoard, Weights & Biases, MLflow.

All are optional (``pip install 'parley-learning[trackers]'``) and write to local folders: logged
metrics leave the machine only if the user has asked the tracker for that through its own
environment variables (``WANDB_MODE=online``, ``MLFLOW_TRACKING_URI``).
"""

import logging as notes
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from parley.errors import needed, unknown_name
from parley.experiment import Experiment
from parley.store.folder import RunFolder
from parley.training.events import EpochDone, Event
from parley.training.record import Record, number

log = notes.getLogger(__name__)  # `logging` is what this module does

Watcher = Callable[[Event], None]


def parse(log: str | Sequence[str] | None) -> tuple[str, ...]:
    """Tracker names from ``tensorboard,mlflow``; checks that they are known and installed.

    >>> parse("tensorbord")
    Traceback (most recent call last):
    parley.errors.BadValue: log: 'tensorbord' is not valid (did you mean 'tensorboard'?);
    valid: mlflow, tensorboard, wandb
    >>> parse(None)
    ()
    """
    given = log.split(",") if isinstance(log, str) else (log or ())
    names = tuple(dict.fromkeys(name.strip() for name in given if name.strip()))
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("log", name, TRACKERS)
        needed(TRACKERS[name].package, "trackers", "log", name)
    return names


class Tracker(ABC):
    """One run in one tracker."""

    package: str

    @abstractmethod
    def __init__(self, experiment: Experiment, name: str, folder: Path) -> None: ...

    @abstractmethod
    def log(self, metrics: dict[str, float], step: int) -> None:
        """Logs what was measured after this many steps."""

    @abstractmethod
    def close(self, complete: bool) -> None:
        """Closes the tracker; nothing more will be logged."""


class TensorBoard(Tracker):
    """Event files in ``tensorboard/`` in the run's folder."""

    package = "tensorboard"

    def __init__(self, experiment: Experiment, name: str, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an interrupted run wrote is replaced: all records are logged again.
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        self._writer.add_text("experiment", f"```toml\n{experiment.to_toml()}\n```")

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Logs scalars; they are on disk before this returns."""
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self, complete: bool) -> None:
        """Ends the tracker's run."""
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise."""

    package = "wandb"

    def __init__(self, experiment: Experiment, name: str, folder: Path) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "parley"),
            name=name,
            group=experiment.algorithm.label,
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            config=flat(experiment),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Logs one row of the run's history."""
        self._run.log(metrics, step=step)

    def close(self, complete: bool) -> None:
        """Ends the tracker's run."""
        self._run.finish(exit_code=0 if complete else 1)


class MLflow(Tracker):
    """A run in ``mlflow/`` in the run's folder, or at ``MLFLOW_TRACKING_URI``."""

    package = "mlflow"

    def __init__(self, experiment: Experiment, name: str, folder: Path) -> None:
        # MLflow wants a database unless told to use a plain folder.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        local = (folder / "mlflow").resolve().as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", local))
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", "parley")
        known = self._client.get_experiment_by_name(project)
        where = known.experiment_id if known else self._client.create_experiment(project)
        self._run = self._client.create_run(where, run_name=name).info.run_id
        params = [Param(key, str(value)) for key, value in flat(experiment).items()]
        self._client.log_batch(self._run, params=params)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Logs metrics of the run."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        found = [Metric(key, value, now, step) for key, value in metrics.items()]
        for start in range(0, len(found), 1000):  # the limit of a batch
            self._client.log_batch(self._run, metrics=found[start : start + 1000])

    def close(self, complete: bool) -> None:
        """Ends the tracker's run."""
        self._client.set_terminated(self._run, "FINISHED" if complete else "FAILED")


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def flat(experiment: Experiment) -> dict[str, Any]:
    """The experiment as one table.

    >>> flat(Experiment.of(algorithm="ngc"))["algorithm.alpha"]
    1.0
    """
    made: dict[str, Any] = {}
    for name, value in experiment.model_dump(exclude_none=True).items():
        if isinstance(value, dict):
            made |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            made[name] = value
    return made


def scalars(record: Record) -> dict[str, float]:
    """A record as numbers; per-agent ones as ``accuracy_agents/3``.

    >>> scalars({"epoch": 2, "loss": 0.5, "accuracy_agents": [0.25, 0.75]})
    {'epoch': 2.0, 'loss': 0.5, 'accuracy_agents/0': 0.25, 'accuracy_agents/1': 0.75}
    """
    made: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, list):
            present = ((agent, number(v)) for agent, v in enumerate(value))  # absent: None
            made |= {f"{name}/{agent}": v for agent, v in present if v is not None}
        elif (found := number(value)) is not None:
            made[name] = found
    return made


@contextmanager
def logging(
    names: Sequence[str], experiment: Experiment, out: Path, watch: Watcher
) -> Iterator[Watcher]:
    """A watcher that also sends every record of the run in `out` to the named trackers.

    A tracker is opened with the first new record. In a resumed run it also gets all earlier ones,
    so that its history is complete. If a tracker fails, the run continues without it: the records
    are on disk in any case.
    """
    opened: dict[str, Tracker] = {}
    pending = list(names)

    def tell(name: str, record: Record) -> None:
        records = [record]
        if name not in opened:
            title = f"{experiment.algorithm.label} {experiment.data} seed {experiment.seed}"
            opened[name] = TRACKERS[name](experiment, title, out)
            records = RunFolder(out).records()
        for each in records:
            opened[name].log(scalars(each), int(each["step"]))

    def both(event: Event) -> None:
        if isinstance(event, EpochDone) and event.record:
            for name in list(pending):
                try:
                    tell(name, event.record)
                except Exception as error:  # anything a tracker may raise
                    pending.remove(name)
                    why = " ".join(str(error).split())[:200]
                    log.warning("%s failed (%s); the run continues without it", name, why)
        watch(event)

    complete = False
    try:
        yield both
        complete = True
    finally:
        for tracker in opened.values():
            with suppress(Exception):
                tracker.close(complete)
