"""The theory in pictures."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parley.charts.chart import Axis, Chart, Line
from parley.charts.draw import sheet
from parley.charts.picture import checked_path, save
from parley.graphs import full, ring, torus
from parley.reproduce.theory.bounds import StepSizes
from parley.reproduce.theory.quadratics import Quadratics, lemmas, rates, slope


def picture(path: str | Path, quick: bool = False) -> Path:
    """Four panels: the empty interval, Lemma 1, the consensus error, the rate."""
    checked_path(path)
    steps = (64, 128) if quick else (125, 250, 500, 1000, 2000)
    upper = [_interval(), _lemma_1(steps=20 if quick else 100)]
    lower = [_consensus(steps=60 if quick else 300), _rate(steps)]
    return save(sheet([upper, lower], (530, 385)), path)


def _interval() -> Chart:
    β_P = np.linspace(0.02, 0.98, 97).tolist()
    lower = [StepSizes.of(ring(10), 1.0, β).lower for β in β_P]
    lines = [Line("η must be above", β_P, lower, colour="ink")]
    graphs = {"full, 10": full(10), "torus, 20": torus(20), "ring, 10": ring(10)}
    for colour, (name, graph) in enumerate(graphs.items()):
        upper = [StepSizes.of(graph, 1.0, β).upper for β in β_P]
        lines.append(Line(f"and at most: {name}", β_P, upper, colour=colour))
    any_graph = [(1 - β) ** 2 / 4 for β in β_P]
    lines.append(Line("(1-β)²/(4L), for any graph", β_P, any_graph, colour="edge", dash=2))
    title = "Theorem 1's step sizes: there are none"
    return Chart(title, lines, Axis("momentum β"), Axis("η · L", log=True))


def _lemma_1(steps: int) -> Chart:
    agents = (4, 6, 8, 12, 20, 32)
    lines = []
    for colour, zeta in enumerate((0.0, 1.0)):
        bound, one, mean = [], [], []
        for n in agents:
            problem = Quadratics.draw(n, heterogeneity=zeta, noise=0.5, curvature_spread=zeta / 2)
            found = lemmas(problem, ring(n), steps, lr=0.1, runs=3)
            bound.append(float(found.mean_difference.right_K[-1]))
            one.append(float(found.each_difference.left_K[-1]))
            mean.append(float(found.mean_difference.left_K[steps // 2 :].mean()))
        words = "heterogeneous" if zeta else "ζ = 0"
        lines.append(Line(f"{words}: bound", agents, bound, colour=colour, dash=1))
        lines.append(Line(f"{words}: one agent", agents, one, colour=colour, mark="o"))
        if zeta:  # else it is 0, up to rounding
            name = f"{words}: mean over agents"
            lines.append(Line(name, agents, mean, colour=colour, mark="s"))
    title = "Lemma 1: the mean of g̃ - g, and one agent's"
    return Chart(title, lines, Axis("agents on a ring"), Axis("expected square", log=True))


def _consensus(steps: int) -> Chart:
    problem = Quadratics.draw(10, heterogeneity=1.0, noise=0.5)
    lines = []
    for colour, momentum in enumerate((0.0, 0.9)):
        found = lemmas(problem, ring(10), steps, lr=0.02, momentum=momentum).consensus
        for values_K, words in ((found.right_K, "bound"), (found.left_K, "NGC")):
            name, dash = f"β = {momentum:g}: {words}", int(words == "bound")
            y = values_K.tolist()
            lines.append(Line(name, list(range(len(y))), y, colour=colour, dash=dash))
    y_axis = Axis("sum over steps of the mean ‖x - x̄‖²", log=True)
    return Chart("Lemma 2: consensus error, ring of 10", lines, Axis("step", whole=True), y_axis)


def _rate(steps: Sequence[int]) -> Chart:
    found, lines = [], []
    for colour, n in enumerate((4, 16)):
        mine = list(rates([n], steps))
        found += mine
        across = [r.agents * r.steps for r in mine]
        values = [r.value for r in mine]
        lines.append(Line(f"ring of {n}", across, values, colour=colour, mark="o"))
    across = sorted(r.agents * r.steps for r in found)
    first = min(found, key=lambda r: r.agents * r.steps)
    line = [first.value * math.sqrt(across[0] / a) for a in across]
    lines.append(Line("1/√(NK)", across, line, colour="edge", dash=2))
    title = f"Corollary 1's rate: exponent {slope(found):.2f}"
    x, y = Axis("agents times steps, NK", log=True), Axis("mean of ‖∇F(x̄)‖²", log=True)
    return Chart(title, lines, x, y)
