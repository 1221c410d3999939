"""Charts of what a run records once: its graph with each agent's classes, confusion matrices."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parley.charts.chart import Axis, Chart, Heat
from parley.errors import ParleyError
from parley.results.graphs import graph_chart
from parley.results.layout import recorded_graph
from parley.results.read import RecordedRun
from parley.training.record import number

LARGEST_MATRIX = 1_000_000
"""Entries of a confusion matrix that can be drawn."""
PLACED = 300
"""The most agents for which a graph is drawn."""


def confusion_chart(label: str, confusion: dict[str, Any], which: str) -> Chart | None:
    """The confusion matrix of a method's best or worst agent; None if it was not recorded whole."""
    try:
        agent, classes = int(confusion[which]["agent"]), [str(c) for c in confusion["classes"]]
        counts = np.array(confusion[which]["matrix"], dtype=float)
        accuracy = float(confusion[which]["accuracy"])
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    answers = [*classes, "other"]
    if counts.shape not in ((len(classes), len(classes)), (len(classes), len(answers))):
        return None
    if not np.isfinite(counts).all() or counts.size > LARGEST_MATRIX or number(accuracy) is None:
        return None
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    title = f"{label}: {which} agent ({agent}), {accuracy:.1%}"
    return Chart(
        title,
        [Heat([[round(v, 1) for v in row] for row in shares.tolist()], 0, 100, "%")],
        Axis("predicted class", names=answers[: counts.shape[1]]),
        Axis("true class", names=classes, down=True),
        about=f"Confusion matrix. {title} of test samples correct.",
    )


def recorded_graph_chart(run: RecordedRun) -> Chart:
    """The graph of a run; raises `ParleyError` with the reason if it cannot be drawn."""
    graph = recorded_graph(run.options, run.agents)
    n = graph.agents
    if n > PLACED:
        raise ParleyError(f"a graph of {n} agents is too large to draw")
    held, classes = _held(run.agents or {}, n)
    partition = run.options.get("partition", "")
    title = ", ".join(
        [graph.name, f"{n} agent{'s' * (n > 1)}", *[str(partition)] * bool(partition)]
    )
    return graph_chart(graph, title, held, classes)


def _held(agents: Mapping[str, Any], count: int) -> tuple[npt.NDArray[np.int64] | None, list[str]]:
    """The number of samples per agent and class, and the classes' names; None if not recorded."""
    try:
        held = np.array(agents["held"], dtype=np.int64)
        classes = [str(name) for name in agents["classes"]]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None, []
    return (held, classes) if held.shape == (count, len(classes)) else (None, [])
