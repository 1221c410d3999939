"""Losses by name: one value for each sample, whatever the task.

Axes: n samples, C classes, V tokens of a vocabulary, T positions, k values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from parley import measures
from parley.compute.task import Loss, cross_entropy
from parley.errors import BadValue, unknown_name

AUTO = "auto"
CROSS_ENTROPY, BINARY_CROSS_ENTROPY = "cross-entropy", "binary-cross-entropy"

LOSSES: dict[str, tuple[str, ...]] = {
    measures.CLASSIFICATION: (CROSS_ENTROPY,),
    measures.BINARY: (CROSS_ENTROPY,),
    measures.MULTILABEL: (BINARY_CROSS_ENTROPY,),
    measures.REGRESSION: ("mse", "mae", "huber"),
    measures.SEGMENTATION: (CROSS_ENTROPY,),
    measures.LANGUAGE_MODEL: (CROSS_ENTROPY,),
    measures.OWN: (),
}
"""The losses of every task; the first is the default."""

WEIGHTED = (
    *(measures.CLASSIFICATION, measures.BINARY, measures.MULTILABEL, measures.SEGMENTATION),
)
"""Tasks that have class weights."""
SMOOTHED = (*WEIGHTED, measures.LANGUAGE_MODEL)
"""Tasks that have label smoothing."""


@dataclass(frozen=True)
class Settings:
    """How a named loss is computed."""

    weights: tuple[float, ...] = ()
    """Of each class; none: all count alike."""
    smoothing: float = 0.0
    ignored: int = -100
    """The target of pixels and tokens that do not count."""

    def of_classes(self, like: Tensor) -> Tensor | None:
        """The weights as a tensor."""
        return like.new_tensor(self.weights) if self.weights else None


@dataclass(frozen=True)
class YesOrNo:
    """Cross-entropy of one logit, outputs [n], or of two, [n, 2]."""

    settings: Settings

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value for each sample."""
        weights, smoothing = self.settings.of_classes(outputs), self.settings.smoothing
        if outputs.ndim == 2:
            return functional.cross_entropy(
                outputs, targets, weights, label_smoothing=smoothing, reduction="none"
            )
        smooth = targets * (1 - smoothing) + smoothing / 2
        if weights is None:
            return functional.binary_cross_entropy_with_logits(outputs, smooth, reduction="none")
        # As for two logits: the part of each class has that class's weight.
        yes, no = functional.logsigmoid(outputs), functional.logsigmoid(-outputs)
        return -(weights[1] * smooth * yes + weights[0] * (1 - smooth) * no)

    def settled(self, outputs: Tensor) -> Loss:
        """For two logits it is the loss of two classes, which has faster engines."""
        two = outputs.ndim == 2 and outputs.shape[1] == 2
        return named_loss(measures.CLASSIFICATION, AUTO, self.settings, outputs) if two else self


@dataclass(frozen=True)
class EachLabel:
    """Binary cross-entropy, averaged over labels; the weights are those of positive answers."""

    settings: Settings

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value for each sample."""
        smoothing = self.settings.smoothing
        smooth = targets * (1 - smoothing) + smoothing / 2
        weights = self.settings.of_classes(outputs)
        each = functional.binary_cross_entropy_with_logits(
            outputs, smooth, pos_weight=weights, reduction="none"
        )
        return each.mean(1)


@dataclass(frozen=True)
class EachPlace:
    """Cross-entropy of every pixel or token, averaged over those of a sample that count.

    Outputs are [n, C, …], targets [n, …].
    """

    settings: Settings

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value for each sample; 0 for one in which nothing counts."""
        ignored = self.settings.ignored
        each = functional.cross_entropy(
            outputs,
            targets,
            self.settings.of_classes(outputs),
            ignore_index=ignored,
            label_smoothing=self.settings.smoothing,
            reduction="none",
        )
        counted = (targets != ignored).flatten(1).sum(1).clamp(min=1)
        return each.flatten(1).sum(1) / counted


@dataclass(frozen=True)
class Tokens:
    """Cross-entropy of the next token, outputs [n, T, V]."""

    settings: Settings

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value for each sample: the mean over its tokens."""
        return EachPlace(self.settings)(outputs.transpose(1, 2), targets)


@dataclass(frozen=True)
class Deviation:
    """How far numbers are from their targets, averaged over the values of a sample."""

    kind: Literal["mse", "mae", "huber"]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value for each sample."""
        if self.kind == "mse":
            return functional.mse_loss(outputs, targets, reduction="none").mean(1)
        if self.kind == "mae":
            return functional.l1_loss(outputs, targets, reduction="none").mean(1)
        return functional.huber_loss(outputs, targets, reduction="none").mean(1)


def named_loss(task: str, name: str, settings: Settings, like: Tensor | None = None) -> Loss:
    """The loss of that name for a task; ``auto`` is its first. Weights have the type of `like`."""
    valid = LOSSES[task]
    if not valid:
        because = f"the task {task} has none"
        raise BadValue("loss", name, "your own function, as module:function", because)
    name = valid[0] if name == AUTO else name
    if name not in valid:
        raise unknown_name("loss", name, [AUTO, *valid, "module:function"])
    if task == measures.REGRESSION:
        kinds: dict[str, Literal["mse", "mae", "huber"]]
        kinds = {"mse": "mse", "mae": "mae", "huber": "huber"}
        return Deviation(kinds[name])
    if task == measures.CLASSIFICATION:
        if not settings.weights and not settings.smoothing:
            return cross_entropy
        weights = settings.of_classes(torch.empty(0) if like is None else like)
        smoothing = settings.smoothing
        return nn.CrossEntropyLoss(weights, label_smoothing=smoothing, reduction="none")
    made: dict[str, Callable[[Settings], Loss]] = {
        measures.BINARY: YesOrNo,
        measures.MULTILABEL: EachLabel,
        measures.SEGMENTATION: EachPlace,
        measures.LANGUAGE_MODEL: Tokens,
    }
    return made[task](settings)


def check_settings(task: str, own: bool, weights: str, smoothing: float) -> None:
    """Refuses class weights and label smoothing where they would have no effect."""
    if own and (weights or smoothing):
        field, value = ("class_weights", weights) if weights else ("label_smoothing", smoothing)
        raise BadValue(field, value, "none with your own loss, which computes them itself")
    if weights and task not in WEIGHTED:
        raise BadValue("class_weights", weights, "none", f"the task {task} has no classes")
    if smoothing and task not in SMOOTHED:
        raise BadValue("label_smoothing", smoothing, "0", f"the task {task} has no labels")


BALANCED = "balanced"


def parse_weights(text: str) -> tuple[float, ...]:
    """Class weights written as 1,2.5,1; nothing for ``balanced``, which depends on the data.

    >>> parse_weights("1, 2.5")
    (1.0, 2.5)
    """
    if text in ("", BALANCED):
        return ()
    valid = "a weight above 0 for each class, for example 1,2.5,1, or balanced"
    try:
        made = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadValue("class_weights", text, valid) from None
    if not all(0 < weight <= 1e6 for weight in made):
        raise BadValue("class_weights", text, valid)
    return made
