"""Curves: as a description that pages draw, and the same with matplotlib.

A description is a dictionary that becomes JSON; ``web/src/charts.js`` says what it may hold.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parley.measures import KNOWN, Measure, of_record
from parley.results.group import Curve, Take, curve, field_of
from parley.results.style import checked_path, line_style, plain_axes, plain_numbers, save
from parley.training.record import Record, sent_megabytes

Description = dict[str, Any]
Seeds = Sequence[Sequence[Record]]
"""The records of every run of a method."""

POINTS = 600
"""The most points in a drawn curve; longer ones are thinned evenly."""
MARKS = "osD^vP*X<>"
SENT: Description = {"name": "MB sent per agent", "unit": "MB"}


def axis_of(measure: Measure) -> Description:
    """The axis of a metric.

    >>> axis_of(KNOWN["accuracy"]), axis_of(KNOWN["rmse"])
    ({'name': 'test accuracy, %', 'unit': '%'}, {'name': 'test RMSE'})
    """
    if measure.share:
        return {"name": f"test {measure.title}, %", "unit": "%"}
    return {"name": f"test {measure.title}"}


def form_of(measure: Measure, form: str) -> Take:
    """Extracts a metric in one of its forms from a record, as it is displayed."""
    return field_of(measure.field(form), measure.factor)


def line_chart(
    title: str,
    methods: Mapping[str, Seeds],
    vertical: Take,
    y: Description,
    horizontal: Take | None = None,
    x: Description | None = None,
    slots: Mapping[str, int] | None = None,
) -> Description | None:
    """One line per method: means over seeds; None where no record has the field. `slots` are the
    methods' places among the colours (default: in their order)."""
    found = [(name, curve(seeds, vertical, horizontal)) for name, seeds in methods.items()]
    slots = slots or {name: slot for slot, name in enumerate(methods)}
    series = [series_of(name, c, slots[name]) for name, c in found if c is not None]
    if not series:
        return None
    made: Description = {
        "kind": "line",
        "title": title,
        "x": x or {"name": "epoch", "integer": True},
        "y": y,
        "series": series,
        "link": "methods",
    }
    for side in ("x", "y"):
        if made[side].get("log") and not any(v > 0 for s in series for v in s[side]):
            made[side] = {**made[side], "log": False}  # nothing to take the log of
    made["about"] = about(made)
    return made


