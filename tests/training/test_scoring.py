"""Metrics equal those of torchmetrics on pooled predictions, in chunks and over workers."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchmetrics
from torch import Tensor, nn
from torchmetrics import classification, regression

import parley
from parley import measures
from parley.compute.goals import Goal
from parley.training.scoring import Tally, figures, scorers

generator = torch.Generator().manual_seed(4)


def answers(task: str) -> tuple[Tensor, Tensor, int]:
    """Outputs and targets of 50 samples, and how many outputs there are."""
    if task == "classification":
        return torch.randn(50, 4, generator=generator), torch.arange(50) % 4, 4
    if task == "binary":
        return torch.randn(50, generator=generator), torch.arange(50) % 2, 1
    if task == "multilabel":
        outputs = torch.randn(50, 3, generator=generator)
        return outputs, (torch.rand(50, 3, generator=generator) > 0.5).float(), 3
    if task == "regression":
        outputs = torch.randn(50, 2, generator=generator)
        return outputs, outputs + torch.randn(50, 2, generator=generator), 2
    if task == "segmentation":
        targets = torch.randint(3, (50, 4, 4), generator=generator)
        targets[:, 0, 0] = -100
        return torch.randn(50, 3, 4, 4, generator=generator), targets, 3
    targets = torch.randint(7, (50, 5), generator=generator)
    targets[::3, -1] = -100
    return torch.randn(50, 5, 7, generator=generator), targets, 5


def theirs(task: str, name: str) -> Any:
    """The metric of torchmetrics, made by hand."""
    if task == "regression":
        return {
            "mae": regression.MeanAbsoluteError(),
            "mse": regression.MeanSquaredError(),
            "rmse": regression.MeanSquaredError(squared=False),
            "r2": regression.R2Score(),
        }[name]
    if name == "perplexity":
        return torchmetrics.text.Perplexity(ignore_index=-100)
    if task == "language-model":
        return classification.MulticlassAccuracy(7, average="micro", ignore_index=-100)
    kinds = {"accuracy": "Accuracy", "balanced_accuracy": "Accuracy", "f1": "F1Score"}
    kinds |= {"iou": "JaccardIndex", "auroc": "AUROC", "auprc": "AveragePrecision"}
    kinds |= {"mcc": "MatthewsCorrCoef", "kappa": "CohenKappa", "exact_match": "ExactMatch"}
    kind = kinds.get(name, name.capitalize())
    micro = {"average": "micro"} if name == "accuracy" else {}
    if task == "binary":
        if name == "balanced_accuracy":
            return classification.MulticlassAccuracy(2)
        return getattr(classification, f"Binary{kind}")()
    if task == "multilabel":
        return getattr(classification, f"Multilabel{kind}")(num_labels=3, **micro)
    ignore = {"ignore_index": -100} if task == "segmentation" else {}
    classes = 3 if task == "segmentation" else 4
    return getattr(classification, f"Multiclass{kind}")(num_classes=classes, **micro, **ignore)


def every_metric() -> Iterator[tuple[str, str]]:
    for name, measure in measures.KNOWN.items():
        for task in measure.tasks:
            yield task, name


@pytest.mark.parametrize(("task", "name"), list(every_metric()))
def test_in_chunks_it_equals_torchmetrics_on_all_at_once(task: str, name: str) -> None:
    outputs, targets, width = answers(task)
    goal = Goal(task, measures.parse(task, name))
    made = scorers(goal, width)
    tally = Tally(made)
    for some, right in zip(outputs.split(17), targets.split(17), strict=True):
        tally.add(0.0, some, right)
    kept = torch.cat(tally.kept) if tally.kept else torch.empty(0)
    [_, found] = figures(made, tally.numbers(), len(targets), kept, targets)

    metric = theirs(task, name)
    shown, right = outputs, targets
    if task == "binary":
        shown = outputs.sigmoid()
        if name == "balanced_accuracy":
            shown = (outputs > 0).long()
    elif task == "multilabel":
        shown, right = outputs.sigmoid(), targets.long()
    elif task == "language-model" and name == "accuracy":
        shown = outputs.argmax(-1)
    elif task == "classification":
        shown = outputs.softmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = float(metric(shown, right))
    assert found == pytest.approx(expected, rel=2e-6, abs=1e-6)


def test_what_is_not_defined_is_none_in_the_record() -> None:
    inputs = torch.randn(20, 3, generator=generator)
    one_class = (inputs, torch.zeros(20, dtype=torch.int64))
    result = parley.train(
        lambda: nn.Linear(3, 1), [one_class, one_class], algorithm="dpsgd", task="regression",
        metrics="rmse,r2", test=(inputs[:1], torch.zeros(1)), epochs=1, progress=False,
        stop_when="r2>=0.1",
    )  # fmt: skip
    [record] = result.records
    assert record["r2_mean_model"] is None and record["r2_agents"] == [None, None]
    assert record["rmse_mean_model"] > 0


def test_areas_are_means_over_the_classes_that_there_are() -> None:
    """An agent that lacks a class could not reach 1 otherwise, and one class has no AUROC."""
    targets = torch.arange(12) % 3
    outputs = nn.functional.one_hot(targets, 4).double()  # all answers are right
    goal = Goal(measures=measures.parse("classification", "auroc,auprc"))
    areas = scorers(goal, 4)
    assert [area.figure(torch.zeros(0), outputs, targets) for area in areas] == [1, 1]
    auroc, auprc = (a.figure(torch.zeros(0), outputs[::3], targets[::3]) for a in areas)
    assert math.isnan(auroc) and auprc == 1
    binary = scorers(Goal("binary", measures=measures.parse("binary", "auroc,auprc")), 1)
    healthy = (torch.zeros(0), torch.arange(4.0), torch.zeros(4, dtype=torch.int64))
    assert all(math.isnan(area.figure(*healthy)) for area in binary)


def test_an_infinite_metric_is_unknown_and_ends_no_run() -> None:
    def endless(outputs: Tensor, targets: Tensor) -> float:
        return float("inf")

    data = [(torch.randn(8, 3, generator=generator), torch.arange(8) % 2)] * 2
    options: dict[str, Any] = {"algorithm": "dpsgd", "epochs": 1, "progress": False}
    result = parley.train(lambda: nn.Linear(3, 2), data, metrics=endless, **options)
    assert result.records[0]["endless_mean_model"] is None


def per_agent(seed: int, agents: int = 4) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    made = []
    for agent in range(agents):
        inputs = torch.randn(6 + 5 * agent, 4, generator=draws) + 0.3 * agent
        made.append((inputs, (inputs.sum(1) > agent).long()))
    return made


OWN: dict[str, Any] = {
    "algorithm": "dpsgd", "task": "binary", "metrics": "auroc,accuracy,f1", "epochs": 2,
    "gossip_rounds": 1, "progress": False, "engine": "loop", "dtype": "float64",
}  # fmt: skip
TIMES = ("seconds", "gradients_per_second", "peak_memory_mb")


def one_logit() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(4, 1)


def test_own_test_sets_are_pooled_and_also_measured_one_by_one() -> None:
    tests: list[Any] = [*per_agent(2)[:3], None]
    result = parley.train(one_logit, per_agent(1), test=tests, **OWN)
    last: dict[str, Any] = dict(result.records[-1])
    assert last["test_samples"] == 6 + 11 + 16
    assert last["test_samples_agents"] == [6, 11, 16, 0]
    assert all(type(count) is int for count in last["test_samples_agents"])
    pooled = [torch.cat(parts) for parts in zip(*tests[:3], strict=True)]
    auroc = classification.BinaryAUROC()

    def of(model: nn.Module, data: Any) -> float:
        with torch.no_grad():
            return float(auroc(model(data[0].double()).flatten(), data[1]))

    assert last["auroc_mean_model"] == pytest.approx(of(result.model(), pooled), abs=1e-6)
    for agent in range(3):
        own = result.model(agent)
        assert last["auroc_agents"][agent] == pytest.approx(of(own, pooled), abs=1e-5)
        here = last["auroc_personal_agents"][agent]
        assert here == pytest.approx(of(own, tests[agent]), abs=1e-5)
        averaged = last["auroc_personal_mean_model_agents"][agent]
        assert averaged == pytest.approx(of(result.model(), tests[agent]), abs=1e-5)
    assert last["auroc_personal_agents"][3] is None


def test_two_workers_record_what_one_does() -> None:
    """To the last bit, also where sums are rounded."""
    tests: list[Any] = [*per_agent(2)[:3], None]
    options = {**OWN, "dtype": "float32"}
    one = parley.train(one_logit, per_agent(1), test=tests, **options)
    two = parley.train(one_logit, per_agent(1), test=tests, **options, workers=2)
    for mine, theirs_ in zip(one.records, two.records, strict=True):
        for name in mine.keys() - TIMES:
            assert mine[name] == theirs_[name], name  # type: ignore[literal-required]
