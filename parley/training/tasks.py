"""The task, loss and metrics that an experiment names."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from parley import measures
from parley.compute.goals import Goal
from parley.compute.losses import AUTO, BALANCED, Settings, named_loss, parse_weights
from parley.compute.task import Loss
from parley.data import targets as answers
from parley.errors import BadValue
from parley.experiment import OWN, Experiment
from parley.measures import EACH_PLACE
from parley.training.scoring import Function
from parley.user_code import allowed_function, is_code


def goal_of(experiment: Experiment) -> Goal:
    """The experiment's task, and what is measured."""
    return Goal(experiment.task, experiment.measures, experiment.ignore_index)


def outputs_of(experiment: Experiment, class_names: Sequence[str], targets: Tensor) -> int:
    """How many outputs a network must have for each input, or for each place in it where the task
    asks for an answer at every pixel; 0 where only the network itself knows, as for tokens."""
    task = experiment.task
    if task == measures.CLASSIFICATION and len(class_names) < 2:
        raise BadValue("data", len(class_names), "at least 2 classes")
    knows_tokens = task == measures.LANGUAGE_MODEL and experiment.model.startswith("hf:")
    if task in EACH_PLACE and not is_code(experiment.model) and not knows_tokens:
        where = "pixel" if task == measures.SEGMENTATION else "token"
        valid = f"your own network, with an answer for each {where}"
        valid += ", or hf:FOLDER" * (task == measures.LANGUAGE_MODEL)
        because = "it gives one answer for a whole input"
        raise BadValue("model", experiment.model, valid, because)
    if task in EACH_PLACE and targets.ndim == 1:
        what = "class of each pixel" if task == measures.SEGMENTATION else "next token of each one"
        because = f"the data have one of {len(class_names)} classes for each sample"
        valid = f'classification; or data = "own", with the {what} as targets'
        raise BadValue("task", task, valid, because)
    if task == OWN and not class_names:
        return targets[0].numel()
    rows = task in (measures.REGRESSION, measures.MULTILABEL)
    if rows and targets.shape[1:].numel() != len(class_names):
        because = f"the data have one of {len(class_names)} classes for each sample"
        raise BadValue("task", task, "classification", because)
    return max(2, len(class_names)) if task == measures.BINARY else len(class_names)


def loss_of(
    experiment: Experiment,
    class_names: Sequence[str],
    parts: Sequence[Tensor] | None,
) -> Loss:
    """The loss that the experiment names. `parts` are the targets of all agents, where this process
    knows them: balanced class weights are made of them."""
    name = experiment.loss
    if is_code(name):
        return allowed_function("loss", name)
    weights = parse_weights(experiment.class_weights)
    classes = len(class_names)
    if experiment.class_weights == BALANCED:
        weights = _balanced(experiment.task, parts, classes)
    elif weights and len(weights) != classes:
        valid = f"{classes} weights, one for each class"
        raise BadValue("class_weights", experiment.class_weights, valid)
    settings = Settings(weights, experiment.label_smoothing, experiment.ignore_index)
    return named_loss(experiment.task, AUTO if name == OWN else name, settings)


def _balanced(task: str, parts: Sequence[Tensor] | None, classes: int) -> tuple[float, ...]:
    """Inverse to how often each class occurs, and 1 on average over samples; for a label that may
    apply or not, how often it does not for each time that it does."""
    if parts is None:
        valid = "a weight for each class, for example 1,5"
        because = "hosts do not share how many samples of each class they have"
        raise BadValue("class_weights", BALANCED, valid, because)
    held = torch.tensor([answers.held(task, part, classes) for part in parts]).double().sum(0)
    if not bool(held.all()):
        valid = "a weight for each class, for example 1,5"
        missing = int((held == 0).nonzero()[0])
        raise BadValue("class_weights", BALANCED, valid, f"class {missing} does not occur")
    if task == measures.MULTILABEL:
        samples = sum(map(len, parts))
        return tuple(((samples - held).clamp(min=1) / held).tolist())
    return tuple((held.sum() / (classes * held)).tolist())


def functions_of(experiment: Experiment) -> Mapping[str, Function]:
    """The user's own metrics that the experiment names, by their names in records."""
    return {
        measure.name: allowed_function("metrics", measure.function)
        for measure in experiment.measures
        if measure.function
    }
