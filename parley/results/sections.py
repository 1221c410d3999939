"""The contents of a report as charts that the page, the live page and the pictures draw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from parley.charts.chart import Axis, Chart, Heat, Line, short_number
from parley.charts.html import figures
from parley.errors import ParleyError
from parley.measures import BINARY, CLASSIFICATION, Measure, together
from parley.results.curves import (
    EPOCHS,
    SENT,
    Against,
    axis_of,
    described,
    form_of,
    line_chart,
    line_of,
    on_log,
)
from parley.results.seeds import Group, Take, curve, field_of
from parley.results.static_charts import confusion_chart, recorded_graph_chart
from parley.results.table import Table
from parley.training.record import Record, number, sent_megabytes

SHOWN = {"mean_model": "averaged model", "own": "own models", "after_gossip": "after gossip"}
"""The forms of a metric that are drawn."""
SMALL_MULTIPLES = 36
"""Up to this many agents each get their own plot; more become rows of a heat map."""


@dataclass(frozen=True)
class Section:
    """One section of the report: charts, or the reason why there are none."""

    name: str
    """The name of its picture files and its anchor."""
    title: str
    text: str = ""
    charts: Sequence[Chart] = field(default_factory=list)
    missing: str = ""
    small: bool = False
    """Whether the charts are small ones side by side."""
    table: Table | None = None
    """Numbers that are shown next to the charts."""

    def html(self) -> str:
        """As part of a page."""
        parts = [f'<section id="{self.name}"><h2>{escape(self.title)}</h2>']
        if self.missing:
            return f'{parts[0]}<p class="faint">{escape(self.missing)}</p></section>'
        if self.text:
            parts.append(f'<p class="faint">{escape(self.text)}</p>')
        parts.append(figures(self.charts, self.small))
        numbers = self.table.html(self.title) if self.table else ""
        return "".join([*parts, f"{numbers}</section>"])


def sections(groups: Sequence[Group], against: Against = EPOCHS) -> list[Section]:
    """All sections with charts, in the order of the page; `against` is what curves are drawn
    against unless their section says otherwise."""
    several = any(len(group.runs) > 1 for group in groups)
    band = " Bands show one standard deviation over seeds." if several else ""
    measured = measures_of(groups)
    return [
        graph_section(groups),
        *(measure_section(measure, groups, band, against) for measure in measured),
        _curves("loss", "Loss", f"Lower is better.{band}", groups, [
            ("Test loss of the averaged model", Axis("loss"), field_of("loss")),
            ("Training loss of the agents' own models", Axis("loss"), field_of("loss_train")),
        ], against),
        _curves("distance", "Distance between agents",
            f"How far the agents' models are from their average: √(mean of ‖x_i − x̄‖²).{band}",
            groups,
            [("Consensus distance", Axis("distance", log=True), field_of("consensus_distance"))],
            against,
        ),
        bias_section(groups, band, against),
        bytes_section(measured[0], groups, band),
        *network_section(measured[0], groups, band),
        agents_section(measured[0], groups, against),
        *personal_section(measured, groups),
        *confusion_section(groups),
    ]  # fmt: skip


def measures_of(groups: Sequence[Group]) -> tuple[Measure, ...]:
    """What was measured; the first metric is shown where there is room for one."""
    return together([run.options for group in groups for run in group.runs])


def _lines(
    title: str,
    groups: Sequence[Group],
    vertical: Take,
    y: Axis,
    against: Against = EPOCHS,
) -> Chart | None:
    return line_chart(title, {g.label: g.seeds for g in groups}, vertical, y, against)


def _curves(
    name: str,
    title: str,
    text: str,
    groups: Sequence[Group],
    wanted: Sequence[tuple[str, Axis, Take]],
    against: Against,
) -> Section:
    found = [_lines(head, groups, take, y, against) for head, y, take in wanted]
    charts = [chart for chart in found if chart is not None]
    missing = "" if charts else _no_records(groups) or "The records do not contain it."
    lacking = _lacking(groups, [take for _, _, take in wanted])
    return Section(name, title, f"{text} {lacking}".strip(), charts, missing)


def _no_records(groups: Sequence[Group]) -> str:
    empty = not any(run.records for group in groups for run in group.runs)
    return "There are no records yet." if empty else ""


def _lacking(groups: Sequence[Group], takes: Sequence[Take]) -> str:
    """Which methods lack a field that others have."""
    without = [g.label for g in groups if not any(curve(g.seeds, take) for take in takes)]
    if not without or len(without) == len(groups):
        return ""
    return f"Not recorded for {', '.join(without)}."


def _capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def measure_section(
    measure: Measure, groups: Sequence[Group], band: str, against: Against
) -> Section:
    """One chart for each form of a metric; for a single method, all of them in one."""
    text = (
        "Of the average of all models, of the agents' own models (mean over agents), and of the "
        f"latter after further gossip rounds without training.{band}"
    )
    if not measure.higher:
        text = f"Lower is better. {text}"
    charts = []
    if len(groups) == 1:
        [group] = groups
        lines = []
        for slot, (form, title) in enumerate(SHOWN.items()):
            found = curve(group.seeds, form_of(measure, form), against.take)
            if found is not None:
                line = line_of(title, found, slot)
                if form == "own" and len(group.runs) == 1:
                    line = _worst_to_best(line, measure, group, against)
                lines.append(line)
        if lines:
            chart = Chart(f"Test {measure.title}", lines, against.axis, axis_of(measure))
            charts = [described(chart)]
            if any(line.spread == "range" for line in lines):
                text += " The band spans the range from the worst agent's model to the best."
    else:
        titles = {
            "mean_model": "Averaged model",
            "own": "Agents' own models, mean",
            "after_gossip": "Agents' models after gossip, mean",
        }
        y = axis_of(measure)
        made = [_lines(titles[f], groups, form_of(measure, f), y, against) for f in SHOWN]
        charts = [chart for chart in made if chart is not None]
        text = f"{text} {_lacking(groups, [form_of(measure, f) for f in SHOWN])}".strip()
    lacking = "accuracies" if measure.name == "accuracy" else measure.title
    missing = "" if charts else _no_records(groups) or f"The records have no {lacking}."
    return Section(measure.name, _capital(measure.title), text, charts, missing)


def _worst_to_best(line: Line, measure: Measure, group: Group, against: Against) -> Line:
    """The line with a band from the worst agent to the best, if both were recorded."""
    low = curve(group.seeds, form_of(measure, "own_min"), against.take)
    high = curve(group.seeds, form_of(measure, "own_max"), against.take)
    if low is None or high is None or low.x != high.x:
        return line
    worst, best = line_of("", low, 0).y, line_of("", high, 0).y
    return replace(line, low=worst, high=best, spread="range")


def bias_section(groups: Sequence[Group], band: str, against: Against) -> Section:
    """ε and ω, if they were recorded."""
    made = _curves(
        "bias", "Bias terms ε and ω",
        "Norms of how much a gradient changes with the neighbour's model (ε) and with the "
        f"neighbour's data (ω).{band}",
        groups,
        [("ε, model variance", Axis("norm of ε"), field_of("epsilon_norm")),
         ("ω, data variance", Axis("norm of ω"), field_of("omega_norm"))],
        against,
    )  # fmt: skip
    if made.charts or made.missing.startswith("There are no records"):
        return made
    missing = "Not recorded: use --bias-norms run (or printed) to measure ε and ω."
    return Section(made.name, made.title, made.text, [], missing)


def bytes_section(measure: Measure, groups: Sequence[Group], band: str) -> Section:
    """A metric against bytes sent."""
    against = SENT
    title = f"{_capital(measure.title)} by MB sent"
    ends = [m for g in groups for r in g.runs if (m := sent_megabytes(r.last))]
    if ends and max(ends) > 4 * min(ends):
        against = on_log(SENT)  # a linear axis would hide 1 bit per parameter next to 32
    charts = _measured_by(measure, "by MB sent", groups, against)
    if charts and not any(v > 0 for line in charts[0].lines for v in line.x):
        return Section("bytes", title, missing="Nothing was sent.")
    missing = "" if charts else _no_records(groups) or "The records do not count bytes."
    text = f"All bytes sent are counted: models, cross-gradients and headers.{band}"
    return Section("bytes", title, text, charts, missing)


def network_section(measure: Measure, groups: Sequence[Group], band: str) -> list[Section]:
    """A metric against time on the simulated network, if there was one."""
    take = field_of("seconds_network")
    against = Against(Axis("seconds on the simulated network", "s"), take)
    charts = _measured_by(measure, "by time on the network", groups, against)
    if not charts:
        return []
    text = (
        "The time the slowest agent would have needed on the network given by --links: "
        f"computation, bytes over bandwidth, delays and losses.{band} {_lacking(groups, [take])}"
    )
    title = f"{_capital(measure.title)} over time on a network"
    return [Section("network", title, text.strip(), charts)]


def _measured_by(
    measure: Measure,
    what: str,
    groups: Sequence[Group],
    against: Against,
) -> list[Chart]:
    """Two forms of a metric against a cost."""
    wanted = (
        (f"Averaged model, {what}", "mean_model"),
        (f"Agents' models after gossip, {what}", "after_gossip"),
    )
    y = axis_of(measure)
    made = [_lines(t, groups, form_of(measure, f), y, against) for t, f in wanted]
    return [chart for chart in made if chart is not None]


def _of_agent(measure: Measure, agent: int) -> Take:
    def take(record: Record) -> float | None:
        found = _each(measure, record)
        one = number(found[agent]) if agent < len(found) else None
        return None if one is None else measure.factor * one

    return take


def agents_section(measure: Measure, groups: Sequence[Group], against: Against = EPOCHS) -> Section:
    """A small chart for every agent or, if there are many, a heat map for every method."""
    title, name = "Each agent", "agents"
    agents = max((len(_each(measure, r.last)) for g in groups for r in g.runs), default=0)
    what = "accuracies" if measure.name == "accuracy" else measure.title
    if not agents:
        reason = _no_records(groups) or f"The records have no per-agent {what}."
        return Section(name, title, missing=reason)
    said = f"Test {measure.title} of each agent's own model"
    if agents > SMALL_MULTIPLES:
        maps = [_agents_map(measure, group) for group in groups]
        text = f"{said} (first seed), agent by epoch."
        return Section(name, title, text, [m for m in maps if m])
    names = [f"Agent {agent}" for agent in range(agents)]
    y = axis_of(measure)
    found = [_lines(n, groups, _of_agent(measure, k), y, against) for k, n in enumerate(names)]
    drawn = [chart for chart in found if chart is not None]
    if not drawn:
        reason = f"The records have no {what} of single agents."
        return Section(name, title, missing=reason)
    values = [v for chart in drawn for line in chart.lines for v in (*line.y, *line.high)]
    top = max(values) * 1.05 if max(values) > 0 else 0.0
    top = min(100.0, top) if measure.share else top
    # The same scale everywhere, so that charts can be compared at a glance.
    shared = replace(y, low=min(0, *values), high=float(f"{top:.3g}"))
    charts = [replace(chart, y=shared) for chart in drawn]
    unit = ", %" if measure.share else ""
    text = f"{said}{unit}, over epochs; the same test samples for all."
    return Section(name, title, text, charts, small=True)


def _each(measure: Measure, record: Mapping[str, Any] | Record, form: str = "agents") -> list[Any]:
    found = record.get(measure.field(form))
    return found if isinstance(found, list) else []


def _agents_map(measure: Measure, group: Group) -> Chart | None:
    run = group.first
    rows = [r for r in run.records if _each(measure, r)]
    if not rows:
        return None
    rows = rows[:: -(-len(rows) // 60)]
    agents = max(len(_each(measure, r)) for r in rows)
    values = np.full((agents, len(rows)), np.nan)  # absent agents: NaN
    for column, row in enumerate(rows):
        for agent, one in enumerate(_each(measure, row)):
            found = number(one)
            values[agent, column] = np.nan if found is None else measure.factor * found
    last = values[:, -1][~np.isnan(values[:, -1])]
    low, high = (f"{v:.1f} %" if measure.share else f"{v:.4g}" for v in _ends(last))
    end = f", from {low} to {high} at the end" if len(last) else ""
    epochs = [f"{float(r['epoch']):g}" for r in rows]
    about = f"{group.label}: {measure.title} of {len(values)} agents over epochs{end}."
    return _map(group.label, measure, values, Axis("epoch", names=epochs), about)


def _map(
    title: str, measure: Measure, values: npt.NDArray[np.float64], x: Axis, about: str
) -> Chart:
    """A metric of every agent, one row each."""
    cells = [[None if np.isnan(v) else short_number(v) for v in row] for row in values.tolist()]
    high = 100 if measure.share else _top(values)
    y = Axis("agent", names=[str(agent) for agent in range(len(values))], down=True)
    return Chart(title, [Heat(cells, 0, high, measure.unit, zeros=True)], x, y, about=about)


def _ends(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _top(values: npt.NDArray[np.float64]) -> float:
    """The end of a colour scale that begins at 0."""
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) and known.max() > 0 else 1.0


OWN_AND_ALL = (
    ("own, own", "own model on own data", "personal_agents"),
    ("averaged, own", "averaged model on own data", "personal_mean_model_agents"),
    ("own, all", "own model on everybody's data", "agents"),
)
"""What is measured of each agent where every agent has its own test samples."""


def personal_section(measured: Sequence[Measure], groups: Sequence[Group]) -> list[Section]:
    """How models do on each agent's own test samples and on everybody's, if agents have their
    own."""
    charts, lines = [], []
    several = len(groups) > 1
    for group in groups:
        last = group.first.last
        sizes = last.get("test_samples_agents")
        if not isinstance(sizes, list):
            continue
        for measure in measured:
            made = _personal_map(measure, group, len(sizes))
            charts += [made] if made else []
        for agent, size in enumerate(sizes):
            line = [group.label] * several + [str(agent), _count(size)]
            for measure in measured:
                for *_, form in OWN_AND_ALL:
                    each = _each(measure, last, form)
                    found = number(each[agent]) if agent < len(each) else None
                    line.append("–" if found is None else measure.shown(found, 2))
            lines.append(line)
    if not charts:
        return []
    heads = [""] * several + ["agent", "own test samples"]
    heads += [f"{m.title}, {head}" for m in measured for _, head, _ in OWN_AND_ALL]
    sizes = {_count(r.last.get("test_samples")) for g in groups for r in g.runs[:1]}
    text = (
        "On each agent's own test samples, its own model and the averaged one; on the test samples "
        f"of all agents together ({' or '.join(sorted(sizes))}), its own model. At the last record"
        f"{' of the first seed' * any(len(g.runs) > 1 for g in groups)}."
    )
    title = "Own and everybody's test data"
    return [Section("personal", title, text, charts, table=Table(heads, lines))]


def _count(found: object) -> str:
    counted = number(found)
    return "–" if counted is None else f"{counted:.0f}"


def _personal_map(measure: Measure, group: Group, agents: int) -> Chart | None:
    last = group.first.last
    columns = [_each(measure, last, form) for *_, form in OWN_AND_ALL]
    values = np.full((agents, len(columns)), np.nan)
    for column, each in enumerate(columns):
        for agent, one in enumerate(each[:agents]):
            found = number(one)
            values[agent, column] = np.nan if found is None else measure.factor * found
    if np.isnan(values).all():
        return None
    title = f"{group.label}: {measure.title}"
    about = f"{title} of {agents} agents on their own test samples and on everybody's."
    x = Axis("model, test data", names=[head for head, *_ in OWN_AND_ALL])
    return _map(title, measure, values, x, about)


def confusion_section(groups: Sequence[Group]) -> list[Section]:
    """Confusion matrices of the best and the worst agent, where samples have one class each."""
    tasks = {str(run.options.get("task", CLASSIFICATION)) for g in groups for run in g.runs}
    if not tasks & {CLASSIFICATION, BINARY}:
        return []
    return [_confusion_section(groups)]


def _confusion_section(groups: Sequence[Group]) -> Section:
    title, name = "Confusion matrices", "confusion"
    charts = []
    for group in groups:
        run = next((r for r in group.runs if r.confusion), None)
        if run is None or run.confusion is None:
            continue
        for which in ("worst", "best"):
            found = confusion_chart(group.label, run.confusion, which)
            if found:
                charts.append(found)
    if not charts:
        done = any(run.summary for group in groups for run in group.runs)
        reason = (
            "The runs were made by a version that did not record them; run them again to get them."
            if done
            else "They are recorded once a run is complete."
        )
        return Section(name, title, missing=reason)
    text = (
        "For each true class (row), the percentage of test samples that the agent's model assigns "
        "to each class (column): the worst and the best agent at the end"
        f"{', of the first seed' * any(len(g.runs) > 1 for g in groups)}."
    )
    return Section(name, title, text, charts)


def graph_section(groups: Sequence[Group]) -> Section:
    """The graph and each agent's classes, once per graph and partition."""
    title, name = "Graph and class distribution", "graph"
    charts: list[Chart] = []
    reasons = []
    seen: dict[str, int] = {}
    for group in groups:
        try:
            made = recorded_graph_chart(group.first)
        except ParleyError as error:
            reasons.append(f"{group.label}: {error}.")
            continue
        key = repr(made.marks)
        if key not in seen:
            seen[key] = len(charts)
            charts.append(made)
    if not charts:
        return Section(
            name, title, missing=" ".join(dict.fromkeys(reasons)) or "There are no runs."
        )
    text = "Each agent is a ring of the classes it holds; edges are as wide as their weights."
    if not any(chart.network and chart.network.shares for chart in charts):
        text = (
            "Edges are as wide as their weights. The classes of each agent were not recorded "
            "because the runs were made by an older version."
        )
    return Section(name, title, text, charts)
