"""Going on without workers that have gone, and taking them back when they return.

Axes: A agents hosted here, D flat parameters.

A run is a row of *generations*: groups of workers that train together. A generation ends when one
of its workers dies or says nothing for longer than the patience, or, after an epoch, when one that
is outside knocks. Then everyone who is alive convenes for the next:

    outside ──knocks──▶ convening ──roster──▶ training ──end──▶ done
                            ▲                     │
                            └──somebody is lost, or somebody knocks

The common store is the arbiter: of all rosters that are proposed for a generation, the first that
is written counts. Whoever keeps the store cannot be replaced; when it goes, all others stop.

Survivors keep their models as they are after their last whole step. All else that an algorithm
keeps (momentum, errors, trackers) starts anew, since it belongs to a graph that is no more.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import networkx as nx
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from parley import data
from parley import graphs as topologies
from parley.cluster import handshake
from parley.cluster.noticeboard import FAILURE, Peers, StoreLost, ask, listed, speaks
from parley.cluster.worker import (
    Journal,
    Load,
    Outcome,
    Watcher,
    describe,
    follow,
    holdings,
    threads,
)
from parley.compute.task import Task
from parley.enclosed import enclosed
from parley.errors import ParleyError
from parley.experiment import Experiment
from parley.graphs import Edge, Topology
from parley.store import checkpoint
from parley.store.folder import RunFolder
from parley.training.events import EpochDone, Event
from parley.training.record import Record
from parley.training.run import Losses, Problem, Run, task_of
from parley.wire.placement import Placement
from parley.wire.transport import Kind, Processes, WorkerLost

LOADING = 600.0
"""Seconds that workers wait for each other to load their data."""
PAUSE = 0.05
"""Seconds between two looks at the store."""
BEAT = 1.0
"""Seconds after which a generation shows again that it is at work."""

T = TypeVar("T")


class Roster(NamedTuple):
    """Who takes part in a generation."""

    generation: int
    workers: tuple[int, ...]


class Knock(Exception):
    """Somebody waits outside: the generation ends to take it in."""


@dataclass
class Position:
    """How far a worker has come, and with what models."""

    epoch: int = -1
    """Epochs whose records and checkpoints are written; -1: it has no models."""
    step: int = -1
    x_AD: Tensor | None = None
    seconds: float = 0.0
    samples: float = 0.0
    sent: dict[Kind, Tensor] = field(default_factory=dict)
    losses: list[Losses] = field(default_factory=list)


def work(
    experiment: Experiment,
    load: Load,
    out: Path | None,
    resume: bool,
    store: Store,
    rank: int,
    world: int,
    watch: Watcher,
    mine: Sequence[int] | None = None,
) -> Outcome | None:
    """One worker of a run that heals, from loading to summary."""
    with threads(experiment.threads or 1):
        member = Member(experiment, load, out, resume, store, rank, world, watch, mine)
        return member.work()


class Council:
    """Agrees with the other workers on who takes part in the next generation."""

    def __init__(self, store: Store, rank: int, world: int, patience: float) -> None:
        self.store = store
        self.rank = rank
        self.world = world
        self.patience = patience
        self._beaten = 0.0

    def convene(self, left: bool) -> Roster:
        """Waits for the roster of the next generation that this worker takes part in.

        `left`: this worker was in the generation before, and it has ended. Only then may the others
        start without those who do not come; who merely knocks waits for the end of an epoch.
        """
        said = self.ask(lambda: self._get("generation"))
        generation = 0 if said is None else int(said) + 1
        while True:
            workers = self._settle(generation, left)
            if self.rank in workers:
                return Roster(generation, workers)
            generation, left = generation + 1, False

    def _settle(self, generation: int, left: bool) -> tuple[int, ...]:
        """The workers of one generation, as they were first written down."""
        self.ask(lambda: self._enter(generation, left))
        before = self.roster(generation - 1) if generation else tuple(range(self.world))
        began = heard = time.monotonic()
        beats: str | None = None
        over = left
        while True:
            workers, inside, ended, beat, failure, done = self.ask(lambda: self._look(generation))
            now = time.monotonic()
            if workers is not None:
                return tuple(workers)
            if failure:
                raise ParleyError(failure)
            if done:
                raise ParleyError("workers: the run has ended without this host")
            if ended and not over:
                began, over = now, True
            waited = now - began > self.patience
            if set(before) <= set(inside) or (generation and over and waited):
                self.ask(lambda: self._propose(generation, inside))  # noqa: B023
            elif not generation and waited:
                missing = [w for w in range(self.world) if w not in inside]
                raise ParleyError(
                    f"workers: worker {', '.join(map(str, missing))} did not come within "
                    f"{self.patience:g} seconds (--patience)"
                )
            elif not over:
                # A generation that shows no sign of life has gone without a word.
                if beat != beats:
                    beats, heard = beat, now
                elif now - heard > 3 * self.patience:
                    self.ask(lambda: self.store.set(f"left/{generation}", "1"))
            time.sleep(PAUSE)

    def roster(self, generation: int) -> tuple[int, ...]:
        """Who took part in an earlier generation."""
        return tuple(json.loads(self.ask(lambda: self._get(f"roster/{generation}")) or "[]"))

    def waiting(self, generation: int) -> bool:
        """Whether somebody knocks to be in the generation after this one."""
        keys = [f"in/{generation + 1}/{worker}" for worker in range(self.world)]
        return self.ask(lambda: any(self.store.check([key]) for key in keys))

    def beat(self) -> None:
        """Shows those who wait outside that there is a generation at work."""
        if time.monotonic() - self._beaten > BEAT:
            self._beaten = time.monotonic()
            self.ask(lambda: self.store.add("beat", 1))

    def ask(self, question: Callable[[], T], times: int = 1) -> T:
        """An answer of the store, or the error that says that it has gone."""
        return ask(question, times * self.patience)

    def _enter(self, generation: int, left: bool) -> None:
        self.store.set(f"in/{generation}/{self.rank}", "1")
        if left:
            self.store.set(f"left/{generation}", "1")

    def _look(self, generation: int) -> tuple[Any, list[int], bool, str | None, str | None, bool]:
        workers = self._get(f"roster/{generation}")
        everyone = range(self.world)
        inside = [w for w in everyone if self.store.check([f"in/{generation}/{w}"])]
        ended = self.store.check([f"left/{generation}"])
        settled = tuple(json.loads(workers)) if workers is not None else None
        failure, done = self._get(FAILURE), self.store.check(["done"])
        return settled, inside, ended, self._get("beat"), failure, done

    def _propose(self, generation: int, inside: Sequence[int]) -> None:
        self.store.compare_set(f"roster/{generation}", "", json.dumps(list(inside)))
        self.store.set("generation", str(generation))

    def _get(self, key: str) -> str | None:
        return self.store.get(key).decode() if self.store.check([key]) else None


class Member:
    """One worker of a run that heals."""

    def __init__(
        self,
        experiment: Experiment,
        load: Load,
        out: Path | None,
        resume: bool,
        store: Store,
        rank: int,
        world: int,
        watch: Watcher,
        mine: Sequence[int] | None,
    ) -> None:
        self.experiment = experiment
        self.out = out
        self.rank = rank
        self.watch = watch
        self.store = PrefixStore("parley/heal", store)
        self.council = Council(self.store, rank, world, experiment.patience)
        self.patience = timedelta(seconds=experiment.patience)
        # What is said here stays said: a worker that returns finds the others' answers.
        start = Peers(
            PrefixStore("start", self.store), rank, world, self.patience, self.store, once=True
        )
        back = self.council.ask(lambda: self.store.check(["generation"]))
        self.resume = resume or back
        try:
            self._prepare(start, load, mine)
        except ParleyError as error:
            if back or isinstance(error, StoreLost):
                raise  # the others go on without this one
            first = start.fail(error)
            start.part()
            raise first from None
        self.records: list[Record] = []

    def _prepare(self, start: Peers, load: Load, mine: Sequence[int] | None) -> None:
        """Loads this worker's data and checks that they fit those of the others."""
        experiment = self.experiment
        if self.out:
            RunFolder(self.out).check(experiment, self.resume)
        self.worker_of = handshake.seats(start, experiment.agents, mine)
        hosted = [agent for agent, worker in enumerate(self.worker_of) if worker == self.rank]
        self.problem: Problem = load(experiment, hosted)
        self.task: Task = task_of(experiment, self.problem)
        start.patience = max(LOADING, start.patience)
        handshake.agree(start, hosted, handshake.claims(experiment, self.problem, self.task))
        sizes = start.share("sizes", [len(samples) for samples in self.problem.samples])
        held = holdings(self.problem, hosted, experiment.agents, start)
        self.agents = describe(self.problem, held)
        tests = start.share("tests", len(self.problem.test))
        self.test_samples = tests[0] if self.problem.test_is_shared else sum(tests)
        self.tested_on = self.test_samples
        everyone = [size for of_worker in sizes for size in of_worker]
        self.steps_per_epoch = data.steps_per_epoch(everyone, experiment.batch)
        self.position = self._saved(hosted) if self.resume else Position()

    def work(self) -> Outcome | None:
        """Generation after generation, until one of them has come to the end."""
        left = False
        while True:
            roster = self.council.convene(left)
            try:
                with self._connected(roster) as peers:
                    outcome = self._train(roster, peers)
                    with suppress(StoreLost):
                        self.council.ask(lambda: self.store.set("done", "1"))
                    return outcome
            except (WorkerLost, Knock):
                left = True

    @contextmanager
    def _connected(self, roster: Roster) -> Iterator[Peers]:
        """A group of the workers of one generation."""
        here, world = roster.workers.index(self.rank), len(roster.workers)
        store = PrefixStore(f"generation/{roster.generation}", self.store)
        peers = Peers(PrefixStore("said", store), here, world, self.patience, root=self.store)
        try:
            try:
                self.council.ask(
                    lambda: dist.init_process_group(
                        "gloo", store=store, rank=here, world_size=world, timeout=self.patience
                    ),
                    times=3,
                )
            except StoreLost as error:
                # Somebody left before all were connected; or the store itself has gone, which
                # convening again will tell.
                raise WorkerLost(str(error)) from None
            yield peers
        except (WorkerLost, Knock, StoreLost):
            peers.raise_told()
            raise
        except ParleyError as error:
            first = peers.fail(error)
            _destroy()
            peers.part()
            raise (error if str(first) == str(error) else first) from None
        except Exception as error:
            peers.fail(ParleyError(f"worker {self.rank}: {error!r}"))
            _destroy()
            peers.part()
            raise
        finally:
            _destroy()

    def _train(self, roster: Roster, peers: Peers) -> Outcome | None:
        """One generation: from where its workers are to the end, or until somebody is lost."""
        full, workers = self.problem.topology, roster.workers
        present = [a for a in range(full.agents) if self.worker_of[a] in workers]
        graph, bridges = without(full, present)
        self.experiment.algorithm.check(graph)
        seats = tuple(workers.index(self.worker_of[a]) for a in present)
        numbers = tuple(present) if len(present) < full.agents else ()
        transport = Processes(Placement(graph, seats, peers.rank, numbers))
        problem = replace(self.problem, topology=graph)
        run = Run(
            self.experiment, problem, transport, self.task, self.steps_per_epoch, self.test_samples
        )
        journal = Journal(self.out, peers)
        first = roster.generation == 0
        journal.open(enclosed(self.experiment, full), self.resume or not first, first)
        self._take_up(run, journal)
        self._tell(roster, run, journal, bridges)
        journal.describe(self.agents)
        try:
            each = partial(self._each, roster, run, peers)
            return follow(run, journal, each, self.agents)
        finally:
            self._keep(run, journal)

    def _each(self, roster: Roster, run: Run, peers: Peers, event: Event) -> None:
        """After every event: a sign of life, and after an epoch the door is opened."""
        if peers.rank == 0:
            self.watch(event)
            self.council.beat()
        if isinstance(event, EpochDone) and event.epoch < self.experiment.epochs:
            knocks = peers.rank == 0 and self.council.waiting(roster.generation)
            if float(run.transport.sum(torch.tensor(float(knocks)))):
                raise Knock

    def _take_up(self, run: Run, journal: Journal) -> None:
        """All go on from where the foremost are, each with its own models.

        Who has none, or none since the last epoch that was written down, takes a neighbour's.
        """
        peers, mine = journal.peers, self.position
        said = peers.share("position", [mine.epoch, mine.step])
        epoch = max(0, *(e for e, _ in said))
        start = epoch * self.steps_per_epoch
        step = max(start, *(s for _, s in said))
        behind = [index for index, (_, s) in enumerate(said) if s < start or s < 0]
        fresh = len(behind) == len(said)
        if not fresh:
            x_AD = mine.x_AD if peers.rank not in behind else run.state.x_AD
            assert x_AD is not None
            x_AD = self._lent(run, x_AD.to(run.state.x_AD), behind)
            about = {"epoch": epoch, "step": step, "seconds": mine.seconds}
            run.restore(run.state, {**about, "samples": mine.samples}, mine.sent)
            run.hood.apart = True
            run.state = run.algorithm.init(x_AD, run.hood)
            run.losses = list(mine.losses) if peers.rank not in behind else []
        self._share_records(journal, [e for e, _ in said], epoch)
        self._keep(run, journal)

    def _lent(self, run: Run, x_AD: Tensor, behind: Sequence[int]) -> Tensor:
        """The models, with those of agents whose workers are behind replaced by a neighbour's."""
        placement = run.transport.placement
        x_AD = x_AD.clone()
        needy = [a for a, worker in enumerate(placement.worker_of) if worker in behind]
        for agent in needy:
            near = [j for j in placement.topology.neighbours(agent) if j not in needy]
            others = [j for j in range(placement.topology.agents) if j not in needy]
            lender = (near or others)[0]
            x_D = run.transport.broadcast(x_AD[placement.row.get(lender, 0)], lender)
            if agent in placement.row:
                x_AD[placement.row[agent]] = x_D
        return x_AD

    def _share_records(self, journal: Journal, epochs: Sequence[int], epoch: int) -> None:
        """Everyone has the records of the foremost, and no newer checkpoint."""
        peers, folder = journal.peers, journal.folder
        foremost = epochs.index(max(epochs))
        known = self.records or (folder.records() if folder else [])
        known = [record for record in known if record["epoch"] <= epoch]
        shared = peers.share("records", known if peers.rank == foremost else [])
        journal.records, journal.epoch = shared[foremost], epoch
        if folder:
            checkpoint.drop_after(folder.path, epoch)
            if journal.keeper:
                folder.rewind(journal.records, epoch)
        peers.share("rewound", True)

    def _keep(self, run: Run, journal: Journal) -> None:
        """What this worker takes along if the generation ends now."""
        about = run.about()
        self.position = Position(
            journal.epoch,
            run.step,
            run.state.x_AD,
            about["seconds"],
            about["samples"],
            {kind: value.clone() for kind, value in run.transport.sent.items()},
            list(run.losses),
        )
        self.records = [r for r in journal.records if r["epoch"] <= self.position.epoch]

    def _saved(self, hosted: Sequence[int]) -> Position:
        """How far this worker's own checkpoints are."""
        found = checkpoint.models(self.out, hosted) if self.out else None
        if found is None:
            return Position()
        epoch, x_AD = found.about["epoch"], found.state
        step, about = epoch * self.steps_per_epoch, found.about
        return Position(epoch, step, x_AD, about["seconds"], about["samples"], found.sent)

    def _tell(self, roster: Roster, run: Run, journal: Journal, bridges: Sequence[Edge]) -> None:
        """Notes who takes part, in the run's folder and on the screen."""
        before = self.council.roster(roster.generation - 1) if roster.generation else ()
        gone = [w for w in before if w not in roster.workers]
        back = [w for w in roster.workers if w not in before] if before else []
        journal.note(
            {
                "generation": roster.generation,
                "epoch": run.epoch,
                "step": run.step,
                "workers": list(roster.workers),
                "gone": gone,
                "back": back,
                "bridges": [list(bridge) for bridge in bridges],
            }
        )
        for word, workers in (("has gone; the others go on without", gone), ("is back with", back)):
            for worker in workers:
                agents = [a for a, w in enumerate(self.worker_of) if w == worker]
                say(f"worker {worker} {word} {listed(agents)} (step {run.step})")
        if run.test.count != self.tested_on:
            rest = (
                "; the others have gone with their hosts" if run.test_samples_absent else " again"
            )
            say(f"tested on {run.test.count} of {self.test_samples} test samples{rest}")
            self.tested_on = run.test.count
        if bridges:
            pairs = ", ".join(f"{i} - {j}" for i, j in bridges)
            say(f"the graph fell apart and was bridged: {pairs}")


