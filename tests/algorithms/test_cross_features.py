"""A loss on features, in one file outside the package: against loops, on workers, resumed."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import parley
from parley.graphs import Topology
from tests import small

EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIONS: dict[str, Any] = {
    "agents": 5, "lr": 0.1, "fraction": 0.1, "test_fraction": 0.2, "batch": 10,
    "gossip_rounds": 0, "engine": "loop", "progress": False,
}  # fmt: skip


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example, where workers find it too."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}:{Path(parley.__file__).parents[1]}")
    yield importlib.import_module("cross_features")
    del sys.modules["cross_features"]


def by_loops(
    topology: Topology, steps: int, momentum: float, gamma: float, at_m: float, at_d: float
) -> list[list[Tensor]]:
    """Agent by agent, sample by sample, with autograd through the whole loss."""
    hood = small.hood(topology)
    model, task, source = small.net().double(), hood.task, small.batches(hood.placement)
    n, W = topology.agents, topology.weights
    x = [task.start() for _ in range(n)]
    v = [torch.zeros_like(x_i) for x_i in x]
    iterates = [x]

    def hidden(x_D: Tensor, inputs: Tensor) -> Tensor:
        body = nn.Sequential(model[0], model[1])
        return functional_call(body, dict(list(task.parameters(x_D).items())[:2]), (inputs,))

    for k in range(steps):
        batch = source.at(k)
        data = [(batch.inputs[i, : batch.sizes[i]], batch.targets[i, : batch.sizes[i]])
                for i in range(n)]  # fmt: skip
        around = [[j for j, i_ in topology.edges if i_ == i] for i in range(n)]
        following = [[i_ for j, i_ in topology.edges if j == i] for i in range(n)]
        new = []
        for i in range(n):
            seen: dict[int, list[Tensor]] = {c: [] for c in range(small.CLASSES)}
            for j in [i, *following[i]]:
                hidden_nF = hidden(x[i], data[j][0])
                for sample, target in zip(hidden_nF, data[j][1].tolist(), strict=True):
                    seen[target].append(sample)
            x_D = x[i].clone().requires_grad_()
            inputs, targets = data[i]
            h = hidden(x_D, inputs)
            loss = nn.functional.cross_entropy(task.outputs(x_D, inputs), targets)
            for j in around[i]:
                loss = loss + at_m * (h - hidden(x[j], inputs)).square().mean()
            wanted = torch.stack([sum(seen[t]) / len(seen[t]) for t in targets.tolist()])
            loss = loss + at_d * (h - wanted).square().mean()
            v[i] = momentum * v[i] - small.rate(k) * torch.autograd.grad(loss, x_D)[0]
            mean = sum(float(W[i, j]) * x[j] for j in range(n))
            new.append(x[i] + v[i] + gamma * (mean - x[i]))
        x = new
        iterates.append(x)
    return iterates


@pytest.mark.parametrize("topology", [parley.ring(5), parley.star(4), parley.directed_ring(4)])
@pytest.mark.parametrize("weights", [(0.5, 0.0), (0.0, 0.8), (0.3, 2.0)])
def test_it_is_what_loops_compute(
    ours: Any, topology: Topology, weights: tuple[float, float]
) -> None:
    algorithm = ours.CrossFeatures(
        model_weight=weights[0], data_weight=weights[1], momentum=0.7, gamma=0.6
    )
    got, _ = small.trajectory(algorithm, small.hood(topology), 8)
    wanted = by_loops(topology, 8, 0.7, 0.6, *weights)
    for found_AD, expected in zip(got, wanted, strict=True):
        torch.testing.assert_close(found_AD, torch.stack(expected), rtol=0, atol=1e-11)
    plain, _ = small.trajectory(
        ours.CrossFeatures(model_weight=0, data_weight=0, momentum=0.7, gamma=0.6),
        small.hood(topology), 8,
    )  # fmt: skip
    assert (got[-1] - plain[-1]).abs().max() > 1e-3


def test_messages_back_are_sums_and_counts(ours: Any) -> None:
    hood = small.hood(parley.ring(5), torch.float32)
    small.trajectory(ours.CrossFeatures(), hood, 3)
    back, model = 32 + 4 * small.CLASSES * (6 + 1), 32 + 4 * hood.task.size
    assert hood.transport.sent["cross_gradients"].tolist() == [3 * 2 * back] * 5
    assert hood.transport.sent["models"].tolist() == [3 * 2 * model] * 5
    samples = sum(sum(small.batches(hood.placement).at(k).sizes) for k in range(3))
    assert hood.meter.samples == samples * (1 + 2)


NORMALISED = """
from torch import nn


def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10)
    )
"""


@pytest.mark.parametrize("model", ["cnn5", "normalised:net"])
def test_on_three_workers_and_resumed_it_has_the_same_bits(
    ours: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normalised.py").write_text(NORMALISED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    how = OPTIONS | {"algorithm": ours.CrossFeatures(), "model": model}
    one = parley.train(epochs=2, **how)
    three = parley.train(epochs=2, workers=3, **how)
    assert three.x_ND.equal(one.x_ND)
    last, other = one.records[-1], three.records[-1]
    assert last["bytes_cross_gradients"] == other["bytes_cross_gradients"] > 0
    out = tmp_path / "run"

    def stop(event: Any) -> None:
        if getattr(event, "epoch", 0) == 1:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        parley.train(epochs=2, out=out, watch=stop, **how)
    again = parley.train(epochs=2, out=out, resume=True, workers=3, **how)
    assert again.x_ND.equal(one.x_ND)
