"""Charts and pictures of graphs, with the classes that each agent holds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parley.charts.chart import Chart, Edge, Network, short_number
from parley.charts.draw import sheet
from parley.charts.network import key_width
from parley.charts.picture import save
from parley.charts.shapes import Sheet, shortened
from parley.graphs import Topology
from parley.results.holdings import checked_counts, names_of
from parley.results.layout import Positions, layout, nearest

PANELS = 12
"""The most rounds of a sequence to draw."""


def graph_chart(
    topology: Topology,
    title: str,
    held: npt.NDArray[np.integer] | npt.NDArray[np.floating] | None = None,
    classes: Sequence[str] = (),
    positions: Positions | None = None,
) -> Chart:
    """The graph; with what each agent holds, [N, classes], as rings of these classes."""
    positions = layout(topology) if positions is None else positions
    pairs = {tuple(sorted(edge)) for edge in topology.edges}
    near = f"{2 * len(pairs) / topology.agents:.3g} neighbours on average"
    words = f"Graph: {title}; {len(pairs)} edges, {near}."
    places = [(short_number(x), short_number(y)) for x, y in positions.tolist()]
    edges = edges_of(topology, positions)
    if held is None:
        return Chart(title, [Network(places, edges)], about=words)
    texts = [_holding(counts, classes) for counts in held]
    shown = Network(places, edges, held.tolist(), list(classes), texts)
    return Chart(title, [shown], about=f"{words} {_holdings_in_words(held)}")


def edges_of(topology: Topology, positions: Positions) -> list[Edge]:
    """Arrows if the graph is directed, otherwise one line per pair with the mean weight."""
    weights = dict(zip(topology.edges, topology.edge_weights.tolist(), strict=True))
    if topology.directed:
        return [Edge(j, i, short_number(w), True, (i, j) in weights)
                for (j, i), w in weights.items()]  # fmt: skip
    torus = topology.name.partition(":")[0] == "torus"
    return [
        Edge(j, i, short_number((weight + weights[i, j]) / 2),
             around=torus and bool(np.abs(positions[i] - positions[j]).max() > 1))
        for (j, i), weight in weights.items() if j < i
    ]  # fmt: skip


def _holding(counts: npt.NDArray[np.number], classes: Sequence[str]) -> str:
    most = np.argsort(-counts, kind="stable")[:8]
    lines = [f"{classes[c]}: {int(counts[c])}" for c in most if counts[c]]
    more = int((counts > 0).sum()) - len(lines)
    return "\n".join([f"{int(counts.sum())} samples", *lines, *[f"and {more} more"] * (more > 0)])


def _holdings_in_words(held: npt.NDArray[np.number]) -> str:
    kinds = (held > 0).sum(1)
    low, high = int(kinds.min()), int(kinds.max())
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"Each agent holds {number} of {held.shape[1]} classes."


def topology_picture(
    topology: Topology,
    path: str | Path,
    holdings: npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
) -> Path:
    """Draw the graph: edges as wide as their weights, arrows where they are one-way.

    With `holdings` [N, classes], how many examples of each class each agent holds, every agent
    is a ring of its classes. A sequence is drawn round by round, side by side.
    """
    counts = None if holdings is None else checked_counts(holdings, topology.agents)
    if topology.phases and counts is None:
        return save(_rounds(topology), path)
    names = [] if counts is None else names_of(class_names, counts.shape[1])
    positions = layout(topology)
    apart = nearest(positions)
    extent = positions.max(axis=0) - positions.min(axis=0) + 0.8 * apart
    # The page grows, up to a limit, until an agent's number is legible in its circle; circles
    # stay small even if there is room for larger ones.
    scale = float(np.clip(65 / apart, 430 / extent.max(), 1150 / extent.max()))
    width, height = (max(float(side), 300.0) for side in extent * min(scale, 100 / apart))
    width += key_width(names) if names else 0
    n = topology.agents
    heading = f"{shortened(topology.name, 40)}, {n} agent{'s' * (n > 1)}"
    about = f"spectral gap {topology.spectral_gap:.3g}"
    chart = graph_chart(topology, "", counts, names, positions)
    return save(sheet([[chart]], (width + 24, height + 24), heading, about), path)


def _rounds(topology: Topology) -> Sheet:
    """A small graph for each round, with agents in the same places."""
    positions = layout(topology)
    shown = topology.phases[:PANELS]
    charts = [
        graph_chart(phase, f"round {number}", positions=positions)
        for number, phase in enumerate(shown)
    ]
    columns = min(len(shown), 4)
    exact, more = topology.exact_after, topology.period - len(shown)
    gap = f"spectral gap of a period {topology.spectral_gap:.3g}"
    about = f"exact mean after {exact} rounds" if exact else gap
    about += f"; {more} more rounds not drawn" * (more > 0)
    name = shortened(topology.name, 40)
    heading = f"{name}, {topology.agents} agents, period {topology.period}"
    rows = [charts[k : k + columns] for k in range(0, len(charts), columns)]
    return sheet(rows, (240, 260), heading, about, small=True)
