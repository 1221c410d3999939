"""One worker's life: what it loads, what it agrees on with the others, and what it writes.

Axes: A agents hosted here, N all agents, D flat parameters.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parley.cluster import handshake
from parley.cluster.noticeboard import Peers
from parley.enclosed import Enclosed, enclosed
from parley.errors import ParleyError
from parley.experiment import Experiment
from parley.store import checkpoint
from parley.store.folder import AGENTS, CONFUSION, EXPERIMENT, GENERATIONS, RECORDS, RunFolder
from parley.store.status import is_held, reported
from parley.training.events import EpochDone, Event
from parley.training.record import EACH_AGENT, Record
from parley.training.run import Problem, Run, task_of
from parley.wire.placement import Placement
from parley.wire.transport import Local, Processes, Transport, WorkerLost

Watcher = Callable[[Event], None]
"""Is shown every event of worker 0."""

Load = Callable[[Experiment, Sequence[int]], Problem]
"""Makes the problem as seen by the host of these agents."""


class Outcome:
    """What a finished run leaves in memory (on worker 0)."""

    def __init__(
        self,
        records: list[Record],
        summary: dict[str, Any],
        x_ND: Tensor,
        run: Run,
        about: dict[str, dict[str, Any]],
    ) -> None:
        self.records = records
        self.summary = summary
        self.x_ND = x_ND
        """Every agent's model."""
        self.task = run.task
        self.about = about
        """What the folder has beside records: ``agents`` and ``confusion``."""


def work(
    experiment: Experiment,
    load: Load,
    out: Path | None,
    resume: bool,
    peers: Peers,
    watch: Watcher,
    mine: Sequence[int] | None = None,
) -> Outcome | None:
    """One worker, from loading to summary; `mine` are the agents that its host has claimed."""
    with threads(experiment.threads or 1):
        worker_of = handshake.seats(peers, experiment.agents, mine)
        hosted = [agent for agent, worker in enumerate(worker_of) if worker == peers.rank]
        problem = load(experiment, hosted)
        task = task_of(experiment, problem)
        handshake.agree(peers, hosted, handshake.claims(experiment, problem, task))
        placement = Placement(problem.topology, worker_of, peers.rank)
        transport: Transport = Local(placement) if peers.world == 1 else Processes(placement)
        run = Run(experiment, problem, transport, task)
        resume = resume or any(peers.share("restarts", _restarts()))
        journal = Journal(out, peers)
        journal.open(enclosed(experiment, problem.topology), resume)
        agents = describe(problem, holdings(problem, hosted, experiment.agents, peers))
        journal.describe(agents)
        if resume:
            journal.restore(run)
        watch = watch if peers.rank == 0 else lambda event: None
        return follow(run, journal, watch, agents)


