"""Drawings of graphs: edges as wide as their weights, agents as rings of their classes.

A page gets the same nodes and edges as a description (``web/src/charts.js``).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Patch, Wedge

from parley.graphs import Topology
from parley.results.holdings import Counts, checked_counts, names_of
from parley.results.layout import Positions, layout, nearest
from parley.results.style import EDGE, INK, NODE, checked_path, colours, every, save, short

# With more classes than this, a colour scale replaces a list that would be longer than the plot.
LEGEND_CLASSES = 20
# In circles smaller than this, in points, a number is illegible.
LEGIBLE = 1.5
# The most rounds of a sequence to draw.
PANELS = 12


class Edge(NamedTuple):
    """A line between two agents, or an arrow from one to the other."""

    start: int
    end: int
    weight: float
    one_way: bool = False
    paired: bool = False
    """Whether there is also an arrow in the other direction."""
    around: bool = False
    """Whether it wraps around the border of a torus."""


def edges_of(topology: Topology, positions: Positions) -> list[Edge]:
    """Arrows if the graph is directed, otherwise one line per pair with the mean weight."""
    weights = dict(zip(topology.edges, topology.edge_weights.tolist(), strict=True))
    if topology.directed:
        return [Edge(j, i, w, True, (i, j) in weights) for (j, i), w in weights.items()]
    torus = _is_torus(topology)
    return [
        Edge(j, i, (weight + weights[i, j]) / 2,
             around=torus and bool(np.abs(positions[i] - positions[j]).max() > 1))
        for (j, i), weight in weights.items() if j < i
    ]  # fmt: skip


def draw_graph(
    axes: Axes,
    positions: Positions,
    edges: Sequence[Edge],
    radius: float,
    points: float,
    counts: Counts | None = None,
) -> None:
    """Draws agents as circles, or as rings of the classes in `counts`, and the edges behind them.

    `points` is the length of 1 on paper.
    """
    axes.set_axis_off()
    _draw_edges(axes, positions, edges, radius, points)
    shades = [] if counts is None else colours(counts.shape[1])
    font = min(11.0, points * radius * (0.9 if counts is None else 0.7))
    for agent, (x, y) in enumerate(positions):
        if counts is None:
            axes.add_patch(Circle((x, y), radius, facecolor=NODE, edgecolor=INK, lw=0.8, zorder=3))
        else:
            _draw_ring(axes, (x, y), radius, counts[agent], shades)
        if font >= LEGIBLE:
            axes.text(
                x, y, str(agent), ha="center", va="center_baseline", fontsize=font, color=INK,
                zorder=6,
            )  # fmt: skip


def _draw_edges(
    axes: Axes, positions: Positions, edges: Sequence[Edge], radius: float, points: float
) -> None:
    top = max((abs(edge.weight) for edge in edges), default=1.0) or 1.0
    # At full width, many edges would merge into a blob.
    messages = sum(1 if edge.one_way else 2 for edge in edges)
    widest = 3.2 * min(1.0, max(0.15, 6 * len(positions) / max(messages, 1)))
    lines, widths = [], []
    for edge in edges:
        width = widest * max(0.15, abs(edge.weight) / top)
        start, end = positions[edge.start], positions[edge.end]
        if edge.one_way:
            bend = 0.14 if edge.paired else 0.0
            arrow = FancyArrowPatch(
                tuple(start), tuple(end), arrowstyle="-|>", mutation_scale=9 + 1.5 * width,
                connectionstyle=f"arc3,rad={bend}", shrinkA=radius * points,
                shrinkB=radius * points, lw=width, color=EDGE, zorder=2,
            )  # fmt: skip
            axes.add_patch(arrow)
            continue
        ends = [(start, end)]
        if edge.around:
            # A stub at each end, since a full line would hide the agents in between.
            step = 0.62 * (end - start) / np.abs(end - start).max()
            ends = [(start, start - step), (end, end + step)]
        lines += ends
        widths += [width] * len(ends)
    axes.add_collection(
        LineCollection(lines, linewidths=widths, colors=EDGE, zorder=1), autolim=False
    )


def _draw_ring(
    axes: Axes, centre: tuple[float, float], radius: float, counts: Counts, shades: list[str]
) -> None:
    """The classes that an agent holds, clockwise from the top, with room for its number."""
    axes.add_patch(Circle(centre, radius, facecolor="white", edgecolor=INK, lw=0.6, zorder=3))
    shares = counts / max(counts.sum(), 1)
    ends = 90 - 360 * np.cumsum(shares)
    for share, end, shade in zip(shares, ends, shades, strict=True):
        if share > 0:
            wedge = Wedge(centre, radius, end, end + 360 * share, facecolor=shade, lw=0, zorder=4)
            axes.add_patch(wedge)
    axes.add_patch(Circle(centre, 0.55 * radius, facecolor="white", lw=0, zorder=5))


def topology_picture(
    topology: Topology,
    path: str | Path,
    holdings: npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
) -> Path:
    """Draw the graph: edges as wide as their weights, arrows where they are one-way.

    With `holdings` [N, classes], how many examples of each class each agent holds, every agent
    is a small pie of its classes. A sequence is drawn round by round, side by side.
    """
    out = checked_path(path)
    n = topology.agents
    counts = None if holdings is None else checked_counts(holdings, n)
    if topology.phases and counts is None:
        return save(_rounds_figure(topology), out)
    positions = layout(topology)
    low, high = positions.min(axis=0), positions.max(axis=0)
    room = 0.34 * nearest(positions)
    margin = (1.9 if _is_torus(topology) else 1.35) * room
    extent = high - low + 2 * margin  # [2]
    # All lengths below are in inches: the page grows, up to a limit, until an agent's number is
    # legible in its circle; circles stay small even if there is room for larger ones.
    scale = float(np.clip(0.22 / room, 4.5 / extent.max(), 12.0 / extent.max()))
    scale = min(scale, 1.1 / nearest(positions))
    radius = min(room, (0.24 if counts is None else 0.34) / scale)
    panel = extent * scale
    classes = 0 if counts is None else counts.shape[1]
    width = max(float(panel[0]), 4.4)
    height = max(float(panel[1]), 0.19 * classes + 0.4 if classes <= LEGEND_CLASSES else 2.5)
    size = (width + (1.7 if classes else 0.0), height + 0.8)
    figure = Figure(figsize=size)
    axes = figure.add_axes(
        (
            (width - panel[0]) / 2 / size[0],
            (0.1 + (height - panel[1]) / 2) / size[1],
            panel[0] / size[0],
            panel[1] / size[1],
        )
    )
    axes.set_xlim(low[0] - margin, high[0] + margin)
    axes.set_ylim(low[1] - margin, high[1] + margin)
    edges = edges_of(topology, positions)
    draw_graph(axes, positions, edges, radius, 72 * scale, counts)
    if counts is not None:
        _key(figure, names_of(class_names, classes), (width + 0.15) / size[0], size)
    figure.text(
        width / 2 / size[0],
        1 - 0.12 / size[1],
        f"{short(topology.name, 40)}, {n} agent{'s' * (n > 1)}\n"
        f"spectral gap {topology.spectral_gap:.3g}",
        ha="center", va="top", fontsize=11, parse_math=False,
    )  # fmt: skip
    return save(figure, out)


def _rounds_figure(topology: Topology) -> Figure:
    """A small graph for each round, with agents in the same places."""
    positions = layout(topology)
    shown = topology.phases[:PANELS]
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    side = 2.5
    figure = Figure(figsize=(columns * side, rows * (side + 0.25) + 0.75))
    low, high = positions.min(axis=0), positions.max(axis=0)
    room = 0.34 * nearest(positions)
    extent = float((high - low).max()) + 2.8 * room
    centre, scale = (low + high) / 2, 0.9 * side / extent
    radius = min(room, 0.16 / scale)
    width, height = figure.get_size_inches()
    for number, phase in enumerate(shown):
        row, column = divmod(number, columns)
        top = height - 0.75 - row * (side + 0.25)
        axes = figure.add_axes(
            ((column + 0.05) * side / width, (top - side) / height, 0.9 * side / width,
             0.9 * side / height)
        )  # fmt: skip
        axes.set_xlim(centre[0] - extent / 2, centre[0] + extent / 2)
        axes.set_ylim(centre[1] - extent / 2, centre[1] + extent / 2)
        draw_graph(axes, positions, edges_of(phase, positions), radius, 72 * scale)
        axes.set_title(f"round {number}", fontsize=9)
    exact, more = topology.exact_after, topology.period - len(shown)
    what = (
        f"exact mean after {exact} rounds"
        if exact
        else f"spectral gap of a period {topology.spectral_gap:.3g}"
    )
    figure.text(
        0.5,
        1 - 0.12 / height,
        f"{short(topology.name, 40)}, {topology.agents} agents, period {topology.period}\n{what}"
        + f"; {more} more rounds not drawn" * (more > 0),
        ha="center", va="top", fontsize=11, parse_math=False,
    )  # fmt: skip
    return figure


def _is_torus(topology: Topology) -> bool:
    return topology.name.partition(":")[0] == "torus"


def _key(figure: Figure, names: list[str], left: float, size: tuple[float, float]) -> None:
    """What the colours mean: a list, or a scale if there are too many classes to list."""
    shades = colours(len(names))
    if len(names) <= LEGEND_CLASSES:
        handles = [Patch(color=shade) for shade in shades]
        legend = figure.legend(
            handles, [short(name) for name in names], loc="center left", title="class",
            bbox_to_anchor=(left, 0.5), frameon=False, fontsize=8, title_fontsize=9,
            labelspacing=0.35, handlelength=1.0,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
        return
    bounds = BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names))
    axes = figure.add_axes((left + 0.1 / size[0], 0.15, 0.16 / size[0], 0.7))
    scale = ScalarMappable(norm=bounds, cmap=ListedColormap(shades))
    bar = figure.colorbar(scale, cax=axes, ticks=every(len(names), 10))
    bar.ax.set_title("class", fontsize=9)
    bar.ax.tick_params(labelsize=8, length=0)
    bar.outline.set_visible(False)
    bar.ax.invert_yaxis()


def describe_graph(
    topology: Topology,
    partition: str = "",
    held: npt.NDArray[np.int64] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """The graph as a description for a page."""
    positions = layout(topology)
    nodes = []
    for agent, (x, y) in enumerate(positions.tolist()):
        node: dict[str, Any] = {"name": f"agent {agent}", "label": agent, "x": x, "y": y}
        nodes.append(node if held is None else node | _holding(held[agent], classes))
    edges = []
    for edge in edges_of(topology, positions):
        weight = float(f"{edge.weight:.6g}")
        made = {"from": edge.start, "to": edge.end, "weight": weight, "oneWay": edge.one_way}
        edges.append(made | ({"around": True} if edge.around else {}))
    n = topology.agents
    title = f"{topology.name}, {n} agent{'s' * (n > 1)}" + (f", {partition}" if partition else "")
    pairs = {tuple(sorted(edge)) for edge in topology.edges}
    words = f"Graph: {title}; {len(pairs)} edges, {2 * len(pairs) / n:.3g} neighbours on average."
    described = {"kind": "graph", "title": title, "nodes": nodes, "edges": edges, "about": words}
    if held is not None:
        described |= {"classes": list(classes), "about": f"{words} {_holdings_in_words(held)}"}
    return described


def _holding(counts: npt.NDArray[np.int64], classes: Sequence[str]) -> dict[str, Any]:
    most = np.argsort(-counts, kind="stable")[:8]
    lines = [f"{classes[c]}: {int(counts[c])}" for c in most if counts[c]]
    more = int((counts > 0).sum()) - len(lines)
    lines = [f"{int(counts.sum())} samples", *lines, *([f"and {more} more"] if more else [])]
    shares = [{"index": int(c), "value": int(counts[c])} for c in np.flatnonzero(counts)]
    return {"shares": shares, "text": "\n".join(lines)}


def _holdings_in_words(held: npt.NDArray[np.int64]) -> str:
    kinds = (held > 0).sum(1)
    low, high = int(kinds.min()), int(kinds.max())
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"Each agent holds {number} of {held.shape[1]} classes."


def draw_described(axes: Axes, chart: dict[str, Any], inches: float = 4.0) -> None:
    """Draws the output of `describe_graph` on axes about `inches` wide and high."""
    positions = np.array([[node["x"], node["y"]] for node in chart["nodes"]])
    span = float(np.ptp(positions, axis=0).max()) if len(positions) > 1 else 1.0
    radius = min(0.31 * nearest(positions), 0.09 * max(span, 1.0))
    ends = {(edge["from"], edge["to"]) for edge in chart["edges"]}
    edges = [
        Edge(e["from"], e["to"], e["weight"], e["oneWay"],
             e["oneWay"] and (e["to"], e["from"]) in ends, e.get("around", False))
        for e in chart["edges"]
    ]  # fmt: skip
    classes, counts = chart.get("classes", []), None
    if classes:
        counts = np.zeros((len(positions), len(classes)))
        for agent, node in enumerate(chart["nodes"]):
            for share in node["shares"]:
                counts[agent, share["index"]] = share["value"]
    margin = (1.9 if any(edge.around for edge in edges) else 1.4) * radius
    draw_graph(axes, positions, edges, radius, 72 * inches / (span + 2 * margin), counts)
    axes.set_aspect("equal")
    low, high = positions.min(axis=0) - margin, positions.max(axis=0) + margin
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    if 0 < len(classes) <= LEGEND_CLASSES:
        axes.legend(
            [Patch(color=shade) for shade in colours(len(classes))], list(map(short, classes)),
            loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, title="class",
            handlelength=1.0, labelspacing=0.35,
        )  # fmt: skip
