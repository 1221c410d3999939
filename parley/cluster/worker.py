"""One worker's life: what it loads, what it agrees on with the others, and what it writes.

Axes: A agents hosted here, N all agents, D flat parameters.

A run is a sequence of generations, in each of which the same workers train together. Most runs are
one generation: it ends when training is done, or when a worker is lost. A run that heals continues
with another (`parley.cluster.heal`).
"""

import logging
import os
import uuid
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch

from parley.cluster import handshake
from parley.cluster.heal import Position, Recovery, without
from parley.cluster.join import Consensus, Gathering, RejoinRequest, Roster
from parley.cluster.run import (
    Assignment,
    Outcome,
    describe,
    follow,
    holdings,
    standardised,
    unwatched,
)
from parley.fabric.base import WorkerLost, listed
from parley.fabric.board import Board
from parley.fabric.messages import Count
from parley.graphs import Edge
from parley.process import torch_threads
from parley.store.enclosed import enclosed
from parley.store.folder import RunFolder
from parley.store.journal import Journal
from parley.store.lock import Hold
from parley.store.status import mark_stopped
from parley.training.events import EpochDone, Event
from parley.training.pace import last_step, sizes_of
from parley.training.problem import Problem, task_of
from parley.training.trainer import Trainer
from parley.wire.guard import Suspicious
from parley.wire.placement import Placement
from parley.wire.spread import over

log = logging.getLogger(__name__)

LOADING = 600.0
"""Minimum seconds that workers wait for each other to load their data."""


def work(assignment: Assignment, meeting: Gathering) -> Outcome | None:
    """Runs one worker from loading to summary; returns the outcome, on worker 0."""
    with torch_threads(assignment.experiment.threads or 1), ExitStack() as holding:
        return Worker(assignment, meeting, holding).work()


