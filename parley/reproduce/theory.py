"""The paper's convergence theory: Theorem 1's step sizes, and its lemmas and rate on quadratics.

Theorem 1 needs a step size η with

    (1 - β)² / (βL)  <  η  ≤  [√(4s² + 6s(1 - β)²) - 2s] / (6L),    s = 1 - √ρ,

and there is none: the upper end is at most (1 - β)² / (4L), because √(a² + b) ≤ a + b/(2a), while
the lower end is at least (1 - β)² / L, four times that. The lower end comes from asking for C1 > 0,
with which the bound is divided.

The lemmas are checked on quadratics, f_i(x) = ½ (x - b_i)ᵀ A_i (x - b_i) with a diagonal A_i, where
everything that they speak of is known. An agent's samples are noisy copies of b_i, and NGC is the
real one: algorithm, neighbourhood, transport and batches are those that train networks.

Axes: N agents, K steps, D parameters, n samples of an agent.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from parley.algorithms import NGC
from parley.compute.engine import Engine
from parley.compute.task import Task
from parley.data import Batch, Batches, Samples, Transform
from parley.errors import BadValue
from parley.graphs import Topology, full, ring, torus
from parley.neighbourhood import Neighbourhood
from parley.results import draw
from parley.wire.placement import spread
from parley.wire.transport import Local

Values = NDArray[np.float64]

WHY_EMPTY = (
    "empty for every graph, L and β: the upper end is at most (1-β)²/(4L), "
    "the lower end at least (1-β)²/L"
)


def root_rho(topology: Topology) -> float:
    """√ρ: the second largest modulus of an eigenvalue of the weights.

    >>> round(root_rho(ring(5)), 4), root_rho(full(4))
    (0.5393, 0.0)
    """
    return 1 - topology.spectral_gap


@dataclass(frozen=True)
class StepSizes:
    """The interval of Theorem 1.

    >>> sizes = StepSizes.of(ring(10), smoothness=1.0, momentum=0.9)
    >>> print(f"{sizes.lower:.5f} {sizes.upper:.5f} {sizes.empty}")
    0.01111 0.00243 True
    """

    lower: float
    """η must be larger."""
    upper: float
    """η must not be larger."""
    cap: float
    """What the upper end never exceeds, whatever the graph: (1 - β)² / (4L)."""

    @classmethod
    def of(cls, topology: Topology, smoothness: float, momentum: float) -> "StepSizes":
        """For a graph, L and β."""
        _check(smoothness, momentum)
        square, s = (1 - momentum) ** 2, 1 - root_rho(topology)
        upper = (math.sqrt(4 * s * s + 6 * s * square) - 2 * s) / (6 * smoothness)
        lower = square / (momentum * smoothness) if momentum else math.inf
        return cls(lower, upper, square / (4 * smoothness))

    @property
    def empty(self) -> bool:
        """Whether no step size fits."""
        return self.lower >= self.upper


class Constants(NamedTuple):
    """C1 to C5 of Theorem 1. C2 to C5 are divided by C1, which has to be positive."""

    c1: float
    c2: float
    c3: float
    c4: float
    c5: float

    @classmethod
    def of(cls, lr: float, smoothness: float, momentum: float) -> "Constants":
        """For η, L and β (above 0: C1 and C3 divide by it).

        >>> Constants.of(lr=0.1, smoothness=1.0, momentum=0.9).c1 > 0  # above the upper end, too
        True
        """
        _check(smoothness, momentum)
        if not lr > 0:
            raise BadValue("lr", lr, "a number above 0")
        if not momentum:
            raise BadValue("momentum", momentum, "a number above 0", "the constants divide by it")
        η, L, β = lr, smoothness, momentum
        rest = 1 - β
        c1 = (η / rest - rest / (β * L)) / 2
        if not c1:
            return cls(0.0, math.inf, math.inf, math.inf, math.inf)
        return cls(
            c1,
            (β * L * η**2 / (2 * rest**3) + η**2 * L / rest**2) / c1,
            rest * L / (2 * β) / c1,
            η**2 * β * L / (2 * rest**3) / c1,
            η * L**2 / (2 * rest) / c1,
        )

    def bound(
        self, lr: float, momentum: float, topology: Topology, steps: int,
        gap: float, sigma: float, zeta: float,
    ) -> float:  # fmt: skip
        """The right side of Theorem 1, for F(x₀) - F* = `gap`. It bounds nothing: see WHY_EMPTY."""
        η, rest, s = lr, 1 - momentum, 1 - root_rho(topology)
        noise = sigma**2 / topology.agents + zeta**2
        first = gap / (self.c1 * steps)
        second = (10 * self.c2 + 10 * self.c3 * (η * momentum) ** 2 / rest**4 + 4 * self.c4) * noise
        return first + second + self.c5 * 14 * η**2 * (sigma**2 + zeta**2) / (rest * s) ** 2


def _check(smoothness: float, momentum: float) -> None:
    if not 0 < smoothness < math.inf:
        raise BadValue("smoothness", smoothness, "a number above 0")
    if not 0 <= momentum < 1:
        raise BadValue("momentum", momentum, "a number from 0 to below 1")


class Point(nn.Module):
    """The model: a point. A sample is a centre and a curvature for each coordinate."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x_D = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        """√a (x - b), whose half square is the loss."""
        centre, curvature = inputs.chunk(2, -1)
        return curvature.sqrt() * (self.x_D - centre)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """½ ‖·‖² of every sample."""
    return outputs.square().sum(-1) / 2


class QuadraticEngine(Engine):
    """Gradients of `Point` in closed form, A (x - b): ten times as fast as the general engines."""

    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient of each pair, as `Engine.gradients` says."""
        index = torch.as_tensor(rows)
        weights_PB1 = batch.weights[index][..., None]
        centre_PBD, curvature_PBD = batch.inputs[index].chunk(2, -1)
        offset_PBD = x_PD[:, None] - centre_PBD
        g_PBD = curvature_PBD * offset_PBD
        return (weights_PB1 * g_PBD * offset_PBD).sum((1, 2)) / 2, (weights_PB1 * g_PBD).sum(1)


