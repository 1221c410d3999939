"""The report's plots as PNG and SVG: the same as on the page, drawn by matplotlib."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parley.results.curves import Description, draw_lines, shared_legend
from parley.results.graphs import draw_described
from parley.results.group import Group
from parley.results.page import heading, settings
from parley.results.sections import Section, measures_of, sections
from parley.results.style import THEME, checked_path, every, save, short

ENDINGS = ("png", "svg")


class Picture:
    """A figure that notebooks display and that can be saved."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def save(self, path: str | Path) -> Path:
        """Saves it; the suffix decides the format: png, svg or pdf."""
        return save(self.figure, checked_path(path))

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=110)
        return drawn.getvalue()


def pictures(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Every section as a picture, and an overview, as PNG and SVG."""
    made = sections(groups)
    figures = {section.name: section_figure(section) for section in made if section.charts}
    written = []
    for name, figure in {"overview": overview(groups, made), **figures}.items():
        written += [save(figure, folder / f"{name}.{ending}") for ending in ENDINGS]
    return written


def section_figure(section: Section) -> Figure:
    """All charts of a section side by side."""
    count = len(section.charts)
    columns = min(count, 5 if section.small else 2 if section.charts[0]["kind"] == "heat" else 3)
    rows = -(-count // columns)
    width, height = (2.4, 1.9) if section.small else (4.6, 3.9)
    if section.charts[0]["kind"] == "graph":
        width, height = 6.4, 5.2
    figure = Figure(figsize=(width * columns, height * rows + 0.7), layout="constrained")
    figure.suptitle(section.title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, chart in zip(panels.flat, section.charts, strict=False):
        _draw(axes, chart, section.small)
    for axes in panels.flat[count:]:
        axes.set_axis_off()
    shared_legend(figure, section.charts)
    return figure


def overview(groups: Sequence[Group], made: Sequence[Section] | None = None) -> Figure:
    """The graph, accuracies, distance and cost on one sheet."""
    by_name = {section.name: section.charts for section in made or sections(groups)}
    first = measures_of(groups)[0].name
    wanted = ("graph", first, "distance", "bytes", "loss")
    charts = [chart for name in wanted for chart in by_name[name][: 1 + (name == first)]][:6]
    columns = min(len(charts), 3) or 1
    rows = -(-len(charts) // columns) or 1
    figure = Figure(figsize=(4.9 * columns, 3.8 * rows + 0.9), layout="constrained")
    tall = figure.get_figheight()
    # Leaves space at the top for two lines of title.
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 0.8 / tall))
    bold = {"fontsize": 14, "fontweight": "bold"}
    small = {"fontsize": 9.5, "color": THEME["faint"]}
    for down, words, font in ((0.1, heading(groups), bold), (0.45, settings(groups), small)):
        figure.text(0.01, 1 - down / tall, words, font, va="top", parse_math=False)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, chart in zip(panels.flat, charts, strict=False):
        _draw(axes, chart)
    for axes in panels.flat[len(charts) :]:
        axes.set_axis_off()
    shared_legend(figure, charts)
    return figure


def _draw(axes: Axes, chart: Description, small: bool = False) -> None:
    axes.set_title(chart["title"], fontsize=8 if small else 11, loc="left", parse_math=False)
    match chart["kind"]:
        case "line":
            draw_lines(axes, chart, small)
        case "heat":
            _draw_heat(axes, chart)
        case "graph":
            draw_described(axes, chart)


def _draw_heat(axes: Axes, chart: Description) -> None:
    values = np.array(chart["values"], dtype=float)
    scale = mpl.colors.LinearSegmentedColormap.from_list("heat", THEME["heat"])
    axes.imshow(values, cmap=scale, vmin=0, vmax=chart["max"], aspect="auto")
    for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        names = chart[side]["names"]
        shown = every(len(names), 20)
        axis.set_ticks(shown, [short(names[k], 14) for k in shown])
    if max(map(len, chart["x"]["names"])) > 3:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel(chart["x"]["name"])
    axes.set_ylabel(chart["y"]["name"])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    if values.size <= 150:
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value) and (value or chart.get("zeros")):
                ink = "white" if value > 0.45 * chart["max"] else THEME["ink"]
                axes.text(
                    column, row, f"{value:.3g}", ha="center", va="center", fontsize=6.5, color=ink
                )
