"""A worker's part in what a run writes: records, checkpoints, status, summary."""

import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import with_config
from torch import Tensor
from typing_extensions import TypedDict

from parley.errors import ParleyError
from parley.experiment import Experiment
from parley.fabric.board import Board
from parley.fabric.messages import Count
from parley.store import checkpoint, outputs
from parley.store.enclosed import Enclosed
from parley.store.folder import AGENTS, CONFUSION, EXPERIMENT, GENERATIONS, RECORDS, RunFolder
from parley.store.lock import Hold
from parley.training.events import EpochDone
from parley.training.record import EACH_AGENT, Record
from parley.training.trainer import Trainer
from parley.wire.transport import Transport

log = logging.getLogger(__name__)

LARGE = 1e9
"""Bytes of a checkpoint above which the user is warned."""


@with_config({"extra": "allow"})
class Written(TypedDict):
    """A record as another worker says it: only its epoch is certain."""

    epoch: Count


@with_config({"extra": "allow"})
class Noted(TypedDict):
    """A line on who took part, as another worker says it: only its number is certain."""

    generation: Count


class Journal:
    """A worker's part in the run's folder, whether shared with others or on its own disk.

    Every worker writes its checkpoints. Among those that see the same folder, the first keeps the
    records, so that every host has all of them.
    """

    def __init__(
        self,
        hold: Hold | None,
        board: Board | None = None,
        host_of: Callable[[int], str] = "agent {}".format,
    ) -> None:
        """`hold` is this process's hold on the folder; without one, nothing is kept. Without a
        board, this process is the only one. `host_of` is what the host of an agent is called."""
        self._host_of = host_of
        self.hold = hold
        self.out = hold.folder if hold else None
        self.folder = RunFolder(hold.folder) if hold else None
        self.board = board
        self.keeper = False
        self.records: list[Record] = []
        self.epoch = 0
        """Epochs whose record and checkpoint all workers have written."""
        self._warned = False
        self._experiment: Experiment | None = None
        """As it is in the folder."""

    @property
    def locked(self) -> bool:
        """Whether the folder is held for this run."""
        return self.hold is not None and self.hold.locked

    def open(self, run: Enclosed, resume: bool) -> None:
        """Creates the folder, or checks that it holds this experiment."""
        board = self.board
        mark = board.share("folder", uuid.uuid4().hex, str)[0] if board else ""
        if self.folder is None or self.hold is None:
            return
        self.folder.check(run.experiment, resume, run.files)
        self.keeper = board is None or self._is_first(self.folder, board, mark)
        if self.keeper:
            self.hold.retake()  # in a later generation, whoever had it may have died
            self.folder.create(run.experiment, run.files)
        self._experiment = run.experiment
        if board is not None:
            board.share("create", True, bool)

    @staticmethod
    def _is_first(folder: RunFolder, board: Board, mark: str) -> bool:
        """Whether this worker is the first of those that see the same folder."""
        board.share("check", True, bool)  # nobody writes into a folder that has been refused
        marks = folder.path / f"{EXPERIMENT}.{mark}"
        own = marks.with_name(f"{marks.name}-{board.rank:06d}.partial")
        folder.touch(own)
        board.share("mark", True, bool)
        first = min(own.parent.glob(f"{marks.name}-*")) == own
        board.share("look", True, bool)
        own.unlink(missing_ok=True)
        return first

    def _share(self, what: str, value: Any, kind: Any) -> list[Any]:
        return self.board.share(what, value, kind) if self.board else [value]

    def continue_after(self, records: list[Record], epoch: int) -> None:
        """Takes over what the worker furthest ahead has recorded up to an epoch."""
        self.records, self.epoch = records, epoch

    def go_on(self) -> None:
        """Writes a new number of epochs to the folder, once everything needed has been read."""
        if self.folder and self.keeper and self._experiment:
            self.folder.extend(self._experiment)

    def restore(self, run: Trainer) -> None:
        """Goes back to the newest checkpoint that every worker has."""
        if self.folder is None:
            return
        path, transport = self.folder.path, run.transport
        records = self.folder.records() if self.keeper else []
        self.epoch = checkpoint.newest(path, transport)
        own = max(checkpoint.epochs_present(path), default=0)
        newer = max(self._share("epochs", own, Count))
        if newer > self.epoch + run.experiment.checkpoint_every:
            # Workers write at most one checkpoint apart, unless some continued without others.
            raise ParleyError(
                f"resume: some workers are at epoch {newer}, but epoch {self.epoch} is the last "
                "that all have; with parley join and healing, each continues from its own"
            )
        if self.epoch:
            log.debug("resuming from the checkpoint of epoch %d", self.epoch)
            run.restore(*checkpoint.load(path, self.epoch, run.state, transport, run.b_AS))
        records = [r for r in records if r["epoch"] <= self.epoch]
        if run.experiment.epochs > self.epoch and not run.stop.reason(records):
            # The last epoch of a run that now goes on for longer was measured for being the last.
            records = [r for r in records if r["epoch"] % run.frequency.records == 0]
        # The first worker may be on a different host now, so all get the records of any keeper.
        self.records = longest(self.board, records) if self.board else records
        self._check_records(run.frequency.records)
        meet(transport)  # nothing is changed on disk until every worker has read its part
        self.go_on()
        checkpoint.drop_after(path, self.epoch)
        if self.keeper:
            self.folder.rewind(self.records, self.epoch)
        run.continue_after(self.records)
        meet(transport)

    def _check_records(self, every: int) -> None:
        """Refuses to continue if a record is missing: each is on disk before its checkpoint."""
        known = {record["epoch"] for record in self.records}
        lost = [e for e in range(every, self.epoch + 1, every) if e not in known]
        if lost and self.out:
            raise ParleyError(
                f"records: {self.out / RECORDS} lacks the record of epoch {lost[0]}; put it back, "
                f"or remove the checkpoints from that epoch on in {self.out / 'checkpoint'} to "
                "train again from there"
            )

    def save(self, run: Trainer, event: EpochDone) -> None:
        """The record of an epoch and the state after it."""
        # The record goes first: resuming drops records newer than its checkpoint, but could not
        # make up for a record that is missing.
        if event.record:
            self.records.append(event.record)
        if self.folder is None:
            self.epoch = event.epoch
            return
        self.folder.check_kept()
        if self.keeper and event.record:
            self.folder.append(event.record)
        path, how = self.folder.path, run.experiment
        if event.epoch % how.checkpoint_every and not run.is_over:
            return
        checkpoint.save(path, event.epoch, run.state, run.transport, run.about(), run.b_AS)
        meet(run.transport)
        log.debug("checkpoint of epoch %d written to %s", event.epoch, path)
        self.epoch = event.epoch
        checkpoint.prune(path, event.epoch, how.keep)
        size = checkpoint.size(path, event.epoch)
        if self.keeper and size > LARGE and not self._warned:
            self._warned = True
            log.warning(
                "checkpoints are large: %.1f GB each, and %d are kept in %s; --checkpoint-every "
                "writes them less often, --keep 1 keeps only the newest",
                *(size / 1e9, how.keep, path),
            )

    def note(self, event: dict[str, Any], apart: bool = False) -> None:
        """Adds a line about who takes part; `apart`: every worker has its own folder, and those
        that were away get the lines that they missed."""
        if apart:
            known = self.folder.lines(GENERATIONS) if self.folder else []
            told = max(self._share("generations", known, list[Noted]), key=len)
            # What this worker has seen itself, nobody else can change.
            lines = {line["generation"]: line for line in (*told, *known)}
            known = [lines[n] for n in sorted(lines) if n < event["generation"]]
            if self.folder and self.keeper:
                self.folder.rewrite(GENERATIONS, [*known, event])
        elif self.folder and self.keeper:
            self.folder.append(event, GENERATIONS)

    def describe(self, agents: dict[str, Any]) -> None:
        """Records who talks to whom and who holds which classes."""
        if self.folder and self.keeper:
            self.folder.write_once(AGENTS, agents)

    def last(self, run: Trainer) -> Record:
        """The record of the last epoch."""
        if not self.records or self.records[-1]["epoch"] != run.epoch:
            path = self.folder.path if self.folder else Path()
            raise ParleyError(
                f"records: {path / RECORDS} lacks the last record; remove "
                f"{checkpoint.folder(path, run.epoch)} to repeat that epoch"
            )
        return self.records[-1]

    def finish(self, run: Trainer, confusion: dict[str, Any], mean_E: Tensor) -> dict[str, Any]:
        """The models, and the summary, written where records are kept; all workers take part."""
        if self.folder and self.out:
            self.folder.check_kept()
            outputs.write(self.out, run, mean_E, self.keeper)
        meet(run.transport)  # a run is complete once every worker has written its models
        summary = summarise(run.experiment, self.last(run), self.out, run.stopped)
        summary["engine"] = run.engine_name
        hosted = run.transport.placement.numbers or range(run.experiment.agents)
        if absent := [agent for agent in range(run.experiment.agents) if agent not in hosted]:
            summary["agents_absent"] = absent
            summary["hosts_absent"] = list(dict.fromkeys(map(self._host_of, absent)))
        if self.folder and self.keeper:
            self.folder.write_once(CONFUSION, confusion)
            self.folder.finish(summary)
        return summary

    def with_remedy(self, error: ParleyError) -> ParleyError:
        """The error, and which checkpoint is kept."""
        present = checkpoint.epochs_present(self.folder.path) if self.folder else []
        if not present or not self.folder:
            return error
        return error.saying(
            f"{error}; the checkpoint after epoch {present[-1]} is kept in {self.folder.path}"
        )


