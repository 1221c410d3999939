"""What a task asks of a model: the form of its outputs, and how answers are read from them.

Axes: n samples, C classes, T positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from parley import measures
from parley.measures import (
    BINARY,
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTILABEL,
    OWN,
    REGRESSION,
    SEGMENTATION,
    Measure,
)


@dataclass(frozen=True)
class Goal:
    """A task, what is measured, and how the model's outputs are read.

    >>> outputs = torch.tensor([[0.5], [-1.0]])
    >>> Goal(BINARY).answers(outputs)
    tensor([1, 0])
    """

    task: str = CLASSIFICATION
    measures: tuple[Measure, ...] = measures.parse(CLASSIFICATION, "")
    """The first one decides which model is better."""
    ignored: int = -100
    """The target of pixels and tokens that do not count."""

    @property
    def has_classes(self) -> bool:
        """Whether every sample has one class, so that there is a confusion matrix."""
        return self.task in (CLASSIFICATION, BINARY)

    def refusal(self, outputs: Tensor, targets: Tensor, classes: int) -> tuple[str, str]:
        """What the model should give, and why it does not; nothing if it does.

        `outputs` are those of a few inputs, with these `targets`.
        """
        found, n = list(outputs.shape), len(targets)
        if self.task == CLASSIFICATION:
            return _classes(found, n, classes)
        wanted = {
            BINARY: "one or two logits for each",
            MULTILABEL: f"{classes} logits for each, one for every label",
            REGRESSION: f"{classes} number{'s' * (classes > 1)} for each",
            SEGMENTATION: f"{classes} scores for every pixel, [{classes}, height, width] for each",
            LANGUAGE_MODEL: "scores of every next token, [tokens, vocabulary] for each",
            OWN: "a row for each input",
        }[self.task]
        shape = list(targets.shape)
        fits = {
            BINARY: found in ([n], [n, 1], [n, 2]),
            MULTILABEL: found == [n, classes],
            REGRESSION: found == [n, classes] or (classes == 1 and found == [n]),
            SEGMENTATION: len(found) == 4
            and found[1] >= classes
            and [found[0], *found[2:]] == shape,
            LANGUAGE_MODEL: len(found) == 3 and found[:2] == shape,
            OWN: bool(found) and found[0] == n,
        }[self.task]
        if not fits:
            return wanted, f"for {n} inputs it gives a tensor of shape {found}"
        if self.task == LANGUAGE_MODEL:
            most = int(targets[targets != self.ignored].max()) if targets.numel() else 0
            if most >= found[2]:
                return wanted, f"it has {found[2]} tokens, but the data have token {most}"
        return "", ""

    def possible(self, targets: Tensor, answer_shape: tuple[int, ...]) -> bool:
        """Whether targets that somebody else reports can be those of this task, for a model whose
        outputs for a sample have this shape."""
        if not bool(torch.isfinite(targets).all()):
            return False
        if self.task in (REGRESSION, OWN) or not targets.numel():
            return True
        if self.task == MULTILABEL:
            return bool(((targets == 0) | (targets == 1)).all())
        counted = targets[targets != self.ignored] if not self.has_classes else targets
        axis = -1 if self.task == LANGUAGE_MODEL else 0
        classes = max(2, answer_shape[axis] if answer_shape else 1)
        return bool(((counted >= 0) & (counted < classes)).all())

    def pair(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and targets as losses and metrics take them: of the same shape where torch's own
        losses want that."""
        if self.task == BINARY and (outputs.ndim == 1 or outputs.shape[1] == 1):
            return outputs.reshape(len(outputs)), targets.to(outputs.dtype)
        if self.task == REGRESSION:
            return outputs.reshape(targets.shape), targets.to(outputs.dtype)
        if self.task == MULTILABEL:
            return outputs, targets.to(outputs.dtype)
        return outputs, targets

    def answers(self, outputs: Tensor) -> Tensor:
        """The classes that the model chooses; for regression, its numbers."""
        if self.task == BINARY and (outputs.ndim == 1 or outputs.shape[1] == 1):
            return (outputs.reshape(len(outputs)) > 0).to(torch.int64)
        if self.task == MULTILABEL:
            return (outputs > 0).to(torch.int64)
        if self.task == LANGUAGE_MODEL:
            return outputs.argmax(-1)
        return outputs.argmax(1) if self.task in (CLASSIFICATION, BINARY, SEGMENTATION) else outputs

    def likely(self, outputs: Tensor) -> Tensor:
        """How likely each class is: the chance of yes for binary and multilabel tasks."""
        if self.task == MULTILABEL or (
            self.task == BINARY and (outputs.ndim == 1 or outputs.shape[1] == 1)
        ):
            chances = outputs.sigmoid()
            return chances.reshape(len(outputs)) if self.task == BINARY else chances
        chances = outputs.softmax(1)
        return chances[:, 1] if self.task == BINARY else chances

    def right(self, outputs: Tensor, targets: Tensor) -> tuple[int, int]:
        """How many answers are right, and how many there are."""
        correct = self.answers(outputs) == targets
        if self.task in (SEGMENTATION, LANGUAGE_MODEL):
            correct = correct[targets != self.ignored]
        return int(correct.sum()), correct.numel()


def _classes(found: list[int], n: int, classes: int) -> tuple[str, str]:
    wanted = f"{max(2, classes)} scores for each"
    if found in ([n], [n, 1]):
        yes_or_no = "; yes or no are two classes, or the task binary" * (classes <= 2)
        because = "it gives one score, where the answer is the class with the largest"
        return wanted + yes_or_no, because
    if len(found) != 2 or found[0] != n:
        return wanted, f"for {n} inputs it gives a tensor of shape {found}"
    if found[1] < classes:
        return wanted, f"it gives {found[1]} scores, but the data have {classes} classes"
    return "", ""