def series_of(name: str, found: Curve, slot: int) -> Description:
    """One line, with a band if there are several seeds."""
    step = -(-len(found.x) // POINTS)
    # Counted from the end, so that the last record is always included.
    keep = sorted(range(len(found.x) - 1, -1, -step))
    made: Description = {"name": name, "slot": slot % 8, "dash": slot // 6}
    made["x"] = [short_number(found.x[i]) for i in keep]
    made["y"] = [short_number(found.mean[i]) for i in keep]
    if found.low is not None and found.high is not None:
        made["low"] = [short_number(found.low[i]) for i in keep]
        made["high"] = [short_number(found.high[i]) for i in keep]
    return made


def short_number(number: float) -> float:
    """Rounded to six digits, which is more than a plot can show."""
    return float(f"{number:.6g}")


def about(line: Description) -> str:
    """A chart in a sentence, for those who cannot see it."""
    unit = line["y"].get("unit", "")
    ends = "; ".join(
        f"{s['name']} from {s['y'][0]:.4g} to {s['y'][-1]:.4g}{unit and ' ' + unit}"
        for s in line["series"]
        if s["y"]
    )
    return f"{line['title']}, {line['y']['name']} over {line['x']['name']}: {ends}."


def draw_lines(axes: Axes, chart: Description, small: bool = False) -> None:
    """Draws the lines and bands of a description, and a legend unless it is shared."""
    axes.set_title(chart["title"], fontsize=8 if small else 11, loc="left", parse_math=False)
    for series in chart["series"]:
        style = line_style(series["slot"], series["dash"])
        # A single point makes no line; where many lines meet, markers tell their ends apart.
        marks = {"marker": series["mark"], "markevery": [-1]} if "mark" in series else {}
        marks |= {"marker": "o"} if len(series["x"]) == 1 else {}
        axes.plot(
            series["x"], series["y"], lw=1.2 if small else 1.8, label=series["name"], **style,
            **marks,
        )  # fmt: skip
        if "low" in series:
            axes.fill_between(
                series["x"], series["low"], series["high"], color=style["color"], alpha=0.15, lw=0
            )
    if chart["x"].get("integer"):
        axes.xaxis.set_major_locator(
            mpl.ticker.MaxNLocator(4 if small else 10, integer=True, steps=[1, 2, 5, 10])
        )
    for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if chart[side].get("log"):
            getattr(axes, f"set_{side}scale")("log", nonpositive="mask")
            plain_numbers(axis)
    if "min" in chart["y"]:
        axes.set_ylim(chart["y"]["min"], chart["y"]["max"])
    if not small:
        axes.set_xlabel(chart["x"]["name"])
        axes.set_ylabel(chart["y"]["name"])
    axes.tick_params(labelsize=7 if small else 9)
    plain_axes(axes)
    if len(chart["series"]) > 1 and not chart.get("link"):
        axes.legend(frameon=False, fontsize=8)


def shared_legend(
    figure: Figure,
    charts: Sequence[Description],
    where: Literal["outside lower center", "outside upper center"] = "outside lower center",
) -> None:
    """One legend for all charts of the same methods."""
    handles: dict[str, Artist] = {}
    for axes, chart in zip(figure.axes, charts, strict=False):
        if chart.get("link"):
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(str(name), handle)
    if len(handles) > 1:
        figure.legend(
            list(handles.values()), list(handles), loc=where,
            ncols=min(len(handles), 6), frameon=False, fontsize=9,
        )  # fmt: skip


def deciding(methods: Iterable[Seeds]) -> Measure:
    """The metric that decides which model is better, from the first record there is."""
    first = next((r for seeds in methods for records in seeds for r in records), None)
    found = of_record(first) if first else []
    return found[0] if found else KNOWN["accuracy"]


def curves_picture(
    methods: Mapping[str, Seeds], path: str | Path, slots: Mapping[str, int] | None = None
) -> Path:
    """Draw curves of methods: metric and distance over epochs, and the metric over bytes sent.

    Lines are means over seeds; bands show one standard deviation either side. `slots` as for
    `line_chart`.
    """
    distance: Description = {"name": "consensus distance", "log": True}
    sent = {**SENT, "log": True}
    measure = deciding(methods.values())
    averaged, own, y = form_of(measure, "mean_model"), form_of(measure, "own"), axis_of(measure)
    apart = field_of("consensus_distance")
    made = [
        line_chart("Averaged model", methods, averaged, y, slots=slots),
        line_chart("Agents' own models, mean", methods, own, y, slots=slots),
        line_chart("Distance between agents", methods, apart, distance, slots=slots),
        line_chart("Averaged model, by MB sent", methods, averaged, y, sent_megabytes, sent, slots),
    ]
    return _sheet([made[:2], made[2:]], path)


def field_picture(partitions: Mapping[str, Mapping[str, Seeds]], path: str | Path) -> Path:
    """Draw many methods on several partitions: the metric over bytes sent, and over time.

    `partitions` maps each partition to the input of `curves_picture`. One row of panels for each.
    """
    names = list(dict.fromkeys(name for methods in partitions.values() for name in methods))
    time: Description = {"name": "seconds of training, all agents", "log": True}
    axes = ((sent_megabytes, {**SENT, "log": True}), (field_of("seconds"), time))
    rows = []
    measure = deciding(seeds for methods in partitions.values() for seeds in methods.values())
    vertical, y = form_of(measure, "mean_model"), axis_of(measure)
    for partition, methods in partitions.items():
        row = [line_chart(partition, methods, vertical, y, take, x) for take, x in axes]
        for chart in filter(None, row):
            for series in chart["series"]:
                slot = names.index(series["name"])  # the same in every row
                series |= {"slot": slot % 8, "dash": slot // 6, "mark": MARKS[slot % len(MARKS)]}
        rows.append(row)
    return _sheet(rows, path, sharey="row")


def _sheet(rows: Sequence[Sequence[Description | None]], path: str | Path, **grid: Any) -> Path:
    """Charts in a grid with one legend above them."""
    out = checked_path(path)
    names = {s["name"] for row in rows for chart in row if chart for s in chart["series"]}
    size = (5.6 * len(rows[0]), 3.5 * len(rows) + 0.32 * -(-len(names) // 6) + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(rows), len(rows[0]), squeeze=False, **grid)
    charts = [chart for row in rows for chart in row]
    for axes, chart in zip(panels.flat, charts, strict=True):
        if chart is None:
            axes.set_axis_off()
        else:
            draw_lines(axes, chart)
    shared_legend(figure, [chart or {} for chart in charts], "outside upper center")
    return save(figure, out)
