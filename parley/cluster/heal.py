"""Continuing without workers that were lost, and readmitting them when they return.

Axes: A agents hosted here, D flat parameters.

A run is a sequence of *generations*: groups of workers that train together. A generation ends when
one of its workers dies or is silent for longer than the patience or, after an epoch, when a worker
asks to rejoin. Then the workers that are left agree on the next one, and continue here.

Survivors keep their models as they were after their last complete step. All other state of an
algorithm (momentum, errors, trackers) starts afresh, since it belongs to a graph that no longer
exists.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import networkx as nx
import torch
from torch import Tensor

from parley import graphs as topologies
from parley.fabric.board import Board
from parley.graphs import Edge, Topology
from parley.store import checkpoint
from parley.store.journal import Journal, Written
from parley.training.metrics import Losses
from parley.training.record import Record
from parley.training.trainer import Trainer
from parley.wire.transport import Kind


@dataclass
class Position:
    """How far a worker has got, and its models."""

    epoch: int = -1
    """Epochs whose records and checkpoints are written; -1: it has no models."""
    step: int = -1
    x_AD: Tensor | None = None
    b_AS: Tensor | None = None
    """Their running statistics, if they have some."""
    seconds: float = 0.0
    samples: float = 0.0
    sent: dict[Kind, Tensor] = field(default_factory=dict)
    losses: list[Losses] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    """The records of the epochs that are written."""

    @classmethod
    def saved(cls, out: Path | None, hosted: Sequence[int], end_of: Callable[[int], int]) -> Self:
        """The position of the newest checkpoint of a worker with these agents; `end_of` gives the
        last step of an epoch."""
        found = checkpoint.models(out, hosted) if out else None
        if found is None:
            return cls()
        epoch, about = found.about["epoch"], found.about
        step = end_of(epoch)
        how = (about["seconds"], about["samples"], found.sent)
        return cls(epoch, step, found.state, found.b_AS, *how)


class Recovery:
    """Continuing in a new generation from where its workers are."""

    def __init__(self, run: Trainer, journal: Journal, board: Board, before: Position) -> None:
        self.run = run
        self.journal = journal
        self.board = board
        self.before = before

    def take_up(self) -> None:
        """All workers continue from the position furthest ahead, each with its own models.

        One that has none, or none as recent as the last epoch on disk, takes a neighbour's.
        """
        run, board, mine = self.run, self.board, self.before
        said = board.share("position", [mine.epoch, mine.step], tuple[int, int])
        epoch = max(0, *(e for e, _ in said))
        start = run.pace.end_of(epoch)
        step = max(start, *(s for _, s in said))
        behind = [index for index, (_, s) in enumerate(said) if s < start or s < 0]
        fresh = len(behind) == len(said)
        if not fresh:
            x_AD = mine.x_AD if board.rank not in behind else run.state.x_AD
            assert x_AD is not None
            b_AS = run.b_AS if mine.b_AS is None or board.rank in behind else mine.b_AS
            models_AE = torch.cat([x_AD.to(run.state.x_AD), b_AS.to(run.b_AS)], 1)
            x_AD, b_AS = self._lent(models_AE, behind).split([run.task.size, b_AS.shape[1]], 1)
            x_AD = x_AD.contiguous()
            about = {"epoch": epoch, "step": step, "seconds": mine.seconds}
            run.restore(run.state, {**about, "samples": mine.samples}, mine.sent, b_AS.contiguous())
            run.rebuild(x_AD, mine.losses if board.rank not in behind else ())
        self._share_records([e for e, _ in said], epoch)

    def _lent(self, x_AD: Tensor, behind: Sequence[int]) -> Tensor:
        """The models, with a neighbour's for each agent whose worker is behind."""
        run, placement = self.run, self.run.transport.placement
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

    def _share_records(self, epochs: Sequence[int], epoch: int) -> None:
        """Gives every worker the records of the one furthest ahead; removes newer checkpoints."""
        journal, board = self.journal, self.board
        folder = journal.folder
        foremost = epochs.index(max(epochs))
        known = self.before.records or (folder.records() if folder else [])
        known = [record for record in known if record["epoch"] <= epoch]
        shared = board.share("records", known if board.rank == foremost else [], list[Written])
        journal.continue_after(shared[foremost], epoch)
        self.run.continue_after(journal.records)
        if folder:
            journal.go_on()
            checkpoint.drop_after(folder.path, epoch)
            if journal.keeper:
                folder.rewind(journal.records, epoch)
        board.share("rewound", True, bool)

    def position(self) -> Position:
        """What this worker continues with if the generation ends now."""
        run, journal, about = self.run, self.journal, self.run.about()
        return Position(
            journal.epoch,
            run.step,
            run.state.x_AD,
            run.b_AS,
            about["seconds"],
            about["samples"],
            {kind: value.clone() for kind, value in run.transport.sent.items()},
            list(run.losses),
            [record for record in journal.records if record["epoch"] <= journal.epoch],
        )


def without(topology: Topology, present: Sequence[int]) -> tuple[Topology, list[Edge]]:
    """The graph of the agents present, with new weights, and the edges added to connect it.

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
