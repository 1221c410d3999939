"""Metrics by name, from torchmetrics: exact in chunks, and over the samples of many workers.

A metric either adds up over samples, so that workers only have to add numbers, or it needs all
predictions in one place (AUROC, a user's own function). Accuracy is our own: everything else needs
torchmetrics, which takes seconds to import.

Axes: n samples, K numbers of a sum.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from parley.compute.goals import Goal
from parley.errors import BadValue
from parley.measures import (
    BINARY,
    CLASSIFICATION,
    MULTILABEL,
    REGRESSION,
    SEGMENTATION,
    Measure,
)

AUROC = "auroc"
RANKED = (AUROC, "auprc")
"""Areas under curves, which need the order of all samples."""
SIGNED = ("sum_error",)
"""States of metrics that may be negative."""
Function = Callable[[Tensor, Tensor], Any]
"""A user's own metric of (outputs, targets), of all samples at once."""


class Scorer(ABC):
    """One metric."""

    pooled = False
    """Whether it needs all predictions in one place."""
    width = 0
    """How many numbers add up over samples."""

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What adds up over samples, ``float64[K]``; nothing for a pooled metric."""

    def possible(self, sums_NK: Tensor, answers: int) -> bool:
        """Whether somebody who has so many answers can have these sums, of N models."""
        return True

    @abstractmethod
    def figure(self, sums: Tensor, outputs: Tensor, targets: Tensor) -> float:
        """The metric, from the sums over all samples or, if it is pooled, from all of them; NaN
        where it is not defined, as AUROC is not if all samples have one class."""


class Right(Scorer):
    """Accuracy: the share of answers that are right."""

    width = 2

    def __init__(self, goal: Goal) -> None:
        self.goal = goal

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Right answers, and all."""
        return torch.tensor(self.goal.right(outputs, targets), dtype=torch.float64)

    def possible(self, sums_NK: Tensor, answers: int) -> bool:
        """No more right answers than answers, and no more of those than there are."""
        right_N, of_N = sums_NK.unbind(1)
        return bool(((right_N >= 0) & (right_N <= of_N) & (of_N <= answers)).all())

    def figure(self, sums: Tensor, outputs: Tensor, targets: Tensor) -> float:
        """Their ratio."""
        right, of = sums.tolist()
        return right / of if of else float("nan")


