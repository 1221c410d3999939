"""Curves of methods over epochs, bytes and time, as charts and as pictures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from parley.charts.chart import MARKS, Axis, Chart, Line, about, short_number
from parley.charts.draw import sheet
from parley.charts.picture import save
from parley.measures import KNOWN, Measure, of_record
from parley.results.seeds import Curve, Take, curve, field_of
from parley.results.seeds import slots as default_slots
from parley.training.record import Record, sent_megabytes

Seeds = Sequence[Sequence[Record]]
"""The records of every run of a method."""

POINTS = 600
"""The most points in a drawn curve; longer ones are thinned evenly."""
PANEL = (540.0, 340.0)
"""The size of a chart among others, in pixels."""


class Against(NamedTuple):
    """What curves are drawn against: the axis, and how to read it from a record."""

    axis: Axis
    take: Take | None = None
    """None: the epoch."""


EPOCHS = Against(Axis("epoch", whole=True))
SENT = Against(Axis("MB sent per agent", "MB"), sent_megabytes)


def on_log(against: Against) -> Against:
    """The same on a logarithmic axis."""
    return against._replace(axis=replace(against.axis, log=True))


def axis_of(measure: Measure) -> Axis:
    """The axis of a metric.

    >>> axis_of(KNOWN["accuracy"]).name, axis_of(KNOWN["rmse"]).name
    ('test accuracy, %', 'test RMSE')
    """
    return Axis(f"test {measure.title}" + ", %" * measure.share, measure.unit)


def form_of(measure: Measure, form: str) -> Take:
    """Extracts a metric in one of its forms from a record, as it is displayed."""
    return field_of(measure.field(form), measure.factor)


def line_chart(
    title: str,
    methods: Mapping[str, Seeds],
    vertical: Take,
    y: Axis,
    against: Against = EPOCHS,
    slots: Mapping[str, int] | None = None,
) -> Chart | None:
    """One line per method: means over seeds; None where no record has the field. `slots` are the
    methods' places among the colours."""
    found = [(name, curve(seeds, vertical, against.take)) for name, seeds in methods.items()]
    places = slots or default_slots(methods)
    found.sort(key=lambda each: places[each[0]])
    lines = [line_of(name, c, places[name]) for name, c in found if c is not None]
    return described(Chart(title, lines, against.axis, y, link="methods")) if lines else None


def described(chart: Chart) -> Chart:
    """The chart with a sentence about it."""
    return replace(chart, about=about(chart))


def line_of(name: str, found: Curve, slot: int) -> Line:
    """One line, with a band if there are several seeds. The first six differ in colour, further
    ones in dashes."""
    step = -(-len(found.x) // POINTS)
    # Counted from the end, so that the last record is always included.
    keep = sorted(range(len(found.x) - 1, -1, -step))

    def kept(values: Sequence[float] | None) -> list[float]:
        return [short_number(values[i]) for i in keep] if values else []

    x, mean, low, high = (kept(v) for v in (found.x, found.mean, found.low, found.high))
    return Line(name, x, mean, low, high, colour=slot % 8, dash=slot // 6)


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
    measure = deciding(methods.values())
    averaged, own, y = form_of(measure, "mean_model"), form_of(measure, "own"), axis_of(measure)
    apart, distance = field_of("consensus_distance"), Axis("consensus distance", log=True)
    by_sent = "Averaged model, by MB sent"
    made = [
        line_chart("Averaged model", methods, averaged, y, slots=slots),
        line_chart("Agents' own models, mean", methods, own, y, slots=slots),
        line_chart("Distance between agents", methods, apart, distance, slots=slots),
        line_chart(by_sent, methods, averaged, y, on_log(SENT), slots),
    ]
    return save(sheet([made[:2], made[2:]], PANEL), path)


def field_picture(partitions: Mapping[str, Mapping[str, Seeds]], path: str | Path) -> Path:
    """Draw many methods on several partitions: the metric over bytes sent, and over time.

    `partitions` maps each partition to the input of `curves_picture`. One row of panels for each.
    """
    names = list(dict.fromkeys(name for methods in partitions.values() for name in methods))
    time = Against(Axis("seconds of training, all agents", "s", log=True), field_of("seconds"))
    rows = []
    measure = deciding(seeds for methods in partitions.values() for seeds in methods.values())
    vertical, y = form_of(measure, "mean_model"), axis_of(measure)
    slots = default_slots(names)  # the same in every row
    for partition, methods in partitions.items():
        row = [line_chart(partition, methods, vertical, y, against, slots)
               for against in (on_log(SENT), time)]  # fmt: skip
        rows.append([chart and _marked(chart, slots) for chart in row])
    return save(sheet(rows, PANEL), path)


def _marked(chart: Chart, slots: Mapping[str, int]) -> Chart:
    """Where many lines meet, markers tell their ends apart."""
    marks = [
        replace(line, mark=MARKS[slots[line.name] % (len(MARKS) - 1)], ends=True)
        for line in chart.lines
    ]
    return replace(chart, marks=marks)
