"""BatchNorm: each agent's running statistics in training, averaging, files and placements."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import parley
from parley.cluster.heal import Position
from parley.compute import kernels
from parley.compute.choose import build
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.compute.trial import tried
from parley.data import Samples, Transform
from parley.data.batches import Batches
from parley.errors import BadValue
from parley.store import checkpoint
from parley.training.statistics import estimated
from parley.wire.local import Local
from parley.wire.placement import spread

AGENTS, SAMPLES = 3, 20


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2),
    )  # fmt: skip


def data(agents: int = AGENTS) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    made = []
    for agent in range(agents):
        targets = torch.arange(SAMPLES) % 2
        inputs = torch.randn(SAMPLES, 1, 4, 4, generator=random) * (1 + agent) + agent
        made.append((inputs + targets[:, None, None, None], targets))
    return made


def trained(model: Any = net, agents: int = AGENTS, **options: Any) -> parley.Result:
    chosen: dict[str, Any] = {"algorithm": "ngc", "epochs": 2, "batch": 8, "lr": 0.05}
    return parley.train(model, data(agents), progress=False, **{**chosen, **options})


def test_one_agent_trains_as_any_torch_loop_does() -> None:
    epochs, batch, lr = 3, 8, 0.1
    result = trained(agents=1, topology="full", algorithm="dpsgd", epochs=epochs, lr=lr,
                     dtype="float64")  # fmt: skip
    [(inputs, targets)] = data(1)
    model = net().double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    samples = Samples(inputs, targets)
    batches = Batches([samples], [0], batch, Transform(), 0, dtype=torch.float64)
    for step in range(epochs * 3):
        drawn = batches.at(step)
        n = drawn.sizes[0]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(drawn.inputs[0, :n]), drawn.targets[0, :n]).backward()
        optimizer.step()
    expected = model.state_dict()
    for name, value in result.model(0).state_dict().items():
        assert torch.allclose(value, expected[name], atol=1e-9), name
    assert int(expected["1.num_batches_tracked"]) == 9


def test_gradients_of_neighbours_models_leave_no_trace() -> None:
    # D-PSGD computes none, NGC two in every step; after one step the models were the same.
    once = {"epochs": 1, "batch": SAMPLES}
    plain, crossing = (trained(algorithm=name, **once) for name in ("dpsgd", "ngc"))
    for agent in range(AGENTS):
        ours, theirs = (r.model(agent).state_dict() for r in (plain, crossing))
        assert torch.equal(ours["1.running_mean"], theirs["1.running_mean"])
        assert int(ours["1.num_batches_tracked"]) == int(theirs["1.num_batches_tracked"]) == 1
        inputs = data()[agent][0]
        of_batch = net()[0](inputs).mean((0, 2, 3))
        assert torch.allclose(ours["1.running_mean"], 0.1 * of_batch, atol=1e-5)


def test_statistics_stay_home_or_are_averaged_and_counted() -> None:
    local, mixed = (trained(buffers=how, topology="full") for how in ("local", "mixed"))
    statistics = 4 + 4 + 1 + 5 + 5 + 1
    steps = local.summary["step"]
    more = mixed.summary["bytes_models"] - local.summary["bytes_models"]
    assert more == steps * (AGENTS - 1) * (4 * statistics + 32)
    assert torch.equal(local.x_ND, mixed.x_ND)  # training itself does not see them
    [means, averaged] = [
        torch.stack([r.model(a).state_dict()["1.running_mean"] for a in range(AGENTS)])
        for r in (local, mixed)
    ]
    assert (means[1:] - means[:1]).abs().max() > 0.1
    # Everybody hears everybody with the same weights, so all end with the same.
    assert torch.allclose(averaged, averaged[:1].expand(AGENTS, -1), atol=1e-5)


@pytest.mark.parametrize("name", ["dpsgd", "proxskip", "fedavg"])
def test_statistics_are_averaged_when_models_are(name: str) -> None:
    """After every third step, or whenever ProxSkip's coin says so."""
    options: dict[str, Any] = {"algorithm": name, "local_steps": 3, "topology": "full"}
    local, mixed = (trained(buffers=how, **options) for how in ("local", "mixed"))
    algorithm = local.experiment.algorithm
    times = sum(algorithm.averages(0, step) for step in range(local.summary["step"]))
    assert 0 < times < local.summary["step"]
    more = mixed.summary["bytes_models"] - local.summary["bytes_models"]
    assert more == times * (AGENTS - 1) * (4 * (4 + 4 + 1 + 5 + 5 + 1) + 32)