class FromTorchmetrics(Scorer):
    """A metric of torchmetrics. Its states are added up where all of them are sums."""

    def __init__(
        self, measure: Measure, goal: Goal, metric: Any, read: str, values: int = 0
    ) -> None:
        """`values` is how many numbers a regression predicts: some states are as long as that."""
        from torchmetrics.utilities import dim_zero_sum

        self.name = measure.name
        self.measure = measure
        self.goal = goal
        self.metric = metric.set_dtype(torch.float64)
        # Workers exchange sums or predictions themselves, at the same points of a run; torchmetrics
        # would also do so wherever it finds a process group.
        metric.sync_on_compute = metric._to_sync = False
        self.read = read
        states = metric._defaults
        self.pooled = not all(
            isinstance(default, Tensor) and metric._reductions[state] is dim_zero_sum
            for state, default in states.items()
        )
        self.forms: dict[str, tuple[torch.Size, torch.dtype]] = {}
        if not self.pooled:
            if values:
                metric.update(torch.zeros(2, values).double(), torch.zeros(2, values).double())
            for state in states:
                found = getattr(metric, state)
                self.forms[state] = found.shape, found.dtype
        self.width = sum(shape.numel() for shape, _ in self.forms.values())

    def _updated(self, outputs: Tensor, targets: Tensor) -> Any:
        goal, metric = self.goal, self.metric
        metric.reset()
        outputs, targets = outputs.cpu(), targets.cpu()
        if self.read == "answers":
            given = goal.answers(outputs)
        elif self.read == "likely":
            given = goal.likely(outputs.double())
        else:
            given, targets = goal.pair(outputs.double(), targets)
        if goal.task == MULTILABEL:
            targets = targets.to(torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about classes without samples
            try:
                metric.update(given, targets)
            except (RuntimeError, ValueError) as error:
                why = str(error).splitlines()[0]
                raise BadValue("metrics", self.name, "a metric that fits the data", why) from error
        return metric

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Its states, one after another."""
        if self.pooled:
            return torch.zeros(0, dtype=torch.float64)
        metric = self._updated(outputs, targets)
        states = [getattr(metric, state).double().flatten() for state in self.forms]
        return torch.cat(states)

    def possible(self, sums_NK: Tensor, answers: int) -> bool:
        """Counts are not negative and no larger than what is counted; of the other states, only
        sums of differences have a sign."""
        if self.pooled:
            return True
        parts = sums_NK.split([shape.numel() for shape, _ in self.forms.values()], 1)
        for (state, (_, dtype)), part in zip(self.forms.items(), parts, strict=True):
            most = math.inf if dtype.is_floating_point else answers
            if state not in SIGNED and not bool(((part >= 0) & (part <= most)).all()):
                return False
        return True

    def figure(self, sums: Tensor, outputs: Tensor, targets: Tensor) -> float:
        """What torchmetrics computes from the states."""
        if self.pooled:
            metric = self._updated(outputs, targets)
        else:
            metric = self.metric
            metric.reset()
            parts = sums.cpu().split([shape.numel() for shape, _ in self.forms.values()])
            for (state, (shape, dtype)), part in zip(self.forms.items(), parts, strict=True):
                setattr(metric, state, part.view(shape).to(dtype))
            metric._update_count = 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = metric.compute()
            except (ValueError, RuntimeError):  # R² of one sample, for example
                return float("nan")
        if self.name in RANKED:
            found = found.reshape(-1)[self._ranked(targets)].mean()
        # It computes in float32 here and there: 1.0000001, which nobody could have.
        least = -math.inf if self.measure.least is None else self.measure.least
        return min(max(float(found), least), self.measure.most)

    def _ranked(self, targets: Tensor) -> Tensor:
        """Which classes or labels the area under a curve exists for: torchmetrics counts others as
        0, for AUROC, so that nobody who lacks a class could reach 1."""
        goal = self.goal
        if goal.task == CLASSIFICATION:
            held = one_hot(targets, self.metric.num_classes).bool()
        else:
            held = targets.bool().view(len(targets), -1)
        return held.any(0) & ~held.all(0) if self.name == AUROC else held.any(0)


class OwnFunction(Scorer):
    """A user's own function of all outputs and targets."""

    pooled = True

    def __init__(self, name: str, goal: Goal, function: Function) -> None:
        self.name = name
        self.goal = goal
        self.function = function

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Nothing."""
        return torch.zeros(0, dtype=torch.float64)

    def figure(self, sums: Tensor, outputs: Tensor, targets: Tensor) -> float:
        """What the function returns."""
        try:
            return float(self.function(*self.goal.pair(outputs, targets)))
        except Exception as error:  # whatever the user's code may raise
            why = (str(error).splitlines() or [type(error).__name__])[0]
            valid = "a function of (outputs, targets) that returns a number"
            raise BadValue("metrics", self.name, valid, why) from error


def scorers(
    goal: Goal, outputs: int, functions: Mapping[str, Function] | None = None
) -> list[Scorer]:
    """What is measured, in the order of the goal's metrics; a model gives so many `outputs`."""
    functions = functions or {}
    made: list[Scorer] = []
    for measure in goal.measures:
        if measure.name in functions:
            made.append(OwnFunction(measure.name, goal, functions[measure.name]))
        elif measure.name == "accuracy":
            made.append(Right(goal))
        else:
            made.append(_named(measure, goal, outputs))
    return made


def _named(measure: Measure, goal: Goal, outputs: int) -> Scorer:
    # Imported here: it takes seconds, and accuracy does not need it.
    from torchmetrics import classification, regression
    from torchmetrics.text import Perplexity

    name, task = measure.name, goal.task
    if task == REGRESSION:
        errors: dict[str, Callable[[], Any]] = {
            "mae": regression.MeanAbsoluteError,
            "mse": regression.MeanSquaredError,
            "rmse": lambda: regression.MeanSquaredError(squared=False),
            "r2": lambda: regression.R2Score(multioutput="uniform_average"),
        }
        return FromTorchmetrics(measure, goal, errors[name](), "numbers", outputs)
    if name == "perplexity":
        return FromTorchmetrics(measure, goal, Perplexity(ignore_index=goal.ignored), "numbers")
    made = {
        "balanced_accuracy": "Accuracy",
        "precision": "Precision",
        "recall": "Recall",
        "specificity": "Specificity",
        "f1": "F1Score",
        "iou": "JaccardIndex",
        "auroc": "AUROC",
        "auprc": "AveragePrecision",
        "mcc": "MatthewsCorrCoef",
        "kappa": "CohenKappa",
        "exact_match": "ExactMatch",
    }[name]
    few = {BINARY: "Binary", MULTILABEL: "Multilabel"}.get(task, "Multiclass")
    options: dict[str, Any] = {}
    if task == MULTILABEL:
        options["num_labels"] = outputs
    elif task in (CLASSIFICATION, SEGMENTATION):
        options["num_classes"] = outputs
    if task == SEGMENTATION:
        options["ignore_index"] = goal.ignored
    if name in RANKED and task != BINARY:
        options["average"] = "none"  # the mean is over classes that there are
    if task == BINARY and name == "balanced_accuracy":
        few, options = "Multiclass", {"num_classes": 2}  # the mean recall of both classes
    read = "likely" if name in RANKED else "answers"
    return FromTorchmetrics(measure, goal, getattr(classification, few + made)(**options), read)


class Tally:
    """What is needed of a model's outputs on some samples: sums, and the outputs themselves if a
    metric needs all of them."""

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.scorers = scorers
        self.loss = 0.0
        self.sums = [torch.zeros(scorer.width, dtype=torch.float64) for scorer in scorers]
        self.kept: list[Tensor] = []

    def add(self, loss: float, outputs: Tensor, targets: Tensor) -> None:
        """Some more samples."""
        self.loss += loss
        for scorer, sums in zip(self.scorers, self.sums, strict=True):
            if not scorer.pooled:
                sums += scorer.sums(outputs, targets)
        if any(scorer.pooled for scorer in self.scorers):
            self.kept.append(outputs.cpu())

    def numbers(self) -> Tensor:
        """The loss and all sums as one vector, which adds up over workers."""
        return torch.cat([torch.tensor([self.loss], dtype=torch.float64), *self.sums])


def figures(
    scorers: Sequence[Scorer],
    numbers: Tensor,
    count: int,
    outputs: Tensor | None,
    targets: Tensor,
) -> list[float]:
    """Loss and metrics of `count` samples, from the sums over them; metrics that need it get all
    outputs and targets."""
    if not count:  # all that there was has been refused
        return [0.0, *[math.nan] * len(scorers)]
    outputs = torch.empty(0) if outputs is None else outputs
    loss, *sums = numbers.split([1, *(scorer.width for scorer in scorers)])
    each = [
        scorer.figure(part, outputs, targets) for scorer, part in zip(scorers, sums, strict=True)
    ]
    known = (value if math.isfinite(value) else math.nan for value in each)
    return [float(loss) / count, *known]
