"""Update rules on one agent are the optimizers that everyone knows; and what their options mean."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parley import graphs
from parley.algorithms import Adam, AdamW, Algorithm, Clip, Clustering, Lion, Recipe, build
from parley.errors import BadValue
from parley.experiment import Experiment
from tests import small

STEPS = 50


def by_torch(
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    groups: bool = False,
    clip: Callable[[list[Tensor]], object] | None = None,
) -> Tensor:
    """The same batches and learning rates, by an optimizer of torch."""
    placement = small.hood(graphs.ring(1)).placement
    source, net = small.batches(placement), small.net().double()
    with_decay = [p for p in net.parameters() if p.ndim > 1]
    without = [p for p in net.parameters() if p.ndim == 1]
    parameters: list[dict[str, Any]] = [{"params": list(net.parameters())}]
    if groups:
        parameters = [{"params": with_decay}, {"params": without, "weight_decay": 0.0}]
    optimizer = make(parameters)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = small.rate(step)
        batch = source.at(step)
        n = batch.sizes[0]
        optimizer.zero_grad()
        outputs = net(batch.inputs[0, :n])
        nn.functional.cross_entropy(outputs, batch.targets[0, :n]).backward()  # type: ignore[no-untyped-call]
        if clip:
            clip(list(net.parameters()))
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def by_parley(algorithm: Algorithm) -> Tensor:
    iterates, _ = small.trajectory(algorithm, small.hood(graphs.ring(1)), STEPS)
    assert (iterates[-1] - iterates[0]).abs().max() > 0.05
    return iterates[-1][0]


@pytest.mark.parametrize(
    "algorithm, make, groups",
    [
        (
            build("dpsgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
            lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, nesterov=True, weight_decay=0.1),
            False,
        ),
        (
            build("dpsgd", {"nesterov": True, "weight_decay": 0.1, "decay_on": "weights"}),
            lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.1),
            True,
        ),
        (
            build("dpsgd+adam", {"weight_decay": 0.1}),
            lambda p: torch.optim.Adam(p, lr=1.0, weight_decay=0.1),
            False,
        ),
        (
            build("ngc+adamw", {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6}),
            lambda p: torch.optim.AdamW(p, lr=1.0, betas=(0.8, 0.99), eps=1e-6),
            False,
        ),
        (
            build("dpsgd+adamw", {"weight_decay": 0.3, "decay_on": "weights"}),
            lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.3),
            True,
        ),
    ],
    ids=["nesterov", "groups of sgd", "adam", "adamw", "groups of adamw"],
)
def test_on_one_agent_it_is_torchs(algorithm: Algorithm, make: Any, groups: bool) -> None:
    torch.testing.assert_close(by_parley(algorithm), by_torch(make, groups), rtol=0, atol=1e-9)


def test_heavy_ball_is_torchs_while_the_rate_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parley's form carries the rate along in its velocity; torch's does not."""
    monkeypatch.setattr(small, "rate", lambda step: 0.1)
    expected = by_torch(lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9))
    got = by_parley(build("dpsgd", {"momentum": 0.9}))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("by", ["norm", "value"])
def test_clipping_is_torchs(by: str) -> None:
    # torch adds 1e-6 to the norm before it divides by it, hence the tolerance there.
    clip: Any = {
        "norm": lambda ps: nn.utils.clip_grad_norm_(ps, 0.2),
        "value": lambda ps: nn.utils.clip_grad_value_(ps, 0.05),
    }[by]
    bound = {"norm": 0.2, "value": 0.05}[by]
    got = by_parley(build("dpsgd+clip", {"clip": bound, "clip_by": by}))
    expected = by_torch(lambda p: torch.optim.SGD(p, lr=1.0), clip=clip)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 if by == "norm" else 1e-9)
    free = by_parley(build("dpsgd", {}))
    assert (got - free).abs().max() > 0.1


