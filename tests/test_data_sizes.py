"""Agents with different amounts of data: the length of epochs, whose loss counts, and sampling."""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import parley
from parley.data import Batches, Samples, Transform
from parley.data_sizes import Sizes
from parley.errors import BadValue
from parley.experiment import Experiment

COUNTS = (4, 9, 30, 17)
FEATURES = 3


@cache
def sites() -> list[tuple[Tensor, Tensor]]:
    """Linear questions to which every site has another answer, from another range of inputs."""
    draws = torch.Generator().manual_seed(0)
    made = []
    for agent, count in enumerate(COUNTS):
        inputs = torch.randn(count, FEATURES, generator=draws) * (1 + 0.2 * agent)
        answers = inputs @ torch.randn(FEATURES, generator=draws) + agent
        made.append((inputs, answers + 0.1 * torch.randn(count, generator=draws)))
    return made


def line() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(FEATURES, 1)


def closed_form(weights: list[float]) -> Tensor:
    """What minimises Σ_i w_i · (mean squared error at site i): the solution of linear equations."""
    left = torch.zeros(FEATURES + 1, FEATURES + 1, dtype=torch.float64)
    right = torch.zeros(FEATURES + 1, dtype=torch.float64)
    for weight, (inputs, answers) in zip(weights, sites(), strict=True):
        x = torch.cat([inputs, torch.ones(len(inputs), 1)], 1).double()
        left += weight * x.T @ x / len(x)
        right += weight * x.T @ answers.double() / len(x)
    return torch.linalg.solve(left, right)


def trained(objective: str, algorithm: str = "tracking", **options: Any) -> parley.Result:
    settings: dict[str, Any] = {"epochs": 250, "evaluate_every": 250, "lr": 0.06, "batch": 100}
    settings |= {"dtype": "float64", "gossip_rounds": 0, "engine": "loop", "task": "regression"}
    settings |= {"progress": False, "topology": "ring"} | options
    return parley.train(line, data=sites(), algorithm=algorithm, objective=objective, **settings)


@pytest.mark.parametrize("algorithm", ["tracking", "exact-diffusion"])
def test_exact_algorithms_find_the_optimum_of_the_objective(algorithm: str) -> None:
    """Every batch is an agent's whole data, so the gradients are exact, and these algorithms
    converge to the minimiser of the mean of the agents' losses."""
    equally = closed_form([1.0] * 4)
    by_size = closed_form([float(count) for count in COUNTS])
    assert (equally - by_size).abs().max() > 0.1  # so that confusing them would show
    for objective, optimum in (("equal", equally), ("size", by_size)):
        for x_D in trained(objective, algorithm).x_ND:
            torch.testing.assert_close(x_D, optimum, rtol=0, atol=1e-6)


def test_the_optimum_by_size_is_that_of_all_samples_together() -> None:
    inputs = torch.cat([x for x, _ in sites()]).double()
    answers = torch.cat([y for _, y in sites()]).double()
    x = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
    pooled = torch.linalg.lstsq(x, answers[:, None]).solution[:, 0]
    torch.testing.assert_close(closed_form([float(count) for count in COUNTS]), pooled)


def test_a_cross_gradient_counts_as_much_as_the_data_it_was_computed_on() -> None:
    """One step of NGC with α = 1, from one model at all agents: the mean over neighbours j of
    s_j ∇f_j, which is α's part that comes back."""
    step = {"epochs": 1, "alpha": 1.0, "momentum": 0.0, "algorithm": "ngc", "topology": "full"}
    found = trained("size", **step, lr=1.0, weights="uniform")
    start = torch.cat([p.detach().double().flatten() for p in line().parameters()])
    mean = sum(COUNTS) / len(COUNTS)
    expected = torch.zeros(FEATURES + 1, dtype=torch.float64)
    for count, (inputs, answers) in zip(COUNTS, sites(), strict=True):
        x = torch.cat([inputs, torch.ones(count, 1)], 1).double()
        expected += count / mean * 2 * x.T @ (x @ start - answers.double()) / count / 4
    for x_D in found.x_ND:
        torch.testing.assert_close(start - x_D, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["ngc", "cga", "dpsgd"])
def test_engines_agree(algorithm: str) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, 2))
    yes_or_no = [(inputs, (answers > 1).long()) for inputs, answers in sites()]
    runs = [
        parley.train(
            model, data=yes_or_no, algorithm=algorithm, objective="size", epochs=2, batch=4,
            engine=engine, progress=False, lr=0.01, gossip_rounds=0,
        )
        for engine in ("loop", "vmap", "stacked", "fused")
    ]  # fmt: skip
    losses = [run.records[-1]["loss_train"] for run in runs]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-4)
    for run in runs[1:]:
        torch.testing.assert_close(run.x_ND, runs[0].x_ND, rtol=1e-3, atol=1e-5)