@dataclass(frozen=True)
class Quadratics:
    """Agents with different quadratics: what the lemmas speak of is known of them."""

    centres_ND: Values
    """b_i."""
    curvatures_ND: Values
    """Diagonals of A_i, from above 0 to L."""
    noise: float
    """Standard deviation of each coordinate of a sample about b_i."""

    @classmethod
    def draw(
        cls,
        agents: int,
        size: int = 20,
        heterogeneity: float = 1.0,
        noise: float = 1.0,
        curvature_spread: float = 0.0,
        seed: int = 0,
    ) -> "Quadratics":
        """At random, with ζ = `heterogeneity` if the curvatures do not differ.

        >>> round(Quadratics.draw(6, heterogeneity=2.0).zeta(), 6)
        2.0
        """
        rng = np.random.default_rng(seed)
        a_D = np.linspace(0.2, 1.0, size)
        factor_ND = 1 - curvature_spread * rng.random((agents, size))
        b_ND = rng.standard_normal((agents, size))
        b_ND -= b_ND.mean(0)
        largest = max(np.linalg.norm(a_D * b_D) for b_D in b_ND)
        # A common part that all agents agree on: the way to the minimum.
        common_D = np.full(size, 2 / math.sqrt(size))
        return cls(common_D + heterogeneity / largest * b_ND, a_D * factor_ND, noise)

    @property
    def agents(self) -> int:
        """N."""
        return len(self.centres_ND)

    @property
    def smoothness(self) -> float:
        """L."""
        return float(self.curvatures_ND.max())

    @property
    def sigma(self) -> float:
        """σ: the root of the variance of a one-sample gradient, of the noisiest agent."""
        return self.noise * float(np.linalg.norm(self.curvatures_ND, axis=1).max())

    def zeta(self, at_KND: Values | None = None) -> float:
        """ζ: the largest ‖∇f_i - ∇F‖ at the points given; with one curvature all are alike."""
        points = np.zeros((1, self.centres_ND.shape[1])) if at_KND is None else at_KND
        points = points.reshape(-1, points.shape[-1])
        worst = 0.0
        mean_PD = self.slope(points)
        for i in range(self.agents):
            own_PD = self.curvatures_ND[i] * (points - self.centres_ND[i])
            worst = max(worst, float(np.linalg.norm(own_PD - mean_PD, axis=1).max()))
        return worst

    def slope(self, points_PD: Values) -> Values:
        """∇F at each point."""
        a_D = self.curvatures_ND.mean(0)
        pull_D = (self.curvatures_ND * self.centres_ND).mean(0)
        slope_PD: Values = points_PD * a_D - pull_D
        return slope_PD

    def samples(self, n: int, seed: int) -> list[Samples]:
        """Every agent's noisy copies of its centre, whose mean is the centre exactly."""
        rng = np.random.default_rng([seed, 17])
        made = []
        for b_D, a_D in zip(self.centres_ND, self.curvatures_ND, strict=True):
            noise_nD = rng.standard_normal((n, len(b_D)))
            noise_nD -= noise_nD.mean(0)
            noise_nD *= self.noise / np.sqrt(np.square(noise_nD).mean(0))  # σ exactly, too
            pairs = np.concatenate([b_D + noise_nD, np.broadcast_to(a_D, noise_nD.shape)], 1)
            made.append(Samples(torch.from_numpy(pairs), torch.zeros(n, dtype=torch.int64)))
        return made