def test_the_averages_statistics_are_those_of_all_data_together() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    random = torch.Generator().manual_seed(3)
    each = [
        Samples(torch.randn(8, 3, generator=random) * (a + 1) + 5 * a, torch.arange(8) % 2)
        for a in range(4)
    ]
    task = Task(model)
    batches = Batches(each, range(4), 4, Transform(), 0)
    transport = Local(spread(parley.ring(4), 1))
    b_AS = task.layout.start(task.start()).expand(4, -1).clone()
    b_AS[:, -1] = torch.tensor([2.0, 4.0, 6.0, 8.0])
    b_S = estimated(LoopEngine(task), task.start(), b_AS, batches, transport)
    found = task.layout.tensors(b_S)
    everything = torch.cat([samples.inputs for samples in each])
    assert torch.allclose(found["0.running_mean"], everything.mean(0), atol=1e-5)
    # Batches of 4 have variances over 3; between batches and agents nothing is corrected.
    biased = everything.var(0, correction=0)
    assert bool((found["0.running_var"] >= biased - 1e-4).all())
    assert torch.allclose(found["0.running_var"], biased, rtol=0.15)
    assert int(found["0.num_batches_tracked"]) == 5
    used = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    used.load_state_dict(task.module(torch.cat([task.start(), b_S])).state_dict())
    outputs = used.eval()[0](everything)
    assert torch.allclose(outputs.mean(0), torch.zeros(3), atol=1e-4)


def test_a_long_dataset_is_not_passed_over_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from parley.training import statistics

    monkeypatch.setattr(statistics, "ESTIMATED", 8)
    task = Task(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))
    seen = []
    monkeypatch.setattr(
        task, "moments", lambda x, b, inputs: seen.append(len(inputs)) or b.double()
    )
    samples = [Samples(torch.randn(n, 1), torch.zeros(n, dtype=torch.int64)) for n in (3, 100)]
    batches = Batches(samples, range(2), 4, Transform(), 0)
    b_AS = task.layout.start(task.start()).expand(2, -1)
    estimated(LoopEngine(task), task.start(), b_AS, batches, Local(spread(parley.ring(2), 1)))
    assert sorted(seen) == [3, 4, 4]


@pytest.mark.parametrize("algorithm", ["dpsgd", "ngc", "ngc as run"])
def test_the_compiled_kernels_follow_what_the_loop_follows(algorithm: str) -> None:
    """As run, gradients are taken at other models than those whose statistics are followed."""
    if not kernels.available():
        pytest.skip(kernels.reason())
    at = {"gradient_at": "mixed"} if "run" in algorithm else {}
    options: dict[str, Any] = {"algorithm": algorithm.split()[0], "epochs": 3, **at}
    fused, loop = (trained(engine=engine, **options) for engine in ("fused", "loop"))
    torch.testing.assert_close(fused.models_NE, loop.models_NE, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fused.mean_E, loop.mean_E, rtol=1e-3, atol=1e-4)
    for name in ("loss", "accuracy_mean_model", "accuracy_own"):
        assert fused.summary[name] == pytest.approx(loop.summary[name], rel=1e-3)


