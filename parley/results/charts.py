"""What a report shows, as plain descriptions: the page and the pictures draw the same ones.

A description is a dictionary that becomes JSON; ``web/src/charts.js`` says what it may hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np

from parley.errors import ParleyError
from parley.graphs import Topology, from_graph
from parley.results.draw import layout
from parley.results.read import Curve, Group, RecordedRun, curve, field_of, sent_megabytes
from parley.training.events import Record
from parley.training.run import topology_of

Description = dict[str, Any]

ACCURACIES = {
    "accuracy_mean_model": "averaged model",
    "accuracy_own": "own models",
    "accuracy_after_gossip": "after gossip",
}
POINTS = 600
"""Most points of a drawn curve; longer ones are thinned evenly."""
SMALL_MULTIPLES = 36
"""Agents up to which each has a plot of its own; more are rows of a heat map."""
PLACED = 300
"""Agents up to which a graph is drawn."""


@dataclass(frozen=True)
class Section:
    """One heading of the report: charts, or the reason why there are none."""

    name: str
    """Of its picture files, and its anchor."""
    title: str
    text: str = ""
    charts: list[Description] = field(default_factory=list)
    missing: str = ""
    small: bool = False
    """Whether the charts are small ones side by side."""


def sections(groups: Sequence[Group]) -> list[Section]:
    """All sections with charts, in the order of the page."""
    several = any(len(group.runs) > 1 for group in groups)
    band = " Bands reach one standard deviation over seeds to either side." if several else ""
    return [
        graph_section(groups),
        accuracy_section(groups, band),
        _curves("loss", "Loss", f"Lower is better.{band}", groups, [
            ("Test loss of the averaged model", "loss", field_of("loss"), {}),
            ("Training loss of the agents' own models", "loss", field_of("loss_train"), {}),
        ]),
        _curves("distance", "Distance between agents",
            f"How far the agents' models are from their average: √(mean of ‖x_i − x̄‖²).{band}",
            groups,
            [("Consensus distance", "distance", field_of("consensus_distance"), {"log": True})],
        ),
        bias_section(groups, band),
        bytes_section(groups, band),
        *network_section(groups, band),
        agents_section(groups),
        confusion_section(groups),
    ]  # fmt: skip


def _series(name: str, found: Curve, slot: int) -> Description:
    step = -(-len(found.x) // POINTS)
    # Counted from the end: the last record is always there.
    keep = sorted(range(len(found.x) - 1, -1, -step))
    made: Description = {"name": name, "slot": slot % 8, "dash": slot // 6}
    made["x"] = [_short(found.x[i]) for i in keep]
    made["y"] = [_short(found.mean[i]) for i in keep]
    if found.low is not None and found.high is not None:
        made["low"] = [_short(found.low[i]) for i in keep]
        made["high"] = [_short(found.high[i]) for i in keep]
    return made


def _short(number: float) -> float:
    return float(f"{number:.6g}")


def _lines(
    title: str,
    groups: Sequence[Group],
    vertical: Callable[[Record], float | None],
    y: Description,
    horizontal: Callable[[Record], float | None] | None = None,
    x: Description | None = None,
) -> Description | None:
    found = [(g.label, curve(g, vertical, horizontal)) for g in groups]
    series = [_series(label, c, n) for n, (label, c) in enumerate(found) if c is not None]
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


def about(line: Description) -> str:
    """A chart in a sentence, for those who cannot see it."""
    unit = line["y"].get("unit", "")
    ends = "; ".join(
        f"{s['name']} from {s['y'][0]:.4g} to {s['y'][-1]:.4g}{unit and ' ' + unit}"
        for s in line["series"]
        if s["y"]
    )
    return f"{line['title']}, {line['y']['name']} over {line['x']['name']}: {ends}."


def _curves(
    name: str,
    title: str,
    text: str,
    groups: Sequence[Group],
    wanted: Sequence[tuple[str, str, Callable[[Record], float | None], Description]],
) -> Section:
    found = [_lines(head, groups, take, {"name": y, **more}) for head, y, take, more in wanted]
    charts = [chart for chart in found if chart is not None]
    missing = "" if charts else _no_records(groups) or "The records do not have it."
    lacking = _lacking(groups, [take for _, _, take, _ in wanted])
    return Section(name, title, f"{text} {lacking}".strip(), charts, missing)


def _no_records(groups: Sequence[Group]) -> str:
    empty = not any(run.records for group in groups for run in group.runs)
    return "There is no record yet." if empty else ""


def _lacking(groups: Sequence[Group], takes: Sequence[Callable[[Record], float | None]]) -> str:
    """Which methods have no such field, where others have."""
    without = [g.label for g in groups if not any(curve(g, take) for take in takes)]
    if not without or len(without) == len(groups):
        return ""
    return f"Not recorded for {', '.join(without)}."


def accuracy_section(groups: Sequence[Group], band: str) -> Section:
    """One chart for each of the three accuracies; of a single method, all three in one."""
    percent = {"name": "test accuracy, %", "unit": "%"}
    text = (
        "Of the average of all models, of each agent's own model (mean over agents), and of each "
        f"after further rounds of averaging without training.{band}"
    )
    charts = []
    if len(groups) == 1:
        [group] = groups
        series = []
        for slot, (name, title) in enumerate(ACCURACIES.items()):
            found = curve(group, field_of(name, 100))
            if found is not None:
                series.append(_series(title, found, slot))
                if name == "accuracy_own" and len(group.runs) == 1:
                    series[-1] |= _worst_to_best(group)
        if series:
            chart: Description = {
                "kind": "line", "title": "Test accuracy", "y": percent, "series": series,
                "x": {"name": "epoch", "integer": True},
            }  # fmt: skip
            charts = [chart | {"about": about(chart)}]
            if any(s.get("spread") for s in series):
                text += " The band reaches from the worst agent's model to the best one's."
    else:
        titles = {
            "accuracy_mean_model": "Averaged model",
            "accuracy_own": "Agents' own models, mean",
            "accuracy_after_gossip": "Agents' models after gossip, mean",
        }
        made = [_lines(titles[n], groups, field_of(n, 100), percent) for n in ACCURACIES]
        charts = [chart for chart in made if chart is not None]
        text = f"{text} {_lacking(groups, [field_of(n) for n in ACCURACIES])}".strip()
    missing = "" if charts else _no_records(groups) or "The records have no accuracies."
    return Section("accuracy", "Accuracy", text, charts, missing)


def _worst_to_best(group: Group) -> Description:
    low = curve(group, field_of("accuracy_own_min", 100))
    high = curve(group, field_of("accuracy_own_max", 100))
    if low is None or high is None or low.x != high.x:
        return {}
    ends = {"low": _series("", low, 0)["y"], "high": _series("", high, 0)["y"]}
    return {**ends, "spread": "range"}


def bias_section(groups: Sequence[Group], band: str) -> Section:
    """ε and ω, where they were asked for."""
    made = _curves(
        "bias", "Bias terms ε and ω",
        "Norms of how much a gradient changes with the neighbour's model (ε) and with the "
        f"neighbour's data (ω).{band}",
        groups,
        [("ε, model variance", "norm of ε", field_of("epsilon_norm"), {}),
         ("ω, data variance", "norm of ω", field_of("omega_norm"), {})],
    )  # fmt: skip
    if made.charts or made.missing.startswith("There is no record"):
        return made
    missing = "Not recorded: give a run --bias-norms run (or printed) to have ε and ω measured."
    return Section(made.name, made.title, made.text, [], missing)


def bytes_section(groups: Sequence[Group], band: str) -> Section:
    """What accuracy costs in messages."""
    x: Description = {"name": "MB sent by each agent", "unit": "MB"}
    ends = [m for g in groups for r in g.runs if (m := sent_megabytes(r.last))]
    if ends and max(ends) > 4 * min(ends):
        x["log"] = True  # one bit an entry beside 32: a linear axis would hide it
    charts = _accuracies_by("by what is sent", groups, sent_megabytes, x)
    if charts and not any(v > 0 for s in charts[0]["series"] for v in s["x"]):
        return Section("bytes", "Accuracy for what is sent", missing="Nothing was sent.")
    missing = "" if charts else _no_records(groups) or "The records do not count bytes."
    text = f"Bytes are counted as sent, headers included, models and cross-gradients.{band}"
    return Section("bytes", "Accuracy for what is sent", text, charts, missing)


def network_section(groups: Sequence[Group], band: str) -> list[Section]:
    """What accuracy costs in time on the network that was simulated, if one was."""
    x: Description = {"name": "seconds on the simulated network", "unit": "s"}
    take = field_of("seconds_network")
    charts = _accuracies_by("by time on the network", groups, take, x)
    if not charts:
        return []
    text = (
        "When the slowest agent would have got there on the network of --links: computing, bytes "
        f"over bandwidth, delays and losses.{band} {_lacking(groups, [take])}"
    )
    return [Section("network", "Accuracy over time on a network", text.strip(), charts)]


def _accuracies_by(
    what: str,
    groups: Sequence[Group],
    horizontal: Callable[[Record], float | None],
    x: Description,
) -> list[Description]:
    """Two accuracies over something that they cost."""
    y = {"name": "test accuracy, %", "unit": "%"}
    wanted = (
        (f"Averaged model, {what}", "accuracy_mean_model"),
        (f"Agents' models after gossip, {what}", "accuracy_after_gossip"),
    )
    made = [_lines(t, groups, field_of(n, 100), y, horizontal, x) for t, n in wanted]
    return [chart for chart in made if chart is not None]


def _of_agent(agent: int) -> Callable[[Record], float | None]:
    def take(record: Record) -> float | None:
        found = record.get("accuracy_agents")
        known = isinstance(found, list) and agent < len(found)
        return field_of("it", 100)({"it": found[agent]}) if known and found else None

    return take


def agents_section(groups: Sequence[Group]) -> Section:
    """A small chart for every agent, or where there are many a heat map for every method."""
    title, name = "Agent by agent", "agents"
    agents = max((len(_each(r.last)) for g in groups for r in g.runs), default=0)
    if not agents:
        reason = _no_records(groups) or "The records do not tell the agents apart."
        return Section(name, title, missing=reason)
    if agents > SMALL_MULTIPLES:
        maps = [_agents_map(group) for group in groups]
        text = "Test accuracy of each agent's own model (first seed), agent by epoch."
        return Section(name, title, text, [m for m in maps if m])
    y = {"name": "", "unit": "%"}
    charts = []
    for agent in range(agents):
        chart = _lines(f"Agent {agent}", groups, _of_agent(agent), y)
        if chart:
            charts.append(chart | {"legend": False})
    values = [v for c in charts for s in c["series"] for v in (*s["y"], *s.get("high", ()))]
    top = min(100.0, max(values) * 1.05)
    for chart in charts:
        # The same scale everywhere, or the eye compares what it should not.
        chart["y"] = {**y, "min": 0, "max": float(f"{top:.3g}")}
        chart["about"] = about({**chart, "y": {"name": "test accuracy", "unit": "%"}})
    text = "Test accuracy of each agent's own model, %, over epochs; the same test samples for all."
    return Section(name, title, text, charts, small=True)


def _each(record: Record) -> list[Any]:
    found = record.get("accuracy_agents")
    return found if isinstance(found, list) else []


def _agents_map(group: Group) -> Description | None:
    run = group.first
    rows = [r for r in run.records if _each(r)]
    if not rows:
        return None
    rows = rows[:: -(-len(rows) // 60)]
    values = np.array([_each(r) for r in rows]).T * 100
    epochs = [f"{float(r['epoch']):g}" for r in rows]
    return {
        "kind": "heat",
        "title": group.label,
        "about": f"{group.label}: accuracy of {len(values)} agents over epochs, from "
        f"{values[:, -1].min():.1f} % to {values[:, -1].max():.1f} % at the end.",
        "x": {"name": "epoch", "names": epochs},
        "y": {"name": "agent", "names": [str(a) for a in range(len(values))]},
        "values": [[_short(v) for v in row] for row in values.tolist()],
        "unit": "%",
        "max": 100,
    }


def confusion_section(groups: Sequence[Group]) -> Section:
    """What the best and the worst agent take for what."""
    title, name = "What is taken for what", "confusion"
    charts = []
    for group in groups:
        run = next((r for r in group.runs if r.confusion), None)
        if run is None or run.confusion is None:
            continue
        for which in ("worst", "best"):
            found = _confusion_chart(group, run, run.confusion, which)
            if found:
                charts.append(found)
    if not charts:
        done = any(run.summary for group in groups for run in group.runs)
        reason = (
            "The runs were made by a version that did not record it: run them again to have it."
            if done
            else "It is recorded when a run is complete."
        )
        return Section(name, title, missing=reason)
    text = (
        "Of the test samples of a class (row), how many the agent's model takes for each (column), "
        "in percent: the worst and the best agent at the end"
        f"{', of the first seed' * any(len(g.runs) > 1 for g in groups)}."
    )
    return Section(name, title, text, charts)


def _confusion_chart(
    group: Group, run: RecordedRun, confusion: dict[str, Any], which: str
) -> Description | None:
    try:
        agent, classes = int(confusion[which]["agent"]), [str(c) for c in confusion["classes"]]
        counts = np.array(confusion[which]["matrix"], dtype=float)
        accuracy = float(confusion[which]["accuracy"])
    except (KeyError, TypeError, ValueError):
        return None
    answers = [*classes, "none of these"]
    if counts.shape not in ((len(classes), len(classes)), (len(classes), len(answers))):
        return None
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    title = f"{group.label}: {which} agent ({agent}), {accuracy:.1%}"
    return {
        "kind": "heat",
        "title": title,
        "about": f"Confusion matrix. {title} of the test samples right.",
        "x": {"name": "taken for", "names": answers[: counts.shape[1]]},
        "y": {"name": "class", "names": classes},
        "values": [[round(v, 1) for v in row] for row in shares.tolist()],
        "unit": "%",
        "max": 100,
        "square": counts.shape[0] == counts.shape[1],
    }


def graph_section(groups: Sequence[Group]) -> Section:
    """Who talks with whom and who holds what; once for each graph and partition."""
    title, name = "Who talks with whom, who holds what", "graph"
    charts: list[Description] = []
    reasons = []
    seen: dict[str, int] = {}
    for group in groups:
        try:
            made = graph_chart(group.first)
        except ParleyError as error:
            reasons.append(f"{group.label}: {error}.")
            continue
        key = repr({k: v for k, v in made.items() if k != "title"})
        if key not in seen:
            seen[key] = len(charts)
            charts.append(made)
    if not charts:
        return Section(name, title, missing=" ".join(dict.fromkeys(reasons)) or "No run is known.")
    text = "Each agent is a ring of the classes that it holds; edges are as wide as their weights."
    if not any(chart.get("classes") for chart in charts):
        text = (
            "Edges are as wide as their weights. Who holds which classes was not recorded: the "
            "runs were made by an older version."
        )
    return Section(name, title, text, charts)


def graph_chart(run: RecordedRun) -> Description:
    """The graph of a run; raises `ParleyError` with the reason where it cannot be drawn."""
    graph, held, classes = _graph_of(run)
    if graph.agents > PLACED:
        raise ParleyError(f"a graph of {graph.agents} agents is too large to be drawn")
    nodes = []
    for agent, (x, y) in enumerate(layout(graph).tolist()):
        node: Description = {"name": f"agent {agent}", "label": agent, "x": x, "y": y}
        if held is not None:
            counts = held[agent]
            node["shares"] = [
                {"index": int(c), "value": int(counts[c])} for c in np.flatnonzero(counts)
            ]
            most = np.argsort(-counts, kind="stable")[:8]
            lines = [f"{classes[c]}: {int(counts[c])}" for c in most if counts[c]]
            more = int((counts > 0).sum()) - len(lines)
            node["text"] = "\n".join(
                [f"{int(counts.sum())} samples", *lines, *([f"and {more} more"] if more else [])]
            )
        nodes.append(node)
    edges = []
    for (j, i), weight in zip(graph.edges, graph.edge_weights.tolist(), strict=True):
        back = graph.graph.has_edge(i, j)
        if not back or j < i:  # one line for both ways
            edges.append({"from": j, "to": i, "weight": _short(weight), "oneWay": not back})
    made: Description = {
        "kind": "graph",
        "title": f"{graph.name}, {graph.agents} agent{'s' * (graph.agents > 1)}"
        + (f", {run.options['partition']}" if run.options.get("partition") else ""),
        "nodes": nodes,
        "edges": edges,
    }
    if held is not None:
        made["classes"] = classes
    mean = 2 * len(edges) / max(graph.agents, 1)
    made["about"] = (
        f"Graph: {made['title']}; {len(edges)} edges, {mean:.3g} neighbours on average."
        + ("" if held is None else f" {_holdings_in_words(held)}")
    )
    return made


def _holdings_in_words(held: np.ndarray) -> str:
    kinds = (held > 0).sum(1)
    low, high = int(kinds.min()), int(kinds.max())
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"Each agent holds {number} of {held.shape[1]} classes."


def _graph_of(run: RecordedRun) -> tuple[Topology, np.ndarray | None, list[str]]:
    """Graph, holdings and classes as the run recorded them, else as its experiment names it."""
    about = run.agents
    if about is not None:
        try:
            held = np.array(about["held"], dtype=np.int64)
            classes = [str(name) for name in about["classes"]]
            edges: nx.DiGraph[int] = nx.DiGraph()
            edges.add_nodes_from(range(len(held)))
            edges.add_weighted_edges_from(about["edges"])
            if held.shape == (len(held), len(classes)):
                return from_graph(edges, name=str(about["topology"])), held, classes
        except (KeyError, TypeError, ValueError, IndexError):
            pass  # damaged: as if it were not there
    if run.experiment is None:
        raise ParleyError("its experiment cannot be read")
    return topology_of(run.experiment), None, []