def test_the_training_loss_is_that_of_the_objective() -> None:
    """Before anything is learned: the mean over samples, or over agents."""
    squares = [(line()(x)[:, 0] - y).square().detach().double() for x, y in sites()]
    rate = {"lr": 1e-12, "epochs": 1, "algorithm": "dpsgd"}
    by_size = trained("size", **rate).records[-1]["loss_train"]
    equally = trained("equal", **rate).records[-1]["loss_train"]
    assert by_size == pytest.approx(float(torch.cat(squares).mean()), rel=1e-6)
    assert equally == pytest.approx(float(torch.stack([s.mean() for s in squares]).mean()))


def test_on_two_workers_it_is_what_it_is_on_one(tmp_path: Path) -> None:
    """Sizes are exchanged at the start; sampling, limits and weights are the same everywhere."""
    options: dict[str, Any] = {"alpha": 0.5, "epoch_length": "smallest", "max_steps": 11}
    options |= {"sampling": "balanced", "partition": "dirichlet:0.3", "lr": 0.05}
    options |= {"data": "digits", "model": "mlp", "fraction": 0.2, "agents": 5, "epochs": 9}
    options |= {"engine": "loop", "batch": 8, "progress": False, "objective": "size"}
    one, two = (parley.train(**options, workers=n, out=tmp_path / str(n)) for n in (1, 2))
    assert one.x_ND.equal(two.x_ND) and one.records[-1]["step"] == 11
    summary = json.loads((tmp_path / "2" / "summary.json").read_text())
    assert summary["objective"] == "size" and summary["stopped"] == "max_steps=11"
    again = Experiment.from_toml((tmp_path / "2" / "experiment.toml").read_text())
    assert (again.objective, again.max_steps, again.sampling) == ("size", 11, "balanced")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [4, 8]),
        ({"epoch_length": "smallest"}, [1, 2]),
        ({"steps_per_epoch": 3}, [3, 6]),
        ({"max_steps": 6}, [4, 6]),
        ({"max_steps": 3}, [3]),
        ({"max_steps": 8}, [4, 8]),
        ({"max_steps": 9}, [4, 8]),
        ({"steps_per_epoch": 3, "max_steps": 4, "evaluate_every": 2}, [4]),
        ({"local_steps": 3}, [6, 9]),
        ({"local_steps": 3, "max_steps": 6}, [6]),
    ],
)
def test_the_length_of_epochs_and_of_the_run(options: dict[str, Any], steps: list[int]) -> None:
    found = trained(
        "equal", **{"algorithm": "dpsgd", "epochs": 2, "batch": 8, "evaluate_every": 1} | options
    )
    assert [record["step"] for record in found.records] == steps
    # In the last epoch of all, a limit does not end the run before its time.
    limited = found.records[-1]["epoch"] < 2
    assert found.summary.get("stopped", "") == (f"max_steps={steps[-1]}" if limited else "")


def test_a_schedule_ends_where_the_steps_do() -> None:
    found = trained("equal", "dpsgd", lr_decay="linear", epochs=9, batch=8, max_steps=6, lr=0.6)
    assert found.records[-1]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("limit", [6, 8])
