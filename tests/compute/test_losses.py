"""Named losses against torch's own, and what tasks ask of outputs."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from parley import measures
from parley.compute.goals import Goal
from parley.compute.losses import Settings, YesOrNo, named_loss, parse_weights
from parley.compute.task import Task, cross_entropy, is_cross_entropy
from parley.compute.trial import tried
from parley.errors import BadValue

torch.manual_seed(0)
LOGITS, CLASSES = torch.randn(6, 3), torch.tensor([0, 1, 2, 2, 1, 0])


def test_one_logit_and_two_give_the_same_loss() -> None:
    one, yes = torch.randn(6), torch.tensor([0, 1, 1, 0, 1, 0])
    two = torch.stack([torch.zeros(6), one], 1)
    for settings in (Settings(), Settings((0.5, 3.0)), Settings((1.0, 2.0), smoothing=0.2)):
        loss = YesOrNo(settings)
        assert torch.allclose(loss(one, yes.float()), loss(two, yes), atol=1e-6), settings


def test_two_logits_have_the_engines_of_two_classes() -> None:
    assert YesOrNo(Settings()).settled(torch.zeros(4, 2)) is cross_entropy
    weighted = YesOrNo(Settings((1.0, 2.0))).settled(torch.zeros(4, 2))
    assert isinstance(weighted, nn.CrossEntropyLoss) and weighted.reduction == "none"
    one = YesOrNo(Settings())
    assert one.settled(torch.zeros(4, 1)) is one


def test_class_weights_and_smoothing_are_those_of_torch() -> None:
    loss = named_loss("classification", "auto", Settings((1.0, 2.0, 0.5), 0.1))
    weights = torch.tensor([1.0, 2.0, 0.5])
    theirs = functional.cross_entropy(
        LOGITS, CLASSES, weights, label_smoothing=0.1, reduction="none"
    )
    assert torch.equal(loss(LOGITS, CLASSES), theirs)
    assert not is_cross_entropy(loss)
    assert named_loss("classification", "auto", Settings()) is cross_entropy


def test_a_sample_is_the_mean_over_its_pixels_that_count() -> None:
    outputs, targets = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    targets[0, :2] = 255
    targets[1] = 255
    found = named_loss("segmentation", "auto", Settings(ignored=255))(outputs, targets)
    kept = functional.cross_entropy(outputs[:1], targets[:1], ignore_index=255)
    assert torch.allclose(found[0], kept) and found[1] == 0


def test_tokens_are_on_the_last_axis() -> None:
    outputs, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    found = named_loss("language-model", "auto", Settings())(outputs, targets)
    theirs = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    assert torch.allclose(found, theirs.view(2, 5).mean(1))


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("mse", nn.MSELoss), ("mae", nn.L1Loss), ("huber", nn.HuberLoss), ("auto", nn.MSELoss)],
)
def test_regression(name: str, theirs: type[nn.Module]) -> None:
    outputs, targets = torch.randn(5, 2), torch.randn(5, 2)
    found = named_loss("regression", name, Settings())(outputs, targets)
    assert torch.allclose(found, theirs(reduction="none")(outputs, targets).mean(1))


def test_labels_are_averaged() -> None:
    outputs, targets = torch.randn(5, 3), torch.randint(2, (5, 3)).float()
    settings = Settings((1.0, 4.0, 2.0))
    found = named_loss("multilabel", "auto", settings)(outputs, targets)
    theirs = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(settings.weights), reduction="none")
    assert torch.allclose(found, theirs(outputs, targets).mean(1))


def test_a_loss_that_the_task_does_not_have_is_refused() -> None:
    with pytest.raises(BadValue, match="'mse' is not valid; valid: auto, cross-entropy, module"):
        named_loss("classification", "mse", Settings())


@pytest.mark.parametrize("text", ["1,x", "1,-2", "0,1", "nan,1", "1,,2"])
def test_bad_weights_are_refused(text: str) -> None:
    with pytest.raises(BadValue, match="class_weights"):
        parse_weights(text)


@pytest.mark.parametrize(
    ("task", "model", "targets", "classes", "words"),
    [
        ("binary", nn.Linear(3, 3), torch.tensor([0, 1, 0, 1]), 2, "one or two logits"),
        ("multilabel", nn.Linear(3, 2), torch.zeros(4, 3), 3, "3 logits for each, one for every"),
        ("regression", nn.Linear(3, 2), torch.zeros(4, 1), 1, "gives 1 number for each"),
        ("segmentation", nn.Linear(3, 2), torch.zeros(4, 2, 2).long(), 2, "for every pixel"),
        ("language-model", nn.Linear(3, 2), torch.zeros(4, 3).long(), 0, "of every next token"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(
    task: str, model: nn.Module, targets: torch.Tensor, classes: int, words: str
) -> None:
    goal = Goal(task, measures.parse(task, ""))
    made = Task(model, named_loss(task, "auto", Settings()), goal=goal)
    with pytest.raises(BadValue, match=words):
        made = tried(made, "mine", torch.zeros(4, 3), targets, classes)


def test_torchs_own_losses_fit_their_tasks() -> None:
    pairs = (
        ("binary", nn.BCEWithLogitsLoss(), nn.Linear(3, 1), torch.tensor([0, 1, 1, 0])),
        ("regression", nn.SmoothL1Loss(), nn.Linear(3, 1), torch.randn(4, 1)),
        ("multilabel", nn.BCEWithLogitsLoss(), nn.Linear(3, 2), torch.ones(4, 2)),
    )
    for task, loss, model, targets in pairs:
        made = Task(model, loss, goal=Goal(task, measures.parse(task, "")))
        inputs = torch.randn(4, 3)
        made = tried(made, "mine", inputs, targets, 1 + (task != "regression"))
        losses = made.losses(made.start(), inputs, targets)
        outputs, answers = made.goal.pair(model(inputs), targets)
        assert torch.allclose(losses.mean(), loss(outputs, answers)), task
