"""The theory in pictures."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parley.graphs import full, ring, torus
from parley.reproduce.theory.bounds import StepSizes
from parley.reproduce.theory.quadratics import Quadratics, lemmas, rates, slope
from parley.results.style import EDGE, INK, LINES, checked_path, plain_axes, save


def picture(path: str | Path, quick: bool = False) -> Path:
    """Four panels: the empty interval, Lemma 1, the consensus error, the rate."""
    out = checked_path(path)
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    _draw_interval(panels[0, 0])
    _draw_lemma_1(panels[0, 1], steps=20 if quick else 100)
    _draw_consensus(panels[1, 0], steps=60 if quick else 300)
    _draw_rate(panels[1, 1], (64, 128) if quick else (125, 250, 500, 1000, 2000))
    for axes in panels.flat:
        plain_axes(axes)
    return save(figure, out)


def _draw_interval(axes: Axes) -> None:
    β_P = np.linspace(0.02, 0.98, 97)
    lower = [StepSizes.of(ring(10), 1.0, float(β)).lower for β in β_P]
    axes.plot(β_P, lower, color=INK, label="η must be above")
    graphs = {"full, 10": full(10), "torus, 20": torus(20), "ring, 10": ring(10)}
    for colour, (name, graph) in zip(LINES, graphs.items(), strict=False):
        upper = [StepSizes.of(graph, 1.0, float(β)).upper for β in β_P]
        axes.plot(β_P, upper, color=colour, label=f"and at most: {name}")
    axes.plot(β_P, (1 - β_P) ** 2 / 4, color=EDGE, ls=":", label="(1-β)²/(4L), for any graph")
    axes.set_yscale("log")
    axes.set_title("Theorem 1's step sizes: there are none", loc="left", fontsize=11)
    axes.set_xlabel("momentum β")
    axes.set_ylabel("η · L")
    axes.legend(frameon=False, fontsize=8)


def _draw_lemma_1(axes: Axes, steps: int) -> None:
    agents = (4, 6, 8, 12, 20, 32)
    for colour, zeta in zip(LINES, (0.0, 1.0), strict=False):
        bound, one, mean = [], [], []
        for n in agents:
            problem = Quadratics.draw(n, heterogeneity=zeta, noise=0.5, curvature_spread=zeta / 2)
            found = lemmas(problem, ring(n), steps, lr=0.1, runs=3)
            bound.append(found.mean_difference.right_K[-1])
            one.append(found.each_difference.left_K[-1])
            mean.append(found.mean_difference.left_K[steps // 2 :].mean())
        words = "heterogeneous" if zeta else "ζ = 0"
        axes.plot(agents, bound, color=colour, ls="--", label=f"{words}: bound")
        axes.plot(agents, one, "o-", color=colour, ms=4, label=f"{words}: one agent")
        if zeta:  # else it is 0, up to rounding
            axes.plot(agents, mean, "s-", color=colour, ms=4, label=f"{words}: mean over agents")
    axes.set_yscale("log")
    axes.set_title("Lemma 1: the mean of g̃ - g, and one agent's", loc="left", fontsize=11)
    axes.set_xlabel("agents on a ring")
    axes.set_ylabel("expected square")
    axes.legend(frameon=False, fontsize=8, loc="center right")


def _draw_consensus(axes: Axes, steps: int) -> None:
    problem = Quadratics.draw(10, heterogeneity=1.0, noise=0.5)
    for colour, momentum in zip(LINES, (0.0, 0.9), strict=False):
        found = lemmas(problem, ring(10), steps, lr=0.02, momentum=momentum).consensus
        axes.plot(found.right_K, color=colour, ls="--", label=f"β = {momentum:g}: bound")
        axes.plot(found.left_K, color=colour, label=f"β = {momentum:g}: NGC")
    axes.set_yscale("log")
    axes.set_title("Lemma 2: consensus error, ring of 10", loc="left", fontsize=11)
    axes.set_xlabel("step")
    axes.set_ylabel("sum over steps of the mean ‖x - x̄‖²")
    axes.legend(frameon=False, fontsize=8)


def _draw_rate(axes: Axes, steps: Sequence[int]) -> None:
    found = []
    for colour, n in zip(LINES, (4, 16), strict=False):
        mine = list(rates([n], steps))
        found += mine
        across = [r.agents * r.steps for r in mine]
        axes.plot(across, [r.value for r in mine], "o-", color=colour, label=f"ring of {n}")
    across = sorted(r.agents * r.steps for r in found)
    first = min(found, key=lambda r: r.agents * r.steps)
    line = [first.value * math.sqrt(across[0] / a) for a in across]
    axes.plot(across, line, ls=":", color=EDGE, label="1/√(NK)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"Corollary 1's rate: exponent {slope(found):.2f}", loc="left", fontsize=11)
    axes.set_xlabel("agents times steps, NK")
    axes.set_ylabel("mean of ‖∇F(x̄)‖²")
    axes.legend(frameon=False, fontsize=8)
