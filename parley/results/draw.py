"""Pictures of a topology, of who holds what, and of how training went.

The file's ending says which kind is written: png, svg or pdf.

Figures are made without pyplot, so drawing neither needs a display nor touches global state,
and the same input gives the same file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib as mpl
import networkx as nx
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Patch, Wedge
from scipy.spatial import KDTree

from parley.errors import BadValue
from parley.graphs import Topology, torus_shape

# The same colours as on the pages. For classes Paul Tol's "muted" scheme, distinct for readers with
# any common colour blindness; those of lines are tested to be.
THEME: dict[str, Any] = json.loads(
    resources.files("parley").joinpath("web", "palette.json").read_text(encoding="utf-8")
)["light"]
PALETTE, LINES = THEME["classes"], THEME["lines"]
DASHES = ("-", "--", ":", "-.")
INK, EDGE, NODE = THEME["ink"], THEME["edge"], THEME["node"]
BAR = LINES[0]
ENDINGS = ("png", "svg", "pdf")
# More classes than this are told apart by a colour scale; a list would be longer than the plot.
LEGEND_CLASSES = 20
# A number in a circle that is smaller than this, in points, is only a blot.
LEGIBLE = 1.5
# Rounds of a sequence that are drawn.
PANELS = 12
# More agents than this are drawn on a circle: springs between all pairs take too long.
SPRINGS = 400

Record = dict[str, Any]

Positions = npt.NDArray[np.float64]  # [N, 2]


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
    counts = None if holdings is None else _counts(holdings, n)
    if topology.phases and counts is None:
        return save(_rounds_figure(topology), out)
    positions = layout(topology)
    low, high = positions.min(axis=0), positions.max(axis=0)
    room = 0.34 * nearest(positions)
    margin = (1.9 if _is_torus(topology) else 1.35) * room
    extent = high - low + 2 * margin  # [2]
    # All lengths below are inches: a page that grows until an agent's number can be read in its
    # circle, though not for ever, and circles that stay small where there is room for more.
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
    axes.set_axis_off()

    points = 72 * scale
    _draw_edges(axes, topology, positions, radius, points)
    font = min(11.0, points * radius * (0.9 if counts is None else 0.7))
    for agent, (x, y) in enumerate(positions):
        if counts is None:
            axes.add_patch(Circle((x, y), radius, facecolor=NODE, edgecolor=INK, lw=0.8, zorder=3))
        else:
            draw_pie(axes, (x, y), radius, counts[agent], colours(classes))
        if font >= LEGIBLE:
            axes.text(
                x, y, str(agent), ha="center", va="center_baseline", fontsize=font, color=INK,
                zorder=6,
            )  # fmt: skip
    if counts is not None:
        _key(figure, _names(class_names, classes), (width + 0.15) / size[0], size)
    figure.text(
        width / 2 / size[0],
        1 - 0.12 / size[1],
        f"{short(topology.name, 40)}, {n} agent{'s' * (n > 1)}\n"
        f"spectral gap {topology.spectral_gap:.3g}",
        ha="center", va="top", fontsize=11, parse_math=False,
    )  # fmt: skip
    return save(figure, out)


def _rounds_figure(topology: Topology) -> Figure:
    """A small graph for each round, all agents in the same places."""
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
    font = min(9.0, 72 * scale * radius * 0.9)
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
        axes.set_axis_off()
        axes.set_title(f"round {number}", fontsize=9)
        _draw_edges(axes, phase, positions, radius, 72 * scale)
        for agent, (x, y) in enumerate(positions):
            axes.add_patch(Circle((x, y), radius, facecolor=NODE, edgecolor=INK, lw=0.6, zorder=3))
            if font >= LEGIBLE:
                axes.text(
                    x, y, str(agent), ha="center", va="center_baseline", fontsize=font, zorder=6
                )
    exact, more = topology.exact_after, topology.period - len(shown)
    what = (
        f"exact mean after {exact} rounds"
        if exact
        else f"gap of a period {topology.spectral_gap:.3g}"
    )
    figure.text(
        0.5,
        1 - 0.12 / height,
        f"{short(topology.name, 40)}, {topology.agents} agents, period {topology.period}\n{what}"
        + f"; {more} further rounds not drawn" * (more > 0),
        ha="center", va="top", fontsize=11, parse_math=False,
    )  # fmt: skip
    return figure


def partition_picture(
    holdings: npt.ArrayLike, path: str | Path, class_names: Sequence[str] | None = None
) -> Path:
    """Draw who holds what: a bubble per agent and class, its area the number of examples.

    Bars at the right show how many examples each agent holds in all.
    """
    out = checked_path(path)
    counts = _counts(holdings)
    n, classes = counts.shape
    names = _names(class_names, classes)
    # Inches. Cells shrink as they become many, until a page is full; then the page grows.
    across, down = (float(np.clip(11.0 / k, 0.11, 0.4)) for k in (classes, n))
    panel = np.array([classes * across, n * down])
    longest = min(max(map(len, names)), 24)
    upright = class_names is not None and longest * 0.085 > across * 0.9
    bottom = 0.55 + (0.07 * longest if upright else 0.0)
    left, gap, top = 0.75, 0.15, 0.5
    bars = max(1.3, 4.6 - left - gap - panel[0] - 0.35)
    size = (left + panel[0] + gap + bars + 0.35, bottom + panel[1] + top)
    figure = Figure(figsize=size)

    def axes_at(x: float, width: float) -> Axes:
        return figure.add_axes((x / size[0], bottom / size[1], width / size[0], panel[1] / size[1]))

    grid = axes_at(left, panel[0])
    grid.set_xlim(-0.5, classes - 0.5)
    grid.set_ylim(n - 0.5, -0.5)  # agent 0 on top, as in a table
    agent, label = np.nonzero(counts)
    held = counts[agent, label]
    largest = float(held.max(initial=1.0))
    diameter = 0.92 * min(across, down) * 72  # points
    area = np.maximum(diameter**2 * held / largest, 1.0)  # a single example can still be seen
    grid.scatter(label, agent, s=area, color=BAR, linewidths=0, zorder=3)
    grid.set_xlabel("class")
    grid.set_ylabel("agent")
    _ticks(grid, "x", names if class_names is not None else None, classes, across, upright)
    _ticks(grid, "y", None, n, down, False)

    totals = axes_at(left + panel[0] + gap, bars)
    totals.barh(range(n), counts.sum(axis=1), height=0.7, color=BAR, zorder=3)
    totals.set_ylim(n - 0.5, -0.5)
    totals.set_yticks([])
    totals.xaxis.set_major_locator(mpl.ticker.MaxNLocator(2))
    totals.set_xlabel("examples")
    for axes in (grid, totals):
        axes.tick_params(length=0, labelsize=8)
        axes.grid(color="#E6E9EC", lw=0.6, zorder=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    title = f"Who holds what: the largest bubble is {largest:g} examples"
    figure.text(0.5, 1 - 0.15 / size[1], title, ha="center", va="top", fontsize=10)
    return save(figure, out)


def curves_picture(runs: Mapping[str, Sequence[Sequence[Record]]], path: str | Path) -> Path:
    """Draw how methods went: accuracies and distance over epochs, and accuracy over bytes sent.

    `runs` has, for each method's name, the records of its runs (seeds): lines are means, bands
    reach one standard deviation to either side.
    """
    out = checked_path(path)
    figure = Figure(figsize=(11, 7.6), layout="constrained")
    panels = figure.subplots(2, 2)
    plots: list[tuple[str, str, Callable[[Record], float], Callable[[Record], float]]] = [
        ("Averaged model", "test accuracy, %", _epoch, _percent("accuracy_mean_model")),
        ("Agents' own models, mean", "test accuracy, %", _epoch, _percent("accuracy_own")),
        ("Distance between agents", "consensus distance", _epoch, _value("consensus_distance")),
        ("Accuracy for what is sent", "test accuracy of the averaged model, %", _sent,
         _percent("accuracy_mean_model")),
    ]  # fmt: skip
    for axes, (title, label, horizontal, vertical) in zip(panels.flat, plots, strict=True):
        for number, (name, seeds) in enumerate(runs.items()):
            shortest = min(len(records) for records in seeds)
            x = [horizontal(record) for record in seeds[0][:shortest]]
            y = np.array([[vertical(r) for r in records[:shortest]] for records in seeds])
            mean, spread = y.mean(0), y.std(0, ddof=min(1, len(y) - 1))
            style = line_style(number, number // 6)
            marker = "o" if shortest == 1 else ""  # one point makes no line
            axes.plot(x, mean, marker=marker, label=name, lw=1.8, **style)
            low, high = mean - spread, mean + spread
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_ylabel(label)
        axes.set_xlabel("epoch" if horizontal is _epoch else "MB sent by each agent")
        if horizontal is _epoch:
            axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
        axes.grid(color="#E3E7EB", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    # One agent is at no distance from itself and sends nothing: nothing to take the log of.
    if panels[1, 0].dataLim.y1 > 0:
        panels[1, 0].set_yscale("log", nonpositive="mask")
        plain_numbers(panels[1, 0].yaxis)
    if panels[1, 1].dataLim.x1 > 0:
        panels[1, 1].set_xscale("log")
        plain_numbers(panels[1, 1].xaxis)
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper center", ncols=min(len(names), 6), frameon=False
    )
    return save(figure, out)


def field_picture(
    partitions: Mapping[str, Mapping[str, Sequence[Sequence[Record]]]], path: str | Path
) -> Path:
    """Draw many methods on several partitions: accuracy over bytes sent, and over time.

    `partitions` has, for each, what `curves_picture` takes. A row of panels for each partition.
    """
    out = checked_path(path)
    names = list(dict.fromkeys(name for runs in partitions.values() for name in runs))
    figure = Figure(figsize=(12, 3.4 * len(partitions) + 0.32 * -(-len(names) // 6) + 0.4))
    figure.set_layout_engine("constrained")
    panels = figure.subplots(len(partitions), 2, squeeze=False, sharey="row")
    axis_of: tuple[tuple[str, Callable[[Record], float]], ...] = (
        ("MB sent by each agent", _sent),
        ("seconds of training, all agents", _value("seconds")),
    )
    for row, (partition, runs) in zip(panels, partitions.items(), strict=True):
        for axes, (label, horizontal) in zip(row, axis_of, strict=True):
            for name, seeds in runs.items():
                slot = names.index(name)
                shortest = min(len(records) for records in seeds)
                x = np.mean([[horizontal(r) for r in s[:shortest]] for s in seeds], axis=0)
                y = [[_percent("accuracy_mean_model")(r) for r in s[:shortest]] for s in seeds]
                marker = "osD^vP*X<>"[slot % 10]  # at the end, where most lines meet
                axes.plot(
                    x, np.mean(y, axis=0), **line_style(slot, slot // len(LINES)),
                    marker=marker, markevery=[-1], ms=6, lw=1.4, label=name,
                )  # fmt: skip
            axes.set_xscale("log")
            plain_numbers(axes.xaxis)
            axes.set_xlabel(label)
            axes.grid(color="#E3E7EB", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("test accuracy, averaged model, %")
        row[0].set_title(partition, fontsize=11, loc="left")
    lines = {line.get_label(): line for axes in panels.flat for line in axes.get_lines()}
    figure.legend(
        list(lines.values()), [str(name) for name in lines], loc="outside upper center",
        ncols=min(len(lines), 6), frameon=False, fontsize=9,
    )  # fmt: skip
    return save(figure, out)


def line_style(slot: int, dash: int) -> dict[str, Any]:
    """How the curve of a method is drawn: the first six differ by colour, further ones by dashes.

    >>> line_style(6, 1) == {"color": LINES[6], "ls": "--"}
    True
    """
    return {"color": LINES[slot % len(LINES)], "ls": DASHES[dash % len(DASHES)]}


def plain_numbers(axis: Axis) -> None:
    """0.5, 1, 2 on a logarithmic axis, not powers of ten."""
    axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(mpl.ticker.NullFormatter())


def _epoch(record: Record) -> float:
    return float(record["epoch"])


def _sent(record: Record) -> float:
    return float(record["bytes_models"] + record["bytes_cross_gradients"]) / 1e6


def _value(field: str) -> Callable[[Record], float]:
    return lambda record: float(record[field])


def _percent(field: str) -> Callable[[Record], float]:
    return lambda record: 100 * float(record[field])


def colours(classes: int) -> list[str]:
    """As many colours as classes: ten that all readers can tell apart, else a graded scale.

    >>> colours(2)
    ['#332288', '#88CCEE']
    >>> len(set(colours(100)))
    100
    """
    if classes <= len(PALETTE):
        return list(PALETTE[:classes])
    scale = mpl.colormaps["viridis"]
    return [mpl.colors.to_hex(scale(k / (classes - 1))) for k in range(classes)]


def layout(topology: Topology) -> Positions:
    """Where each agent is drawn, [N, 2]: the shape that its kind of graph is known by.

    >>> from parley.graphs import chain
    >>> layout(chain(3)).tolist()
    [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    """
    n = topology.agents
    match topology.name.partition(":")[0]:
        case "ring" | "directed-ring" | "circulant" | "exponential" | "full":
            return _circle(n)
        case "directed-exponential" | "one-peer-exponential" | "base" | "matchings":
            return _circle(n)
        case "tree":
            return _tree(n, int(topology.name.partition(":")[2]))
        case "star":
            return np.vstack([np.zeros((1, 2)), _circle(n - 1)])
        case "chain":
            return _snake(n)
        case "torus":
            rows, columns = _torus_shape(topology)
            return np.array([(c, -r) for r in range(rows) for c in range(columns)], dtype=float)
        case "hypercube":
            return _cube(n)
        case _ if n > SPRINGS or topology.phases:
            return _circle(n)
        case _:
            return _any(topology)


def _circle(n: int) -> Positions:
    """Clockwise from the top; apart from each other by 1, however many."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / max(n, 1)
    radius = 0.5 / np.sin(np.pi / max(n, 3)) if n > 1 else 0.0
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _snake(n: int) -> Positions:
    """A line, which turns at the margin when it is long."""
    width = n if n <= 10 else int(np.ceil(np.sqrt(2 * n)))
    row, step = np.divmod(np.arange(n), width)
    column = np.where(row % 2, width - 1 - step, step)
    return np.stack([column, 0.0 - row], axis=1)


def _tree(n: int, children: int) -> Positions:
    """Generation below generation, everyone in the middle above its children."""
    places = np.zeros((n, 2))
    leaves = 0
    below: list[list[int]] = [[] for _ in range(n)]
    for agent in range(1, n):
        parent = (agent - 1) // children
        below[parent].append(agent)
        places[agent, 1] = places[parent, 1] - 1
    stack = [0]  # leaves from left to right
    while stack:
        agent = stack.pop()
        if not below[agent]:
            places[agent, 0], leaves = leaves, leaves + 1
        stack += reversed(below[agent])
    for agent in reversed(range(n)):
        if below[agent]:
            places[agent, 0] = places[below[agent], 0].mean()
    return places


def _cube(n: int) -> Positions:
    """One direction per binary digit; after three, copies of the cube side by side."""
    directions = [(1.0, 0.0), (0.0, 1.0), (0.42, 0.36), (2.1, -0.55), (-0.55, 2.6)]
    while 2 ** len(directions) < n:
        directions.append((2.2 * directions[-2][0], 2.2 * directions[-2][1]))
    digits = (np.arange(n)[:, None] >> np.arange(len(directions))) & 1
    positions: Positions = digits @ np.array(directions)
    return positions


def _any(topology: Topology) -> Positions:
    """Springs between all pairs, from a circle: short paths become short distances."""
    graph = nx.Graph(topology.graph)
    places = nx.kamada_kawai_layout(graph, weight=None)
    positions = np.array([places[i] for i in range(topology.agents)])
    if topology.agents < 2:
        return positions
    return _apart(positions / np.ptp(positions, axis=0).max() * np.sqrt(topology.agents) * 1.3)


def _apart(positions: Positions) -> Positions:
    """Push agents that lie on top of each other apart, to a distance of about 0.8."""
    for _ in range(200):
        delta = positions[:, None] - positions[None]
        distance = np.hypot(delta[..., 0], delta[..., 1]) + np.eye(len(positions)) * 9
        push = np.maximum(0.0, 0.8 - distance) / np.maximum(distance, 1e-6)
        if not push.any():
            break
        positions = positions + 0.3 * (push[..., None] * delta).sum(axis=1)
    return positions


def nearest(positions: Positions) -> float:
    """The smallest distance between two agents."""
    if len(positions) < 2:
        return 1.0
    distance: Any = KDTree(positions).query(positions, k=2)[0]
    return float(distance[:, 1].min())


def _is_torus(topology: Topology) -> bool:
    return topology.name.partition(":")[0] == "torus"


def _torus_shape(topology: Topology) -> tuple[int, int]:
    shape = topology.name.partition(":")[2]
    if not shape:
        return torus_shape(topology.agents)
    rows, columns = map(int, shape.split("x"))
    return rows, columns


def _draw_edges(
    axes: Axes, topology: Topology, positions: Positions, radius: float, points: float
) -> None:
    """Lines for pairs, arrows for one-way edges; `points` is the length of 1 on paper."""
    weights = dict(zip(topology.edges, topology.edge_weights.tolist(), strict=True))
    top = max(weights.values(), default=1.0)
    # Many edges would merge into one blot at full width.
    widest = 3.2 * min(1.0, max(0.15, 6 * topology.agents / max(len(topology.edges), 1)))
    lines, widths = [], []
    for (j, i), there in weights.items():
        back = weights.get((i, j), 0.0)
        paired = (i, j) in weights
        weight = (there + back) / 2 if paired and not topology.directed else there
        width = widest * max(0.15, abs(weight) / (abs(top) or 1.0))
        start, end = positions[j], positions[i]
        if topology.directed:
            bend = 0.14 if paired else 0.0
            arrow = FancyArrowPatch(
                tuple(start), tuple(end), arrowstyle="-|>", mutation_scale=9 + 1.5 * width,
                connectionstyle=f"arc3,rad={bend}", shrinkA=radius * points,
                shrinkB=radius * points, lw=width, color=EDGE, zorder=2,
            )  # fmt: skip
            axes.add_patch(arrow)
        elif _is_torus(topology) and np.abs(end - start).max() > 1:
            # Around the border: a stub at each end, since a line would hide those in between.
            lines.append([start, start - 0.62 * (end - start) / np.abs(end - start).max()])
            widths.append(width)
        elif j < i:
            lines.append([start, end])
            widths.append(width)
    axes.add_collection(
        LineCollection(lines, linewidths=widths, colors=EDGE, zorder=1), autolim=False
    )


def draw_pie(
    axes: Axes, centre: tuple[float, float], radius: float, counts: Positions, shades: list[str]
) -> None:
    """A ring of the classes that an agent holds, from the top clockwise, its number inside."""
    axes.add_patch(Circle(centre, radius, facecolor="white", edgecolor=INK, lw=0.6, zorder=3))
    shares = counts / max(counts.sum(), 1)
    ends = 90 - 360 * np.cumsum(shares)
    for share, end, shade in zip(shares, ends, shades, strict=True):
        if share > 0:
            wedge = Wedge(centre, radius, end, end + 360 * share, facecolor=shade, lw=0, zorder=4)
            axes.add_patch(wedge)
    axes.add_patch(Circle(centre, 0.55 * radius, facecolor="white", lw=0, zorder=5))


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


def _ticks(
    axes: Axes, which: str, names: list[str] | None, n: int, cell: float, upright: bool
) -> None:
    """Every row's number while there is room, else every fifth, tenth, ...; names all."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if names is None:
        axis.set_ticks(every(n, int(n * cell / (0.22 if which == "x" else 0.15))))
        return
    axis.set_ticks(range(n), [short(name) for name in names])
    for label in axis.get_ticklabels():
        label.set_parse_math(False)
        label.set_fontsize(min(8.0, 60 * cell))
        if upright:
            label.set(rotation=90, ha="center", va="top")


def every(n: int, room: int) -> list[int]:
    """Round numbers below n, about as many as there is room for.

    >>> every(5, 9), every(100, 10)
    ([0, 1, 2, 3, 4], [0, 10, 20, 30, 40, 50, 60, 70, 80, 90])
    """
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100) if n <= s * max(room, 1)), n)
    return list(range(0, n, step))


def short(name: str, length: int = 24) -> str:
    """A name of at most so many characters."""
    return name if len(name) <= length else name[: length - 1] + "…"


def _names(class_names: Sequence[str] | None, classes: int) -> list[str]:
    if class_names is None:
        return [str(k) for k in range(classes)]
    if len(class_names) != classes:
        raise BadValue("class_names", len(class_names), f"{classes} names, one per class")
    return [str(name) for name in class_names]


def _counts(holdings: npt.ArrayLike, agents: int | None = None) -> Positions:
    counts = np.asarray(holdings, dtype=np.float64)
    rows = "agents" if agents is None else str(agents)
    if counts.ndim != 2 or 0 in counts.shape or agents not in (None, len(counts)):
        raise BadValue("holdings", counts.shape, f"shape ({rows}, classes)")
    if not (counts >= 0).all():
        raise BadValue("holdings", float(counts.min()), "counts of 0 or more")
    return counts


def checked_path(path: str | Path) -> Path:
    """The path, if its ending is one of those that can be drawn."""
    out = Path(path)
    if out.suffix.lower().lstrip(".") not in ENDINGS:
        raise BadValue(
            "out", str(path), "a file that ends in " + ", ".join(f".{e}" for e in ENDINGS)
        )
    return out


def save(figure: Figure, out: Path) -> Path:
    """Writes the figure; the same one gives the same file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    ending = out.suffix.lower().lstrip(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    with mpl.rc_context({"svg.hashsalt": "parley"}):  # else every svg has other ids
        figure.savefig(out, format=ending, dpi=150, metadata=undated)
    return out
