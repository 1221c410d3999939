"""Local steps: what they leave alone, what they cost, and which methods stay exact with them."""

from typing import Any

import pytest
import torch

from parley import graphs
from parley.algorithms import (
    ALGORITHMS,
    D2,
    DPSGD,
    KGT,
    LED,
    Algorithm,
    DiLoCo,
    ExactDiffusion,
    GradientTracking,
    ProxSkip,
    build,
)
from parley.errors import BadValue
from tests import small
from tests.algorithms.test_methods import Quadratics


class TestIdentities:
    def test_kgt_with_one_local_step_is_gradient_tracking(self) -> None:
        topology = graphs.erdos_renyi(7, 0.4, seed=2)
        local, _ = small.trajectory(KGT(local_steps=1), small.hood(topology), 20)
        every, _ = small.trajectory(GradientTracking(), small.hood(topology), 20)
        assert (local[-1] - local[0]).abs().max() > 0.05
        torch.testing.assert_close(local[-1], every[-1], rtol=0, atol=1e-11)

    @pytest.mark.parametrize("other", [D2(), LED(local_steps=1), ProxSkip(local_steps=1)])
    def test_exact_diffusion_by_other_names(
        self, other: Algorithm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Exactly so while the rate stays: what LED keeps is in units of it."""
        monkeypatch.setattr(small, "rate", lambda step: 0.1)
        topology = graphs.star(6)
        one, _ = small.trajectory(ExactDiffusion(), small.hood(topology), 20)
        same, _ = small.trajectory(other, small.hood(topology), 20)
        assert (one[-1] - one[0]).abs().max() > 0.05
        torch.testing.assert_close(one[-1], same[-1], rtol=0, atol=1e-11)

    def test_diloco_without_an_outer_optimizer_averages_pairs(self) -> None:
        """With η_o = 1 and no momentum, φ⁺ is the mean of both ends' models."""
        topology = graphs.full(2)
        plain = DiLoCo(local_steps=4, outer_lr=1.0, outer_momentum=0.0, weight_decay=0.0)
        pairs, _ = small.trajectory(plain, small.hood(topology), 12)
        adam, _ = small.trajectory(
            build("dpsgd+adam", {"local_steps": 4}), small.hood(topology), 12
        )
        torch.testing.assert_close(pairs[-1], adam[-1], rtol=0, atol=1e-11)

    @pytest.mark.parametrize("name", ["dpsgd", "dpsgd+adamw", "choco", "sgp", "qgm"])
    def test_one_local_step_is_none(self, name: str) -> None:
        topology = graphs.ring(5)
        one, _ = small.trajectory(build(name, {"local_steps": 1}), small.hood(topology), 6)
        none, _ = small.trajectory(build(name, {}), small.hood(topology), 6)
        assert one[-1].equal(none[-1])

    def test_quasi_global_momentum_is_that_of_the_round(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With μ = 0 it is the mean direction of the last round; before, there is none."""
        monkeypatch.setattr(small, "rate", lambda step: 0.1 + 0.01 * step)
        options = {"local_steps": 4, "mu": 0.0, "momentum": 0.9, "nesterov": False}
        topology = graphs.ring(5)
        quasi, state = small.trajectory(build("qgm", options), small.hood(topology), 8)
        plain, _ = small.trajectory(DPSGD(local_steps=4), small.hood(topology), 8)
        for step in range(5):
            assert quasi[step].equal(plain[step])
        assert not quasi[5].allclose(plain[5])
        moved_AD = (quasi[4] - quasi[8]) / sum(0.1 + 0.01 * step for step in range(4, 8))
        torch.testing.assert_close(state.update.m_AD, moved_AD, rtol=0, atol=1e-12)


class TestHeterogeneousQuadratics:
    @pytest.mark.parametrize("algorithm", [KGT(), LED(), ProxSkip()], ids=lambda a: a.name)
    def test_exact_with_local_steps(self, algorithm: Algorithm) -> None:
        topology, problem = graphs.ring(6), Quadratics(6)
        algorithm.check(topology)
        x_AD = problem.run(algorithm, topology, 4000, 0.05).x_AD
        expected_AD = problem.optimum_D.expand_as(x_AD)
        torch.testing.assert_close(x_AD, expected_AD, rtol=0, atol=1e-8)

    def test_dpsgd_is_not(self) -> None:
        """Its bias grows with the number of local steps."""
        topology, problem = graphs.ring(6), Quadratics(6)
        off = [
            float((problem.run(DPSGD(local_steps=tau), topology, 4000, 0.05).x_AD
                   - problem.optimum_D).abs().max())
            for tau in (1, 4)
        ]  # fmt: skip
        assert off[0] > 0.1 and off[1] > 2 * off[0]


class TestWhatIsSent:
    @pytest.mark.parametrize(
        "name, kinds",
        [("dpsgd", 1), ("dpsgd+adamw", 1), ("qgm", 1), ("choco", 1), ("led", 1), ("kgt", 2)],
    )
    def test_a_round_sends_what_a_step_did(self, name: str, kinds: int) -> None:
        """τ local steps: a τ-th of the bytes, exactly."""

        def sent(tau: int) -> int:
            hood = small.hood(graphs.ring(5), torch.float32)
            small.trajectory(build(name, {"local_steps": tau}), hood, 12)
            counts = hood.transport.sent
            assert bool(counts["cross_gradients"].any()) == (kinds == 2)
            return int(counts["models"].sum() + counts["cross_gradients"].sum())

        assert sent(4) * 4 == sent(1)
        if name == "dpsgd":
            assert sent(1) == 12 * 5 * 2 * (32 + 4 * small.hood(graphs.ring(5)).task.size)

    def test_proxskip_sends_with_the_coin(self) -> None:
        hood = small.hood(graphs.ring(5), torch.float32)
        algorithm = ProxSkip(local_steps=3)
        small.trajectory(algorithm, hood, 30)
        times = sum(algorithm.averages(0, step) for step in range(30))
        assert 4 <= times <= 16
        assert hood.transport.sent["models"].tolist() == [times * 2 * (32 + 4 * hood.task.size)] * 5

    def test_pairs_send_two_models_each(self) -> None:
        hood = small.hood(graphs.full(2), torch.float32)
        small.trajectory(DiLoCo(local_steps=5), hood, 10)
        assert hood.transport.sent["models"].tolist() == [2 * 2 * (32 + 4 * hood.task.size)] * 2


class TestRefusals:
    @pytest.mark.parametrize(
        "name, why",
        [
            ("ngc", "ngc takes gradients at the neighbours' models, which every step has to send"),
            ("compcga", "compcga takes gradients at the neighbours' models"),
            ("tracking", "kgt tracks them over local steps"),
            ("beer", "kgt tracks them over local steps"),
            ("ngc+qgm", "ngc takes gradients at"),
            ("decentlam", "whole steps, averaging included"),
            ("ngc+adamw", "ngc takes gradients at"),
            ("d2", "led is d2 with local steps"),
            ("exact-diffusion", "led is it with local steps"),
            ("gut", "whole steps, averaging included"),
            ("dmsgd", "dpsgd with nesterov momentum takes local steps"),
            ("central", "fedavg averages after local steps"),
            ("skewscout", "it chooses by itself"),
        ],
    )
    def test_it_says_why(self, name: str, why: str) -> None:
        instead = "valid: an algorithm that can take local steps: dpsgd, qgm, "
        with pytest.raises(BadValue, match=rf"local_steps: 4 is not valid \(.*{why}.*; {instead}"):
            build(name, {"local_steps": 4})

    def test_averaging_first(self) -> None:
        with pytest.raises(BadValue, match="gradient_at=mixed averages before each step"):
            build("dpsgd", {"local_steps": 2, "gradient_at": "mixed"})

    @pytest.mark.parametrize("name", ALGORITHMS)
    def test_every_algorithm_takes_them_or_says_why_not(self, name: str) -> None:
        kind: Any = ALGORITHMS[name]
        assert ("local_steps" in kind.options()) == (not kind.no_local_steps)
