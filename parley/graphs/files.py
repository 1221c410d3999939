"""Reading graphs and schedules from files, and writing them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain as joined
from pathlib import Path

import numpy as np

from parley.errors import BadValue
from parley.files import Unreadable, read_text
from parley.graphs import sequences
from parley.graphs.changing import of_phases
from parley.graphs.checks import check_agents, check_edges
from parley.graphs.families import from_edges
from parley.graphs.matrices import Edge, row_of_each
from parley.graphs.topology import Topology
from parley.graphs.weights import SCHEMES, Weights


def from_file(path: str | Path, *, weights: Weights = "auto") -> Topology:
    """A graph from a text file with one edge per line.

    0 1         agents 0 and 1 send to each other
    2 -> 0      agent 2 sends to agent 0
    2 -> 0 0.3  and agent 0 gives it weight 0.3 (give every line a weight, or none)
    0 0 0.4     agent 0 keeps 0.4 of its own value; without this line, 1 minus the others
    # a comment
    """
    name = f"file:{path}"
    rounds = sequences.sections(_read_lines(name, path))
    if len(rounds) > 1:
        because = f"it has {len(rounds)} rounds"
        raise BadValue("topology", name, f"a file of one graph, or schedule:{path}", because)
    given = _read_edges(name, joined.from_iterable(rounds))
    return from_edges(name, _checked_numbers(name, given), given, weights)


def to_text(topology: Topology) -> tuple[str, str, str]:
    """A graph as text: "file" or "schedule", the weights to read it with, and its lines.

    Weights that come from a scheme are left to that scheme; others are written on the lines in
    full precision.

    >>> from parley.graphs import chain, ring
    >>> print(*to_text(chain(3)))
    file metropolis # 3 agents
    0 1
    1 2
    <BLANKLINE>
    >>> print(to_text(ring(2, weights=[[0.7, 0.3], [0.5, 0.5]]))[2])
    # 2 agents; the weight an agent gives to its own value and to each neighbour's
    0 0 0.7
    1 -> 0 0.3
    0 -> 1 0.5
    1 1 0.5
    <BLANKLINE>
    """
    phases = topology.phases or (topology,)
    by_scheme = topology.scheme in SCHEMES
    title = f"# {topology.agents} agents"
    if not by_scheme:
        title += "; the weight an agent gives to its own value and to each neighbour's"
    lines = [title]
    for number, phase in enumerate(phases):
        lines += [f"round {number}"] if topology.phases else []
        lines += _scheme_lines(phase) if by_scheme else _weight_lines(phase)
    if by_scheme and topology.agents == 1:
        lines.append("0 0")
    kind = "schedule" if topology.phases else "file"
    return kind, topology.scheme if by_scheme else "auto", "\n".join(lines) + "\n"


def _scheme_lines(topology: Topology) -> list[str]:
    lines = []
    for j, i in topology.edges:
        if not topology.graph.has_edge(i, j):
            lines.append(f"{j} -> {i}")
        elif j < i:
            lines.append(f"{j} {i}")
    return lines


def _weight_lines(topology: Topology) -> list[str]:
    matrix = topology.mixing
    if not topology.edges and topology.part:
        return []  # a round in which nobody talks
    cells = zip(
        row_of_each(matrix).tolist(), matrix.indices.tolist(), matrix.data.tolist(), strict=True
    )
    return [f"{i} {i} {w!r}" if i == j else f"{j} -> {i} {w!r}" for i, j, w in cells]


def _read_lines(name: str, path: str | Path) -> list[str]:
    try:
        return read_text(Path(path)).splitlines()
    except Unreadable as error:
        raise BadValue("topology", name, "a readable text file of edges", str(error)) from None


def _read_edges(name: str, lines: Iterable[tuple[int, str]]) -> dict[Edge, float | None]:
    """Edges and their weights from numbered lines."""
    given: dict[Edge, float | None] = {}
    for number, text in lines:
        edge = re.fullmatch(r"([0-9]{1,9})(?:\s*(->)\s*|\s+)([0-9]{1,9})(?:\s+(\S+))?", text)
        try:
            if edge is None:
                raise ValueError("no edge")
            weight = None if edge[4] is None else float(edge[4])
            if weight is not None and not np.isfinite(weight):
                raise ValueError("no number")
        except ValueError:
            # The line is not quoted: the file may not be the one the user meant, and errors
            # are passed on to other hosts.
            valid = "lines like 0 1, 0 -> 1 or 0 1 0.25"
            raise BadValue("topology", name, valid, f"line {number} is not one of them") from None
        j, i = int(edge[1]), int(edge[3])
        for way in [(j, i)] if edge[2] else [(j, i), (i, j)]:
            if given.setdefault(way, weight) != weight:
                because = f"line {number} gives edge {way[0]} -> {way[1]} a second weight"
                raise BadValue("topology", name, "one weight per edge", because)
    weighted = [weight is not None for (j, i), weight in given.items() if i != j]
    if any(weighted) and not all(weighted):
        raise BadValue("topology", name, "a weight on every line or on none")
    return given


def _checked_numbers(name: str, edges: Iterable[Edge]) -> int:
    """The number of agents; refuses gaps in their numbers."""
    known = {agent for edge in edges for agent in edge}
    missing = set(range(len(known))) - known
    if missing or not known:
        because = f"no line mentions agent {min(missing)}" if known else "it has no edges"
        raise BadValue("topology", name, "lines that mention every agent, numbered from 0", because)
    check_agents(len(known))
    return len(known)


def schedule_from_file(path: str | Path, *, weights: Weights = "auto") -> Topology:
    """A sequence from a text file: edges as in `from_file`, with a ``round`` line before each."""
    name = f"schedule:{path}"
    rounds = [_read_edges(name, lines) for lines in sequences.sections(_read_lines(name, path))]
    agents = _checked_numbers(name, [edge for given in rounds for edge in given])
    check_edges(name, len(rounds) * agents)
    return of_phases(
        name, [from_edges(name, agents, given, weights, part=True) for given in rounds]
    )
