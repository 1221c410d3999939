"""Theorem 1's step sizes, and its lemmas and rate on quadratics with the real NGC."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.data import Batches, Transform
from parley.errors import BadValue
from parley.graphs import full, ring, torus
from parley.reproduce.theory import quadratics
from parley.reproduce.theory.bounds import Constants, StepSizes, root_rho
from parley.reproduce.theory.pictures import picture
from parley.reproduce.theory.quadratics import QuadraticEngine, Quadratics

GRAPHS = [ring(3), ring(20), full(5), torus(20)]


@given(st.sampled_from(GRAPHS), st.floats(1e-3, 1e3), st.floats(0, 0.999))
def test_the_interval_is_empty_for_the_reason_given(graph, smoothness, momentum) -> None:  # type: ignore[no-untyped-def]
    sizes = StepSizes.of(graph, smoothness, momentum)
    assert 0 < sizes.upper <= sizes.cap * (1 + 1e-6) < sizes.lower
    assert sizes.empty


def test_the_upper_end_solves_the_papers_condition() -> None:
    graph, L, β = ring(7), 3.0, 0.6
    η, s = StepSizes.of(graph, L, β).upper, 1 - root_rho(graph)
    left = 1 - 6 * η**2 * L**2 / ((1 - β) ** 2 * s) - 4 * L * η / (1 - β) ** 2
    assert left == pytest.approx(0, abs=1e-12)


def test_c1_changes_its_sign_at_the_lower_end() -> None:
    lower = StepSizes.of(ring(5), 2.0, 0.9).lower
    assert Constants.of(lower * 1.01, 2.0, 0.9).c1 > 0 > Constants.of(lower * 0.99, 2.0, 0.9).c1
    constants = Constants.of(2 * lower, 2.0, 0.9)
    assert all(c > 0 for c in constants)
    with pytest.raises(BadValue, match="divide by it"):
        Constants.of(0.1, 1.0, 0.0)
    with pytest.raises(BadValue, match="smoothness"):
        StepSizes.of(ring(5), 0.0, 0.9)


def test_the_problem_is_what_it_says() -> None:
    problem = Quadratics.draw(5, size=4, heterogeneity=0.7, noise=0.3)
    samples = problem.samples(200, seed=1)
    gradients = []
    for b_D, a_D, own in zip(problem.centres_ND, problem.curvatures_ND, samples, strict=True):
        noisy = own.inputs[:, :4].numpy()
        assert noisy.mean(0) == pytest.approx(b_D)
        square = np.square(a_D * (noisy - b_D)).sum(1).mean()
        assert square == pytest.approx(problem.sigma**2)
        gradients.append(a_D * (1.0 - b_D))  # at x = 1
    mean = problem.slope(np.ones((1, 4)))[0]
    assert max(np.linalg.norm(g - mean) for g in gradients) == pytest.approx(0.7)
    assert problem.smoothness == 1.0


def test_the_closed_form_is_the_gradient_of_the_module() -> None:
    problem = Quadratics.draw(3, size=6, curvature_spread=0.5)
    task = Task(quadratics.Point(6), quadratics.half_square, dtype=torch.float64)
    batches = Batches(problem.samples(10, 0), range(3), 4, Transform(), 0, dtype=torch.float64)
    batch, x_PD = batches.at(2), torch.randn(4, 6, dtype=torch.float64)
    for ours, theirs in zip(
        QuadraticEngine(task).gradients(x_PD, batch, [0, 2, 1, 1], [0, 1, 2, 0]),
        LoopEngine(task).gradients(x_PD, batch, [0, 2, 1, 1], [0, 1, 2, 0]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("zeta", [0.0, 1.0, 5.0])
def test_the_lemmas_hold(momentum: float, zeta: float) -> None:
    problem = Quadratics.draw(8, heterogeneity=zeta, noise=0.5, curvature_spread=zeta / 10)
    found = quadratics.lemmas(problem, ring(8), 60, lr=0.02, momentum=momentum, runs=3)
    assert found.mean_difference.holds
    assert found.all_differences.holds
    assert found.consensus.holds
    assert found.consensus.left_K[-1] > 0


def test_with_one_curvature_the_left_side_of_lemma_1_is_zero() -> None:
    # W is doubly stochastic: what one agent's gradient gains from a neighbour another one's loses.
    found = quadratics.lemmas(Quadratics.draw(6, heterogeneity=3.0), ring(6), 20, lr=0.1, runs=1)
    assert found.mean_difference.left_K.max() < 1e-25
    assert found.all_differences.left_K.min() > 0.1


def test_the_last_line_of_the_proof_is_false_for_many_agents() -> None:
    # On a ring without heterogeneity each agent's expected square is ⅔ σ², the bound is 4 σ²/N.
    problem = Quadratics.draw(30, heterogeneity=0.0)
    found = quadratics.lemmas(problem, ring(30), 40, lr=0.1, runs=3)
    assert found.each_difference.left_K[0] == pytest.approx(2 / 3 * problem.sigma**2, rel=0.3)
    assert not found.each_difference.holds


def test_the_rate_is_one_over_the_root_of_agents_times_steps() -> None:
    found = list(quadratics.rates([4, 16], [64, 256, 1024], runs=1))
    assert quadratics.slope(found) == pytest.approx(-0.5, abs=0.08)
    by_agents = [quadratics.slope([r for r in found if r.agents == n]) for n in (4, 16)]
    assert by_agents == pytest.approx([-0.5, -0.5], abs=0.12)
    # Linear speed-up: four times the agents do for four times the steps.
    few, many = found[1].value, found[3].value
    assert math.log(many / few) == pytest.approx(0, abs=0.35)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    assert picture(tmp_path / "theory.png", quick=True).stat().st_size > 10_000
    with pytest.raises(BadValue, match=r"\.png"):
        picture(tmp_path / "theory.jpg", quick=True)