def test_resuming_a_run_of_limited_steps(tmp_path: Path, limit: int) -> None:
    options: dict[str, Any] = {"epochs": 9, "batch": 8, "evaluate_every": 1, "max_steps": limit}
    whole = trained("size", **options)

    def stop(epoch: int) -> bool:
        return epoch == 1

    trained("size", **options, out=tmp_path, on_epoch=stop)
    resumed = trained("size", **options, out=tmp_path, resume=True)
    assert resumed.x_ND.equal(whole.x_ND) and resumed.records[-1]["step"] == limit
    again = trained("size", **options, out=tmp_path, resume=True)  # there is nothing left to do
    assert again.x_ND.equal(whole.x_ND) and len(again.records) == len(whole.records)
    with pytest.raises(parley.ParleyError, match="they differ in max_steps"):
        trained("size", **options | {"max_steps": 12}, out=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "size", "algorithm": "dpsgd+adam"}, "objective: 'size'.*cancel the weights"),
        ({"objective": "size", "algorithm": "ngc+lion"}, "objective: 'size'.*valid: equal"),
        ({"objective": "size", "algorithm": "diloco"}, "objective: 'size'"),
        ({"objective": "sizes"}, "objective: 'sizes' is not valid.*valid: equal, size"),
        ({"sampling": "balanced", "task": "regression"}, "sampling: 'balanced'.*valid: shuffled"),
        ({"steps_per_epoch": 3, "epoch_length": "smallest"}, "epoch_length: 'smallest'.*the two"),
        ({"steps_per_epoch": 0}, "steps_per_epoch: 0 is not valid"),
        ({"max_steps": 0}, "max_steps: 0 is not valid"),
        ({"max_steps": 7, "algorithm": "dpsgd", "local_steps": 2}, "max_steps: 7.*multiple of 2"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        Experiment.of(**options)


def test_steps_of_an_epoch() -> None:
    found = [Sizes.of([10, 33, 4], 8, length, None) for length in ("largest", "smallest")]
    assert [sizes.steps_per_epoch for sizes in found] == [5, 1]
    assert found[0].factors([10, 33, 4]) == pytest.approx([30 / 47, 99 / 47, 12 / 47])
    assert Sizes.of([10, 33, 4], 8, "largest", 7).steps_per_epoch == 7


def rare(counts: tuple[int, ...]) -> Samples:
    targets = torch.cat([torch.full((n,), label) for label, n in enumerate(counts)])
    return Samples(torch.arange(len(targets), dtype=torch.float32)[:, None], targets)


def drawn(batches: Batches, steps: range, row: int) -> tuple[list[int], list[int]]:
    found = [batches.at(step) for step in steps]
    inputs = torch.cat([b.inputs[row, : b.sizes[row], 0] for b in found])
    targets = torch.cat([b.targets[row, : b.sizes[row]] for b in found])
    return inputs.int().tolist(), targets.tolist()


def test_balanced_sampling_draws_all_classes_equally_often() -> None:
    agents = [rare((2, 0, 40)), rare((30, 5, 7))]
    batches = Batches(agents, [3, 5], 6, Transform(), seed=1, balanced=True)
    for steps in (range(7), range(7, 14)):  # passes of 42 samples
        inputs, targets = drawn(batches, steps, 0)
        assert Counter(targets) == {0: 21, 2: 21}
        assert (
            Counter(inputs)[0] in (10, 11)
            and max(Counter(inputs[i] for i in range(42) if targets[i] == 2).values()) == 1
        )
        assert Counter(drawn(batches, steps, 1)[1]) == {0: 14, 1: 14, 2: 14}
    alone = Batches(agents[1:], [5], 6, Transform(), seed=1, balanced=True)
    for step in (9, 2, 13):  # wherever an agent is, and whichever steps came before
        assert torch.equal(alone.at(step).inputs[0], batches.at(step).inputs[1])
    others = batches.another(1)
    assert not torch.equal(others.at(2).inputs, batches.at(2).inputs)
    assert Counter(drawn(others, range(7), 1)[1]) == {0: 14, 1: 14, 2: 14}


def test_balanced_sampling_helps_rare_classes() -> None:
    """One sample in thirty is of the second class, in the middle of the first."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 2, generator=draws)
    targets = (torch.arange(300) % 30 == 0).long()
    inputs[targets == 1] += torch.tensor([1.5, 0.0])
    options: dict[str, Any] = {"metrics": "balanced_accuracy", "algorithm": "dpsgd", "epochs": 20}
    found = {
        sampling: parley.train(
            "logistic", data=[(inputs, targets)] * 3, progress=False, **options, sampling=sampling
        ).summary["balanced_accuracy_mean_model"]
        for sampling in ("shuffled", "balanced")
    }
    assert found["shuffled"] < 0.6 and found["balanced"] > 0.7


def test_statistics_of_batchnorm_are_those_of_the_objective() -> None:
    """A layer without a step: the averaged model has the mean over samples, or over agents."""
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 1))
    means = torch.stack([x.mean(0) for x, _ in sites()]).double()
    shares = torch.tensor(COUNTS, dtype=torch.float64)[:, None] / sum(COUNTS)
    expected = {"equal": means.mean(0), "size": (shares * means).sum(0)}
    for objective, mean in expected.items():
        found = parley.train(
            model, data=sites(), algorithm="dpsgd", task="regression", objective=objective,
            epochs=1, batch=100, progress=False, dtype="float64", lr=1e-9,
        )  # fmt: skip
        norm = found.model()[0]
        assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None
        np.testing.assert_allclose(norm.running_mean.numpy(), mean.numpy(), atol=1e-6)
