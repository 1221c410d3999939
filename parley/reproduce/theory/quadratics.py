"""The lemmas and the rate, checked where every quantity in them is known.

The lemmas are checked on quadratics, f_i(x) = ½ (x - b_i)ᵀ A_i (x - b_i) with a diagonal A_i, where
every quantity in them is known. An agent's samples are noisy copies of b_i, and NGC is the real
one: algorithm, neighbourhood, transport and batches are the same as for training networks.

Axes: N agents, K steps, D parameters, n samples of an agent.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parley.algorithms import NGC
from parley.compute.engine import Engine
from parley.compute.task import Task
from parley.data import Batch, Batches, Samples, Transform
from parley.graphs import Topology, ring
from parley.neighbourhood import Neighbourhood
from parley.reproduce.theory.bounds import root_rho
from parley.wire.local import Local
from parley.wire.placement import spread

Values = NDArray[np.float64]


class Point(nn.Module):
    """The model: a point. A sample is a centre and a curvature for each coordinate."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x_D = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        """√a (x - b); half its square is the loss."""
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
    """Agents with different quadratics, for which every quantity in the lemmas is known."""

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
        # A common part that all agents agree on: the direction of the minimum.
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
        """ζ: the largest ‖∇f_i - ∇F‖ at the given points; any point if all curvatures agree."""
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
        """Every agent's noisy copies of its centre, whose mean is exactly the centre."""
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
        # A sample's gradient is A (x - sample): an agent's own needs no second pass.
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
    """The lemma used for the consensus error: Σ E‖g̃^i - g^i‖² ≤ 4N(σ² + ζ²)."""
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
    """Mean of ‖∇F(x̄)‖² over a run with these numbers of agents and steps."""

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