class Worker:
    """One worker of a run."""

    def __init__(self, assignment: Assignment, meeting: Gathering, holding: ExitStack) -> None:
        """`holding` ends with the run, and with it this worker's hold on the folder."""
        self.assignment = assignment
        self.experiment = assignment.experiment
        self.meeting = meeting
        self.everywhere = meeting.apart or assignment.everywhere
        self.consensus = meeting.consensus()
        self.position = Position()
        self.hold: Hold | None = None
        self._holding = holding
        lobby = meeting.lobby()
        back = self.consensus is not None and self.consensus.begun()
        if back:
            # A mistake on this host alone is no reason for the others to stop.
            self._prepare(lobby, back)
        else:
            with meeting.ending_together(lobby, final=True):
                self._prepare(lobby, back)

    def _prepare(self, lobby: Board, back: bool) -> None:
        """Loads this worker's data and checks that they fit the others'."""
        experiment, assignment = self.experiment, self.assignment
        self.worker_of = self.meeting.seats(lobby, experiment.agents, assignment.mine)
        hosted = self._introduce(lobby)
        restarted = any(lobby.share("restarts", _restarts(), Count))
        self.resume = assignment.resume or back or restarted
        self.problem: Problem = assignment.load(experiment, hosted)
        if assignment.out:
            kept = enclosed(experiment, self.problem.topology)
            RunFolder(assignment.out).check(kept.experiment, self.resume, kept.files)
        self.task = task_of(experiment, self.problem, hosted)
        bytes_ = self.task.size * self.task.dtype.itemsize
        self.meeting.expect(experiment.agents, len(self.problem.topology.edges), bytes_)
        lobby.wait_at_least(LOADING)
        version = assignment.version or handshake.code()
        said = handshake.claims(experiment, self.problem, self.task, version)
        handshake.agree(lobby, hosted, said)
        begun = assignment.out if self.resume else None
        self.problem = standardised(self.problem, experiment.data, hosted, begun, lobby)
        mine = [len(samples) for samples in self.problem.samples]
        sizes = lobby.share("sizes", mine, list[Count])
        everyone = [size for of_worker in sizes for size in of_worker]
        self.sizes = sizes_of(experiment, everyone)
        tests = lobby.share("tests", len(self.problem.test), Count)
        self.test_samples = tests[0] if self.problem.test_is_shared else sum(tests)
        self.tested_on = self.test_samples
        held = holdings(self.problem, hosted, experiment.agents, lobby)
        self.agents = describe(self.problem, held)
        self._take_hold(lobby)
        if self.consensus and self.resume:
            end_of = partial(last_step, experiment, self.sizes.steps_per_epoch)
            self.position = Position.saved(assignment.out, hosted, end_of)

    def _take_hold(self, lobby: Board) -> None:
        """Locks the folder for this run before anything in it is read."""
        run = lobby.share("run", uuid.uuid4().hex, str)[0]
        if self.assignment.out:
            hold = Hold(self.assignment.out, run, self.meeting.rank)
            self.hold = self._holding.enter_context(hold)
        took = lobby.share("hold", self.hold.take() if self.hold else False, bool)
        if self.hold:
            self.hold.settle(took)

    def _introduce(self, lobby: Board) -> list[int]:
        """The agents hosted here; reports those of the whole host."""
        rank = self.meeting.rank
        hosted = [agent for agent, worker in enumerate(self.worker_of) if worker == rank]
        if "LOCAL_WORLD_SIZE" in os.environ:
            first = rank - int(os.environ.get("LOCAL_RANK", "0"))
            ours = range(first, first + int(os.environ["LOCAL_WORLD_SIZE"]))
            agents = [agent for agent, worker in enumerate(self.worker_of) if worker in ours]
            log.info("%s hosts %s; loading data", lobby.host, listed(agents))
        return hosted

    def work(self) -> Outcome | None:
        """Runs generation after generation until one of them reaches the end."""
        try:
            return self._generations()
        except KeyboardInterrupt:
            if self.hold and self.consensus:  # between two generations, of which one was lost
                mark_stopped(self.hold.folder, ("running", "failed"))
            raise

    def _generations(self) -> Outcome | None:
        lost: Collection[int] | None = None
        while True:
            consensus = self.consensus
            roster = consensus.next_roster(lost) if consensus else self.meeting.everyone
            self.worker_of = self.meeting.reseated(roster) or self.worker_of
            try:
                with self.meeting.connected(roster) as board:
                    outcome = self._train(roster, board)
                    if consensus:
                        consensus.done()
                    return outcome
            except (WorkerLost, RejoinRequest) as end:
                if consensus is None:
                    raise
                gone = end.workers if isinstance(end, WorkerLost) else ()
                lost = [roster.workers[number] for number in gone]
            except Suspicious as error:
                if consensus is None or not error.drop:
                    raise
                log.warning("%s", error)
                consensus.drop(roster.workers[error.worker], str(error))
                lost = ()

    def _train(self, roster: Roster, board: Board) -> Outcome | None:
        """One generation: from where its workers are to the end, or until a worker is lost."""
        full, workers = self.problem.topology, roster.workers
        present = [a for a in range(full.agents) if self.worker_of[a] in workers]
        graph, bridges = without(full, present)
        self.experiment.algorithm.check(graph)
        seats = tuple(workers.index(self.worker_of[a]) for a in present)
        numbers = tuple(present) if len(present) < full.agents else ()
        placement = Placement(graph, seats, board.rank, numbers)
        transport = over(board.fabric, placement)
        problem = replace(self.problem, topology=graph)
        callbacks = self.assignment.callbacks
        run = Trainer(
            self.experiment,
            problem,
            transport,
            self.task,
            self.sizes,
            self.test_samples,
            callbacks if board.rank == 0 else callbacks.silent(),
        )
        journal = Journal(self.hold, board, self._host_of)
        journal.open(enclosed(self.experiment, full), self.resume or roster.generation > 0)
        if self.consensus:
            recovery = Recovery(run, journal, board, self.position)
            return self._recovered(self.consensus, roster, recovery, bridges)
        if self.resume:
            journal.restore(run)
        told = board.rank == 0 or self.meeting.apart
        watch = self.assignment.watch if told else unwatched
        return follow(run, journal, watch, self.agents, self.everywhere)

    def _recovered(
        self,
        consensus: Consensus,
        roster: Roster,
        recovery: Recovery,
        bridges: Sequence[Edge],
    ) -> Outcome | None:
        """The same where workers may have left or joined: each continues with its own models."""
        recovery.take_up()
        self.position = recovery.position()
        run, journal = recovery.run, recovery.journal
        self._tell(consensus, roster, run, journal, bridges)
        try:
            each = partial(self._each, consensus, roster, run, recovery.board.rank)
            return follow(run, journal, each, self.agents, self.everywhere)
        finally:
            self.position = recovery.position()

    def _name(self, worker: int) -> str:
        return worker_name(self.meeting.label(worker))

    def _host_of(self, agent: int) -> str:
        worker = self.worker_of[agent]
        return self._name(worker) if worker >= 0 else "nobody (a vacant place)"

    def _each(
        self, consensus: Consensus, roster: Roster, run: Trainer, rank: int, event: Event
    ) -> None:
        """After an epoch, waiting workers may join."""
        self.assignment.watch(event)
        if isinstance(event, EpochDone) and not event.last:
            rejoining = rank == 0 and consensus.waiting(roster.generation)
            # Whether somebody waits is for the first worker to say, whatever the others send.
            if float(run.transport.each(torch.tensor(float(rejoining)))[0]) == 1:
                raise RejoinRequest

    def _tell(
        self,
        consensus: Consensus,
        roster: Roster,
        run: Trainer,
        journal: Journal,
        bridges: Sequence[Edge],
    ) -> None:
        """Records who takes part, in the run's folder and for the user of this host."""
        before = consensus.roster(roster.generation - 1) if roster.generation else ()
        gone = [w for w in before if w not in roster.workers]
        back = [w for w in roster.workers if w not in before] if before else []
        label = self.meeting.label
        event = {
            "generation": roster.generation,
            "epoch": run.epoch,
            "step": run.step,
            "workers": [label(worker) for worker in roster.workers],
            "gone": [label(worker) for worker in gone],
            "back": [label(worker) for worker in back],
            "bridges": [list(bridge) for bridge in bridges],
        }
        journal.note(event, self.meeting.apart)
        earlier = {w for n in range(roster.generation) for w in consensus.roster(n)} if back else {}
        new = [worker for worker in back if worker not in earlier]
        back = [worker for worker in back if worker in earlier]
        changes = (
            ("was lost; continuing without", gone),
            ("rejoined with", back),
            ("joined with", new),
        )
        for word, workers in changes:
            level = logging.WARNING if workers is gone else logging.INFO
            for worker in workers:
                agents = [a for a, w in enumerate(self.worker_of) if w == worker]
                what = listed(agents) if agents else "it"
                log.log(level, "%s %s %s (step %d)", self._name(worker), word, what, run.step)
        if run.evaluation.test.count != self.tested_on:
            rest = (
                "; the others are on absent hosts"
                if run.evaluation.test_samples_absent
                else " again"
            )
            log.info(
                "tested on %d of %d test samples%s",
                run.evaluation.test.count,
                self.test_samples,
                rest,
            )
            self.tested_on = run.evaluation.test.count
        if bridges:
            pairs = ", ".join(f"{i} - {j}" for i, j in bridges)
            log.info("the graph was disconnected; added edges: %s", pairs)


def worker_name(label: int | str) -> str:
    """A worker in words: its own name, or its number.

    >>> worker_name("ward-a"), worker_name(2)
    ('ward-a', 'worker 2')
    """
    return label if isinstance(label, str) else f"worker {label}"


def _restarts() -> int:
    """How often torchrun has restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
