"""The report's plots as PNG and SVG: the same descriptions as on the page, drawn by matplotlib."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Patch

from parley.results import draw
from parley.results.charts import Description, Section, sections
from parley.results.page import heading, settings
from parley.results.read import Group

ENDINGS = ("png", "svg")


class Picture:
    """A figure that a notebook shows by itself, and that can be saved."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def save(self, path: str | Path) -> Path:
        """Writes it; the ending says which kind: png, svg or pdf."""
        return draw.save(self.figure, draw.checked_path(path))

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
        written += [draw.save(figure, folder / f"{name}.{ending}") for ending in ENDINGS]
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
    _legend(figure, section.charts)
    return figure


def overview(groups: Sequence[Group], made: Sequence[Section] | None = None) -> Figure:
    """The graph, accuracies, distance and cost on one sheet."""
    by_name = {section.name: section.charts for section in made or sections(groups)}
    wanted = ("graph", "accuracy", "distance", "bytes", "loss")
    charts = [chart for name in wanted for chart in by_name[name][: 1 + (name == "accuracy")]][:6]
    columns = min(len(charts), 3) or 1
    rows = -(-len(charts) // columns) or 1
    figure = Figure(figsize=(4.9 * columns, 3.8 * rows + 0.9), layout="constrained")
    tall = figure.get_figheight()
    # What is left above is for two lines of title.
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 0.8 / tall))
    bold = {"fontsize": 14, "fontweight": "bold"}
    small = {"fontsize": 9.5, "color": draw.THEME["faint"]}
    for down, words, font in ((0.1, heading(groups), bold), (0.45, settings(groups), small)):
        figure.text(0.01, 1 - down / tall, words, font, va="top", parse_math=False)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, chart in zip(panels.flat, charts, strict=False):
        _draw(axes, chart)
    for axes in panels.flat[len(charts) :]:
        axes.set_axis_off()
    _legend(figure, charts)
    return figure


def _draw(axes: Axes, chart: Description, small: bool = False) -> None:
    axes.set_title(chart["title"], fontsize=8 if small else 11, loc="left", parse_math=False)
    match chart["kind"]:
        case "line":
            _draw_lines(axes, chart, small)
        case "heat":
            _draw_heat(axes, chart)
        case "graph":
            _draw_graph(axes, chart)


def _draw_lines(axes: Axes, chart: Description, small: bool) -> None:
    for series in chart["series"]:
        style = draw.line_style(series["slot"], series["dash"])
        marker = "o" if len(series["x"]) == 1 else ""  # one point makes no line
        axes.plot(
            series["x"], series["y"], marker=marker, lw=1.2 if small else 1.8,
            label=series["name"], **style,
        )  # fmt: skip
        if "low" in series:
            axes.fill_between(
                series["x"], series["low"], series["high"], color=style["color"], alpha=0.15, lw=0
            )
    if chart["x"].get("integer"):
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4 if small else 8, integer=True))
    for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if chart[side].get("log"):
            getattr(axes, f"set_{side}scale")("log", nonpositive="mask")
            draw.plain_numbers(axis)
    if "min" in chart["y"]:
        axes.set_ylim(chart["y"]["min"], chart["y"]["max"])
    if not small:
        axes.set_xlabel(chart["x"]["name"])
        axes.set_ylabel(chart["y"]["name"])
    axes.tick_params(labelsize=7 if small else 9)
    axes.grid(color=draw.THEME["line"], linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart["series"]) > 1 and not chart.get("link"):
        axes.legend(frameon=False, fontsize=8)


def _draw_heat(axes: Axes, chart: Description) -> None:
    values = np.array(chart["values"], dtype=float)
    scale = mpl.colors.LinearSegmentedColormap.from_list("heat", draw.THEME["heat"])
    axes.imshow(values, cmap=scale, vmin=0, vmax=chart["max"], aspect="auto")
    for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        names = chart[side]["names"]
        shown = draw.every(len(names), 20)
        axis.set_ticks(shown, [draw.short(names[k], 14) for k in shown])
    if max(map(len, chart["x"]["names"])) > 3:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel(chart["x"]["name"])
    axes.set_ylabel(chart["y"]["name"])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    if values.size <= 150:
        for (row, column), value in np.ndenumerate(values):
            if value:
                ink = "white" if value > 0.45 * chart["max"] else draw.THEME["ink"]
                axes.text(
                    column, row, f"{value:.3g}", ha="center", va="center", fontsize=6.5, color=ink
                )


def _draw_graph(axes: Axes, chart: Description) -> None:
    places = np.array([[node["x"], node["y"]] for node in chart["nodes"]])
    radius = 0.31 * draw.nearest(places)
    span = float(np.ptp(places, axis=0).max()) if len(places) > 1 else 1.0
    radius = min(radius, 0.09 * max(span, 1.0))
    heaviest = max((edge["weight"] for edge in chart["edges"]), default=1.0)
    thin = min(1.0, max(0.2, 6 * len(places) / max(len(chart["edges"]), 1)))
    for edge in chart["edges"]:
        ends = places[edge["from"]], places[edge["to"]]
        width = max(0.4, 3 * thin * edge["weight"] / heaviest)
        if edge["oneWay"]:
            step = (ends[1] - ends[0]) / max(float(np.hypot(*(ends[1] - ends[0]))), 1e-9)
            axes.add_patch(
                FancyArrowPatch(
                    ends[0], ends[1] - 1.05 * radius * step, arrowstyle="-|>", mutation_scale=9,
                    shrinkA=0, shrinkB=0, color=draw.EDGE, lw=width, zorder=1,
                )
            )  # fmt: skip
        else:
            axes.plot(*zip(*ends, strict=True), color=draw.EDGE, lw=width, zorder=1)
    classes = chart.get("classes", [])
    shades = draw.colours(len(classes)) if classes else []
    for node, (x, y) in zip(chart["nodes"], places, strict=True):
        if "shares" in node:
            counts = np.zeros(len(classes))
            for share in node["shares"]:
                counts[share["index"]] = share["value"]
            draw.draw_pie(axes, (x, y), radius, counts, shades)
        else:
            axes.add_patch(
                Circle((x, y), radius, facecolor=draw.NODE, edgecolor=draw.INK, lw=0.8, zorder=3)
            )
        if len(places) <= 60:
            axes.text(x, y, str(node["label"]), ha="center", va="center", fontsize=8, zorder=6)
    axes.set_aspect("equal")
    axes.margins(0.02)
    low, high = places.min(axis=0) - 1.4 * radius, places.max(axis=0) + 1.4 * radius
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.set_axis_off()
    if 0 < len(classes) <= draw.LEGEND_CLASSES:
        axes.legend(
            [Patch(color=shade) for shade in shades], [draw.short(name) for name in classes],
            loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, title="class",
            handlelength=1.0, labelspacing=0.35,
        )  # fmt: skip


def _legend(figure: Figure, charts: Sequence[Description]) -> None:
    """One for all charts of the same methods."""
    handles: dict[str, Artist] = {}
    for axes, chart in zip(figure.axes, charts, strict=False):
        if chart.get("link"):
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(str(name), handle)
    if len(handles) > 1:
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center",
            ncols=min(len(handles), 6), frameon=False, fontsize=9,
        )  # fmt: skip