def _restarts() -> int:
    """How often torchrun has started this process anew after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def follow(run: Run, journal: "Journal", watch: Watcher, agents: dict[str, Any]) -> Outcome | None:
    """Trains to the end, writes what is to be kept; the outcome, on worker 0."""
    with reported(journal.out if journal.keeper else None) as report:
        try:
            for event in run.events():
                if isinstance(event, EpochDone):
                    journal.save(run, event)
                report(event)
                watch(event)
        except WorkerLost:
            raise
        except ParleyError as error:
            raise journal.with_remedy(error) from None
        x_ND = run.transport.gather(run.state.x_AD)
        last = journal.last(run)
        confusion = _confusion(run, agents["classes"], last, x_ND)
        summary = journal.finish(run, confusion)
    if run.transport.placement.here:
        return None
    return Outcome(journal.records, summary, x_ND, run, {"agents": agents, "confusion": confusion})


class Journal:
    """A worker's part in the run's folder, be that shared with others or on a disk of its own.

    Every worker writes its checkpoints. Of those who see the same folder, the first keeps its
    records, so that every host has all of them.
    """

    def __init__(self, out: Path | None, peers: Peers) -> None:
        self.out = out
        self.folder = RunFolder(out) if out else None
        self.peers = peers
        self.keeper = False
        self.records: list[Record] = []
        self.epoch = 0
        """Epochs whose record and checkpoint all workers have written."""

    def open(self, run: Enclosed, resume: bool, first: bool = True) -> None:
        """Makes the folder, or checks that it holds this very experiment and that nobody is at work
        in it; unless it is not the `first` time, when that may be one of us who has fallen silent.
        """
        mark = self.peers.share("folder", uuid.uuid4().hex)[0]
        if self.folder is None:
            return
        self.folder.check(run.experiment, resume, run.files)
        if first and is_held(self.folder.path):
            raise ParleyError(
                f"out: another process is training into {self.folder.path}; wait for it, stop it, "
                "or choose another folder"
            )
        self.peers.share("check", True)  # nobody writes into a folder that has been refused
        marks = self.folder.path / f"{EXPERIMENT}.{mark}"
        own = marks.with_name(f"{marks.name}-{self.peers.rank:06d}.partial")
        self.folder.touch(own)
        self.peers.share("mark", True)
        self.keeper = min(own.parent.glob(f"{marks.name}-*")) == own
        self.peers.share("look", True)
        own.unlink(missing_ok=True)
        if self.keeper:
            self.folder.create(run.experiment, run.files)
        self.peers.share("create", True)

    def restore(self, run: Run) -> None:
        """Goes back to the newest checkpoint that every worker has."""
        if self.folder is None:
            return
        path, transport = self.folder.path, run.transport
        records = self.folder.records() if self.keeper else []
        self.epoch = checkpoint.newest(path, transport)
        newer = max(self.peers.share("epochs", max(checkpoint.epochs_present(path), default=0)))
        if newer > self.epoch + 1:
            # Workers write at most one epoch apart, unless some went on without others.
            raise ParleyError(
                f"resume: some workers are at epoch {newer}, but epoch {self.epoch} is the last of "
                "all; --on-failure heal lets each go on from its own checkpoint"
            )
        if self.epoch:
            run.restore(*checkpoint.load(path, self.epoch, run.state, transport))
        meet(transport)  # nothing is changed on disk until every worker has read its part
        checkpoint.drop_after(path, self.epoch)
        if self.keeper:
            records = self.folder.rewind(records, self.epoch)
        # The first worker need not be where it was before: all know what some keeper knows.
        self.records = max(self.peers.share("records", records), key=len)
        if self.keeper and len(records) < len(self.records):
            self.folder.rewind(self.records, self.epoch)
        meet(transport)

    def save(self, run: Run, event: EpochDone) -> None:
        """The record of an epoch and the state after it."""
        # The record goes first: resuming drops records newer than its checkpoint, but could not
        # make up for a record that is missing.
        if event.record:
            self.records.append(event.record)
        if self.folder is None:
            self.epoch = event.epoch
            return
        if self.keeper and event.record:
            self.folder.append(event.record)
        path = self.folder.path
        checkpoint.save(path, event.epoch, run.state, run.transport, run.about())
        meet(run.transport)
        self.epoch = event.epoch
        checkpoint.prune(path, event.epoch)

    def note(self, event: dict[str, Any]) -> None:
        """One more line on who takes part."""
        if self.folder and self.keeper:
            self.folder.append(event, GENERATIONS)

    def describe(self, agents: dict[str, Any]) -> None:
        """Notes who talks with whom and who holds what."""
        if self.folder and self.keeper:
            self.folder.write_once(AGENTS, agents)

    def last(self, run: Run) -> Record:
        """The record of the last epoch."""
        if not self.records or self.records[-1]["epoch"] != run.epoch:
            path = self.folder.path if self.folder else Path()
            raise ParleyError(
                f"records: {path / RECORDS} lacks the last record; remove "
                f"{checkpoint.folder(path, run.epoch)} to make that epoch again"
            )
        return self.records[-1]

    def finish(self, run: Run, confusion: dict[str, Any]) -> dict[str, Any]:
        """The summary, written where records are kept."""
        summary = summarise(run.experiment, self.last(run), self.out)
        if self.folder and self.keeper:
            self.folder.write_once(CONFUSION, confusion)
            self.folder.finish(summary)
        return summary

    def with_remedy(self, error: ParleyError) -> ParleyError:
        """The error, and what is left of the run."""
        present = checkpoint.epochs_present(self.folder.path) if self.folder else []
        if not present or not self.folder:
            return error
        return ParleyError(
            f"{error}; the checkpoint after epoch {present[-1]} is kept in {self.folder.path}"
        )


def meet(transport: Transport) -> None:
    """Goes on once every worker has come this far."""
    transport.sum(torch.zeros(1))


def summarise(experiment: Experiment, last: Record, out: Path | None) -> dict[str, Any]:
    """The last record and what it is the record of, as one flat object."""
    return {
        "algorithm": experiment.algorithm.name,
        "label": experiment.algorithm.label,
        "data": experiment.data,
        "model": experiment.model,
        "agents": experiment.agents,
        "topology": experiment.topology,
        "partition": experiment.partition,
        "seed": experiment.seed,
        "epochs": experiment.epochs,
        **{k: v for k, v in last.items() if k not in ("epoch", *EACH_AGENT)},
        "out": str(out) if out else None,
    }


def describe(problem: Problem, counts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Who talks with whom and who holds how many samples of each class, for whoever draws it."""
    graph = problem.topology
    weights = [round(weight, 6) for weight in graph.edge_weights.tolist()]
    return {
        "topology": graph.name,
        "edges": [[j, i, weight] for (j, i), weight in zip(graph.edges, weights, strict=True)],
        "classes": list(problem.class_names),
        "held": [list(count) for count in counts],
        "note": problem.note,
    }


def holdings(problem: Problem, hosted: Sequence[int], agents: int, peers: Peers) -> list[list[int]]:
    """Samples of each class at each agent; what agents of other hosts own is not told: zeros."""
    classes = len(problem.class_names)
    own = {a: torch.bincount(s.targets, minlength=classes).tolist()
           for a, s in zip(hosted, problem.samples, strict=True)}  # fmt: skip
    told = [{str(a): count for a, count in own.items()}]
    if not problem.data_are_own:
        told = peers.share("holdings", told[0])
    known = {int(a): count for said in told for a, count in said.items()}
    return [known.get(agent, [0] * classes) for agent in range(agents)]


def _confusion(run: Run, names: Sequence[str], last: Record, x_ND: Tensor) -> dict[str, Any]:
    """What the best and the worst agent take for what; all workers take part."""
    placement = run.transport.placement
    present = [placement.number(row) for row in range(len(x_ND))]
    accuracies = [last["accuracy_agents"][agent] or 0.0 for agent in present]
    best = max(range(len(present)), key=accuracies.__getitem__)
    worst = min(range(len(present)), key=accuracies.__getitem__)
    device = run.state.x_AD.device
    return {
        "classes": list(names),
        **{
            name: {
                "agent": present[row],
                "accuracy": accuracies[row],
                "matrix": run.test.confusion(x_ND[row].to(device), len(names)).tolist(),
            }
            for name, row in (("best", best), ("worst", worst))
        },
    }


@contextmanager
def threads(threads: int) -> Iterator[None]:
    """Threads of torch while this is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