@dataclass(frozen=True)
class Trace:
    """What happened in a run of NGC."""

    x_KND: Values
    """Models before every step."""
    g_KND: Values
    """The agents' own gradients g^i in every step."""
    clustered_KND: Values
    """NGC's g̃^i in every step."""


def trace(
    problem: Quadratics,
    topology: Topology,
    steps: int,
    lr: float,
    momentum: float = 0.0,
    batch: int = 1,
    seed: int = 0,
) -> Trace:
    """NGC with α = 1 and γ = 1, as printed, from a common start at 0."""
    size = problem.centres_ND.shape[1]
    task = Task(Point(size), half_square, dtype=torch.float64)
    placement = spread(topology, 1)
    hood = Neighbourhood(Local(placement), QuadraticEngine(task, seed))
    samples = problem.samples(batch * min(steps, 1000), seed)
    batches = Batches(samples, placement.agents, batch, Transform(), seed, dtype=torch.float64)
    algorithm = NGC(alpha=1.0, momentum=momentum)
    state = algorithm.init(task.start().expand(topology.agents, -1).clone(), hood)
    x, g, clustered = [], [], []
    for step in range(steps):
        data, x_AD, v_AD = batches.at(step), state.x_AD, state.update.v_AD
        state = algorithm.step(state, hood, data, lr).state
        x.append(x_AD.numpy())
        # A sample's gradient is A (x - sample): the own one needs no second pass.
        a_AD = torch.from_numpy(problem.curvatures_ND)
        mean_AD = (data.weights[..., None] * data.inputs[..., :size]).sum(1)
        g.append((a_AD * (x_AD - mean_AD)).numpy())
        clustered.append(((momentum * v_AD - state.update.v_AD) / lr).numpy())
    return Trace(np.stack(x), np.stack(g), np.stack(clustered))


class Check(NamedTuple):
    """Both sides of a bound, step by step or summed up to each step."""

    left_K: Values
    right_K: Values

    @property
    def holds(self) -> bool:
        """Whether the bound holds at every step."""
        return bool((self.left_K <= self.right_K * (1 + 1e-12)).all())


@dataclass(frozen=True)
class Lemmas:
    """The bounds, each with its left side averaged over runs."""

    mean_difference: Check
    """Lemma 1: E‖1/N Σ (g̃^i - g^i)‖² ≤ 4(σ²/N + ζ²)."""
    each_difference: Check
    """The last line of its proof, E‖g̃^i - g^i‖² ≤ 4(σ²/N + ζ²), for the worst agent. It does not
    follow, and for many agents with little heterogeneity it is false."""
    all_differences: Check
    """The lemma that is used for the consensus error: Σ E‖g̃^i - g^i‖² ≤ 4N(σ² + ζ²)."""
    consensus: Check
    """Lemma 2: the summed distance of the models from their mean."""