def say(words: str) -> None:
    """Tells the user of this host."""
    if speaks():
        print(f"note: {words}", file=sys.stderr, flush=True)


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    # A group's name is the count of those made before it, which must be the same in every process;
    # ending a group sets it back, but one that was never complete cannot be ended.
    dist.distributed_c10d._world.group_count = 0


def without(topology: Topology, present: Sequence[int]) -> tuple[Topology, list[Edge]]:
    """The graph of those who are present, weighted anew, and the links that hold it together.

    >>> graph, bridges = without(topologies.ring(6), [0, 1, 3, 4])
    >>> bridges, graph.agents, graph.scheme
    ([(0, 3)], 4, 'metropolis')
    """
    if len(present) == topology.agents:
        return topology, []
    number = {agent: row for row, agent in enumerate(present)}
    graph = nx.DiGraph(topology.graph.subgraph(present))
    parts = sorted(min(part) for part in nx.strongly_connected_components(graph))
    bridges = list(itertools.pairwise(parts))
    for i, j in bridges:
        graph.add_edges_from([(i, j), (j, i)])
    graph = nx.relabel_nodes(graph, number)
    both_ways = all(graph.has_edge(i, j) for j, i in graph.edges)
    weights = "metropolis" if both_ways else "sinkhorn"
    name = f"{topology.name} without {topology.agents - len(present)}"
    return topologies.from_graph(graph, weights=weights, name=name), bridges