def longest(board: Board, records: list[Record]) -> list[Record]:
    """The records of the worker that has the most; the others need not send theirs."""
    counts = board.share("number of records", len(records), Count)
    most = counts.index(max(counts))
    found: list[Record] = board.share(
        "records", records if board.rank == most else [], list[Written]
    )[most]
    return found


def meet(transport: Transport) -> None:
    """Waits until every worker has reached this point."""
    transport.sum(torch.zeros(1))


def summarise(
    experiment: Experiment, last: Record, out: Path | None, stopped: str = ""
) -> dict[str, Any]:
    """The last record and what was run, as one flat object."""
    return {
        "algorithm": experiment.algorithm.name,
        "label": experiment.algorithm.label,
        "data": experiment.data,
        "model": experiment.model,
        "agents": experiment.agents,
        "topology": experiment.topology,
        "partition": experiment.partition,
        **_task(experiment),
        "seed": experiment.seed,
        "epochs": last["epoch"],
        **({"stopped": stopped} if stopped else {}),
        **{k: v for k, v in last.items() if k != "epoch" and not k.endswith(EACH_AGENT)},
        "out": str(out) if out else None,
    }


def _task(experiment: Experiment) -> dict[str, str]:
    """The objective and the metrics, where they are not the default."""
    usual = Experiment.model_fields
    names = ("task", "metrics", "objective", "sampling")
    return {n: getattr(experiment, n) for n in names if getattr(experiment, n) != usual[n].default}