def lemmas(
    problem: Quadratics,
    topology: Topology,
    steps: int,
    lr: float,
    momentum: float = 0.0,
    runs: int = 5,
    seed: int = 0,
) -> Lemmas:
    """Checks the bounds on `runs` runs of NGC."""
    traces = [trace(problem, topology, steps, lr, momentum, seed=seed + run) for run in range(runs)]
    x_RKND = np.stack([t.x_KND for t in traces])
    difference_RKND = np.stack([t.clustered_KND - t.g_KND for t in traces])
    n, sigma, zeta = problem.agents, problem.sigma, problem.zeta(x_RKND)
    ones = np.ones(steps)

    mean = np.square(difference_RKND.mean(2)).sum(-1).mean(0)
    # Stationary, so that an expectation is a mean over steps as well.
    each = np.square(difference_RKND).sum(-1).mean(0)
    settled = each[steps // 2 :].mean(0).max()
    low = 4 * (sigma**2 / n + zeta**2)

    rest, s = 1 - momentum, 1 - root_rho(topology)
    centre_RKD = x_RKND.mean(2)
    apart_K = np.square(x_RKND - centre_RKD[:, :, None]).sum(-1).mean((0, 2))
    own_RKND = problem.curvatures_ND * (x_RKND - problem.centres_ND)
    slope_K = np.square(own_RKND.mean(2)).sum(-1).mean(0)
    up_to_K = np.arange(1, steps + 1)
    right_K = 14 * lr**2 * (sigma**2 + zeta**2) / (rest * s) ** 2 * up_to_K
    right_K = right_K + 6 * lr**2 / (rest**2 * s) * np.cumsum(slope_K)
    return Lemmas(
        Check(mean, low * ones),
        Check(settled * ones, low * ones),
        Check(each.sum(1), 4 * n * (sigma**2 + zeta**2) * ones),
        Check(np.cumsum(apart_K), right_K),
    )


class Rate(NamedTuple):
    """Mean of ‖∇F(x̄)‖² over a run, for so many agents and steps."""

    agents: int
    steps: int
    value: float


def rates(
    agents: Sequence[int], steps: Sequence[int], runs: int = 3, factor: float = 0.5
) -> Iterator[Rate]:
    """NGC on rings with η = factor·√(N/K) and ζ² falling as 1/√K, as Corollary 1 has it."""
    for n in agents:
        for k in steps:
            problem = Quadratics.draw(n, heterogeneity=2 * k**-0.25)
            values = []
            for run in range(runs):
                done = trace(problem, ring(n), k, factor * math.sqrt(n / k), seed=run)
                values.append(np.square(problem.slope(done.x_KND.mean(1))).sum(1).mean())
            yield Rate(n, k, float(np.mean(values)))


def slope(found: Sequence[Rate]) -> float:
    """The exponent p of value ∝ (NK)^p: -½ by Corollary 1.

    >>> slope([Rate(4, 100, 0.5), Rate(4, 400, 0.25)])
    -0.5
    """
    across = np.log([rate.agents * rate.steps for rate in found])
    return round(float(np.polyfit(across, np.log([rate.value for rate in found]), 1)[0]), 6)


def picture(path: str | Path, quick: bool = False) -> Path:
    """Four panels: the empty interval, Lemma 1, the consensus error, the rate."""
    out = draw.checked_path(path)
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    _draw_interval(panels[0, 0])
    _draw_lemma_1(panels[0, 1], steps=20 if quick else 100)
    _draw_consensus(panels[1, 0], steps=60 if quick else 300)
    _draw_rate(panels[1, 1], (64, 128) if quick else (125, 250, 500, 1000, 2000))
    for axes in panels.flat:
        axes.grid(color="#E3E7EB", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    return draw.save(figure, out)


def _draw_interval(axes: Axes) -> None:
    β_P = np.linspace(0.02, 0.98, 97)
    lower = [StepSizes.of(ring(10), 1.0, float(β)).lower for β in β_P]
    axes.plot(β_P, lower, color=draw.INK, label="η must be above")
    graphs = {"full, 10": full(10), "torus, 20": torus(20), "ring, 10": ring(10)}
    for colour, (name, graph) in zip(draw.LINES, graphs.items(), strict=False):
        upper = [StepSizes.of(graph, 1.0, float(β)).upper for β in β_P]
        axes.plot(β_P, upper, color=colour, label=f"and at most: {name}")
    axes.plot(β_P, (1 - β_P) ** 2 / 4, color=draw.EDGE, ls=":", label="(1-β)²/(4L), for any graph")
    axes.set_yscale("log")
    axes.set_title("Theorem 1's step sizes: there are none", loc="left", fontsize=11)
    axes.set_xlabel("momentum β")
    axes.set_ylabel("η · L")
    axes.legend(frameon=False, fontsize=8)


def _draw_lemma_1(axes: Axes, steps: int) -> None:
    agents = (4, 6, 8, 12, 20, 32)
    for colour, zeta in zip(draw.LINES, (0.0, 1.0), strict=False):
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
    for colour, momentum in zip(draw.LINES, (0.0, 0.9), strict=False):
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
    for colour, n in zip(draw.LINES, (4, 16), strict=False):
        mine = list(rates([n], steps))
        found += mine
        across = [r.agents * r.steps for r in mine]
        axes.plot(across, [r.value for r in mine], "o-", color=colour, label=f"ring of {n}")
    across = sorted(r.agents * r.steps for r in found)
    first = min(found, key=lambda r: r.agents * r.steps)
    line = [first.value * math.sqrt(across[0] / a) for a in across]
    axes.plot(across, line, ls=":", color=draw.EDGE, label="1/√(NK)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"Corollary 1's rate: exponent {slope(found):.2f}", loc="left", fontsize=11)
    axes.set_xlabel("agents times steps, NK")
    axes.set_ylabel("mean of ‖∇F(x̄)‖²")
    axes.legend(frameon=False, fontsize=8)