def test_two_workers_give_the_same_to_the_bit(tmp_path: Path) -> None:
    engine = "fused" if kernels.available() else "loop"
    one = trained(workers=1, buffers="mixed", engine=engine, out=tmp_path / "one")
    two = trained(workers=2, buffers="mixed", engine=engine, out=tmp_path / "two")
    assert one.records[-1]["accuracy_agents"] == two.records[-1]["accuracy_agents"]
    assert torch.equal(one.models_NE, two.models_NE)
    for name in ("model", "agents/agent-0", "agents/agent-2"):
        ours, theirs = (load_file(tmp_path / run / f"{name}.safetensors") for run in ("one", "two"))
        assert list(ours) == list(theirs) and "1.running_var" in ours
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_run_that_is_resumed_ends_the_same(tmp_path: Path) -> None:
    straight = trained(epochs=3, out=tmp_path / "straight")
    trained(epochs=2, out=tmp_path / "resumed")
    resumed = trained(epochs=3, out=tmp_path / "resumed", resume=True)
    assert torch.equal(straight.models_NE, resumed.models_NE)
    assert torch.equal(straight.mean_E, resumed.mean_E)
    ours, theirs = (
        load_file(tmp_path / run / "model.safetensors") for run in ("straight", "resumed")
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    # What a worker that was away comes back with:
    position = Position.saved(tmp_path / "resumed", [2, 0], lambda epoch: epoch)
    assert torch.equal(position.b_AS, resumed.models_NE[[2, 0], resumed.task.size :])
    assert checkpoint.models(tmp_path / "resumed", range(AGENTS)).b_AS.shape == (AGENTS, 20)


def test_the_written_model_does_what_was_recorded(tmp_path: Path) -> None:
    result = trained(out=tmp_path / "run", epochs=3)
    model = parley.load(tmp_path / "run").model(net)
    inputs, targets = (torch.cat(parts) for parts in zip(*data(), strict=True))
    right = (model(inputs).argmax(1) == targets).double().mean()
    assert float(right) == pytest.approx(result.summary["accuracy_mean_model"])
    np.save(tmp_path / "one.npy", inputs[0].numpy())
    [answer] = parley.load(tmp_path / "run").predict(tmp_path / "one.npy", build=net)
    p = model(inputs[:1]).detach().double().softmax(1)[0]
    assert answer.probabilities["1"] == pytest.approx(float(p[1]))


def test_engines_that_cannot_are_refused_with_the_reason() -> None:
    from parley.compute.choose import candidates
    from parley.compute.compiled import supports

    task = Task(net())
    task = tried(task, "net", torch.randn(4, 1, 4, 4), torch.tensor([0, 1, 0, 1]), 2)
    with pytest.raises(BadValue, match="engine: 'stacked'"):
        build("stacked", task)
    assert "loop" in candidates(task, (1, 4, 4)) and supports(task, (1, 4, 4)) == ""


class ByHand(nn.Module):
    """Normalises by the batch in code of its own, without a layer that would show it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        """As in training, always."""
        return functional.batch_norm(self.linear(x.flatten(1)), None, None, training=True)


@pytest.mark.parametrize("model", [net, ByHand])
def test_a_batch_of_one_is_refused_before_training(model: Callable[[], nn.Module]) -> None:
    def one_more() -> list[tuple[Tensor, Tensor]]:
        (inputs, targets), *rest = data()
        return [(torch.cat([inputs, inputs[:5]]), torch.cat([targets, targets[:5]])), *rest]

    with pytest.raises(BadValue, match="agent 0 has 25 samples, so one batch has a single sample"):
        parley.train(model, one_more(), batch=8, epochs=1, progress=False)
    parley.train(model, one_more(), batch=7, epochs=1, progress=False)


class Counting(nn.Module):
    """A model that keeps something between batches that Parley does not follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        out: Tensor = self.linear(x.flatten(1))
        return out


class Unmoved(nn.Sequential):
    """A model whose norm goes by the statistics that it was given with."""

    def train(self, mode: bool = True) -> "Unmoved":
        super().train(mode)
        self[1].eval()
        return self


def test_norms_that_are_not_trained_are_refused() -> None:
    with pytest.raises(BadValue, match=r"keeps layer 1 \(BatchNorm1d\) in evaluation mode"):
        trained(lambda: Unmoved(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 2)))


def test_hooks_of_parameters_are_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    model[1].weight.register_hook(lambda g: g * 0)
    with pytest.raises(BadValue, match=r"parameter 1\.weight has a hook"):
        trained(lambda: model)


class Dropped(nn.Module):
    """A model whose author forgot to say when."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(nn.functional.dropout(x.flatten(1)))
        return out


def test_dropout_in_use_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    trained(Dropped)
    assert "draws random numbers when it is used" in caplog.text


def test_other_buffers_that_training_changes_are_refused() -> None:
    with pytest.raises(BadValue, match="training changes its buffer 'seen'"):
        trained(Counting)
    with pytest.raises(BadValue, match="keeps no running statistics"):
        trained(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16, track_running_stats=False),
                                      nn.Linear(16, 2)))  # fmt: skip
    with pytest.raises(BadValue, match="its first operation changes the inputs in place"):
        trained(lambda: nn.Sequential(nn.LeakyReLU(inplace=True), nn.Flatten(), nn.Linear(16, 2)))