@pytest.mark.parametrize("by, second", [("norm", [1.2, 1.6]), ("value", [2.0, 2.0])])
def test_gradients_within_the_bound_are_left_alone(by: Any, second: list[float]) -> None:
    g_AD = torch.tensor([[0.6, 0.8], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    clipped_AD = Clip(clip=2.0, clip_by=by).apply(g_AD)
    expected_AD = torch.tensor([[0.6, 0.8], second, [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(clipped_AD, expected_AD, rtol=0, atol=1e-15)


def test_lion_is_its_loop() -> None:
    """Entry by entry, as the paper has it."""
    source, net = small.batches(small.hood(graphs.ring(1)).placement), small.net().double()
    parameters = list(net.parameters())
    mean = [torch.zeros_like(p) for p in parameters]
    for step in range(STEPS):
        batch = source.at(step)
        n, eta = batch.sizes[0], small.rate(step)
        net.zero_grad()
        outputs = net(batch.inputs[0, :n])
        nn.functional.cross_entropy(outputs, batch.targets[0, :n]).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for p, m in zip(parameters, mean, strict=True):
                assert p.grad is not None
                flat, g, running = p.view(-1), p.grad.view(-1), m.view(-1)
                for e in range(len(flat)):
                    between = 0.9 * float(running[e]) + (1 - 0.9) * float(g[e])
                    sign = (between > 0) - (between < 0)
                    flat[e] -= eta * (sign + 0.02 * float(flat[e]))
                    running[e] = 0.99 * float(running[e]) + (1 - 0.99) * float(g[e])
    expected = torch.cat([p.detach().flatten() for p in parameters])
    got = by_parley(build("dpsgd+lion", {"weight_decay": 0.02}))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


def test_sam_with_no_distance_is_the_gradient_itself() -> None:
    near, far = (by_parley(build("dpsgd+sam", {"rho": rho})) for rho in (1e-12, 0.3))
    plain = by_parley(build("dpsgd", {}))
    torch.testing.assert_close(near, plain, rtol=0, atol=1e-8)
    assert (far - plain).abs().max() > 1e-2


class TestNames:
    @pytest.mark.parametrize(
        "typed, name, label",
        [
            ("dpsgd+adamw", "dpsgd+adamw", "D-PSGD + AdamW"),
            ("adamw", "dpsgd+adamw", "D-PSGD + AdamW"),
            ("adamw+ngc", "ngc+adamw", "NGC + AdamW"),
            ("dpsgd+clip+sam+lion", "dpsgd+sam+clip+lion", "D-PSGD + SAM + clipping + Lion"),
            ("adamw+sign", "adamw+choco+sign", "AdamW + CHOCO + sign"),
        ],
    )
    def test_one_name_for_each(self, typed: str, name: str, label: str) -> None:
        experiment = Experiment.of(algorithm=typed)
        assert (experiment.algorithm.name, experiment.algorithm.label) == (name, label)
        assert Experiment.from_toml(experiment.to_toml()) == experiment

    def test_parts_in_python_are_the_same(self) -> None:
        made = Recipe(gradient=Clustering(alpha=0.5), clipping=Clip(clip=2.0), update=AdamW())
        assert made == build("ngc+clip+adamw", {"alpha": 0.5, "clip": 2.0})
        assert made.name == "ngc+clip+adamw"
        assert Recipe(update=Lion()).name == "dpsgd+lion"
        assert Recipe(update=Adam(decoupled=True)) != Recipe(update=AdamW(weight_decay=0.0))

    @pytest.mark.parametrize(
        "name, words",
        [
            ("dpsgd+ngc", "dpsgd means own gradients with gossip, and ngc is another"),
            ("dpsgd+choco", "and choco is another choice"),
            ("adam+adamw", "adam and adamw are both the update rule"),
            ("ngc+sam", "ngc and sam are both the gradient rule"),
            ("dpsgd+adamm", "did you mean 'adam'"),
            ("dmsgd+adamw", r"dmsgd is an algorithm of its own, not a part\); valid: dmsgd alone"),
            ("sgp+lion", r"a whole recipe, push-sum\); valid: push-sum\+lion"),
        ],
    )
    def test_what_does_not_fit(self, name: str, words: str) -> None:
        with pytest.raises(BadValue, match=words):
            build(name, {})

    def test_options_are_the_parts(self) -> None:
        with pytest.raises(BadValue, match=r"momentum: 0.9 .*dpsgd\+adamw has no such option"):
            build("dpsgd+adamw", {"momentum": 0.9})
        with pytest.raises(BadValue, match=r"beta1: 1.0 is not valid; valid: .*from 0 to below 1"):
            build("dpsgd+adamw", {"beta1": 1.0})
