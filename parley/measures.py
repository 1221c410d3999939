"""Tasks and metrics by name: what each measures, and which way is better.

Needs only the standard library: reports and the dashboard read records without torch.

A record has every metric in the same forms: ``rmse_mean_model`` is that of the averaged model,
``rmse_own`` the mean over the agents' own models, ``rmse_own_min`` and ``rmse_own_max`` the
smallest and the largest of them, ``rmse_after_gossip`` the mean after further gossip rounds, and
``rmse_agents`` that of each agent.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parley.errors import BadValue, unknown_name

CLASSIFICATION, BINARY, MULTILABEL = "classification", "binary", "multilabel"
REGRESSION, SEGMENTATION, LANGUAGE_MODEL = "regression", "segmentation", "language-model"
OWN = "own"

TASKS: dict[str, tuple[str, ...]] = {
    CLASSIFICATION: ("accuracy",),
    BINARY: ("accuracy",),
    MULTILABEL: ("f1", "accuracy"),
    REGRESSION: ("rmse", "mae"),
    SEGMENTATION: ("iou", "accuracy"),
    LANGUAGE_MODEL: ("perplexity", "accuracy"),
    OWN: (),
}
"""Every task, and what is measured unless the experiment says otherwise."""

FORMS = ("mean_model", "own", "own_min", "own_max", "after_gossip")
"""The numbers that a record has of each metric; ``…_agents`` is a list."""

PERSONAL = ("personal_agents", "personal_mean_model_agents")
"""Lists with a number for each agent that has its own test samples: how its own model does on them,
and how the averaged one does."""

LABELS = (CLASSIFICATION, BINARY, MULTILABEL)
EACH_PLACE = (SEGMENTATION, LANGUAGE_MODEL)
"""Tasks that ask for an answer at every pixel or token."""


@dataclass(frozen=True)
class Measure:
    """A metric: how it is written in records, and how to read it.

    >>> rmse = find("rmse")
    >>> rmse.field("own"), rmse.higher, rmse.shown(0.25)
    ('rmse_own', False, '0.25')
    >>> find("accuracy").shown(0.25)
    '25.0%'
    """

    name: str
    title: str
    tasks: tuple[str, ...] = ()
    """The tasks that have it; none for a user's own function."""
    higher: bool = True
    """Whether more is better."""
    share: bool = True
    """Whether it lies between 0 and 1, and is shown in percent."""
    least: float | None = 0.0
    """The smallest value that it can have."""
    function: str = ""
    """``module:function`` for a user's own."""

    @property
    def certain(self) -> bool:
        """Whether it is defined for every model on any samples."""
        return self.name == "accuracy"

    def field(self, form: str) -> str:
        """Its field in a record."""
        return f"{self.name}_{form}"

    @property
    def factor(self) -> float:
        """Multiplies a recorded value for display."""
        return 100.0 if self.share else 1.0

    @property
    def unit(self) -> str:
        """Of a displayed value."""
        return "%" if self.share else ""

    @property
    def most(self) -> float:
        """The largest value that it can have."""
        return 1.0 if self.share or self.least == -1 else float("inf")

    def shown(self, value: float, digits: int = 1) -> str:
        """A value in words."""
        return f"{value:.{digits}%}" if self.share else f"{value:.4g}"

    def better(self, one: float, other: float) -> bool:
        """Whether one value is better than another."""
        return one > other if self.higher else one < other


def _all(*measures: Measure) -> dict[str, Measure]:
    return {measure.name: measure for measure in measures}


_CLASSES = (*LABELS, SEGMENTATION)
_CORRELATION: dict[str, Any] = {"share": False, "least": -1.0}
_ERROR: dict[str, Any] = {"tasks": (REGRESSION,), "higher": False, "share": False}

KNOWN = _all(
    Measure("accuracy", "accuracy", (*_CLASSES, LANGUAGE_MODEL)),
    Measure("balanced_accuracy", "balanced accuracy", (CLASSIFICATION, BINARY, SEGMENTATION)),
    Measure("precision", "precision", _CLASSES),
    Measure("recall", "recall", _CLASSES),
    Measure("specificity", "specificity", LABELS),
    Measure("f1", "F1", _CLASSES),
    Measure("iou", "IoU", _CLASSES),
    Measure("auroc", "AUROC", LABELS),
    Measure("auprc", "AUPRC", LABELS),
    Measure("mcc", "MCC", LABELS, **_CORRELATION),
    Measure("kappa", "Cohen's kappa", (CLASSIFICATION, BINARY), **_CORRELATION),
    Measure("exact_match", "exact match", (MULTILABEL,)),
    Measure("mae", "MAE", **_ERROR),
    Measure("mse", "MSE", **_ERROR),
    Measure("rmse", "RMSE", **_ERROR),
    Measure("r2", "R²", (REGRESSION,), share=False, least=None),
    Measure("perplexity", "perplexity", (LANGUAGE_MODEL,), higher=False, share=False),
)
"""All metrics that Parley has a name for."""

_TAKEN = frozenset({"loss", "epoch", "step", "seconds", "bytes", "distance", "test_samples"})


def find(name: str) -> Measure:
    """The metric of that name."""
    if name not in KNOWN:
        raise unknown_name("metrics", name, [*KNOWN, "module:function"])
    return KNOWN[name]


def parse(task: str, metrics: str) -> tuple[Measure, ...]:
    """The metrics of a task in the order in which they are shown; the first one decides.

    A user's own function is written ``module:function``, or ``module:function:lower`` where less is
    better.

    >>> [measure.name for measure in parse("regression", "")]
    ['rmse', 'mae']
    >>> [error] = parse("own", "wards:days_off:lower")
    >>> error.name, error.higher
    ('days_off', False)
    """
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    names = [name.strip() for name in metrics.split(",") if name.strip()] or list(TASKS[task])
    made = [_one(task, name) for name in names]
    for measure in made:
        if sum(other.name == measure.name for other in made) > 1:
            raise BadValue(
                "metrics", metrics, "each metric once", f"{measure.name} is listed twice"
            )
    return tuple(made)


def _one(task: str, text: str) -> Measure:
    own = re.fullmatch(r"()(\w+):(lower|higher)", text)
    own = own or re.fullmatch(r"([\w.]+):(\w+)(?::(lower|higher))?", text)
    if own:
        name = own[2]
        if name in KNOWN or name in _TAKEN:
            valid = "a function with a different name"
            raise BadValue("metrics", text, valid, f"{name!r} already has a meaning in records")
        function = f"{own[1]}:{name}" if own[1] else ""
        words = name.replace("_", " ")
        return Measure(name, words, (), own[3] != "lower", False, None, function)
    measure = find(text)
    if task not in measure.tasks:
        listed = ", ".join(name for name, found in KNOWN.items() if task in found.tasks)
        because = f"the task {task} does not have it"
        valid = f"{listed}, or module:function" if listed else "module:function"
        raise BadValue("metrics", text, valid, because)
    return measure


def of_options(options: Mapping[str, Any]) -> tuple[Measure, ...]:
    """The metrics of a run, from the options in its folder; those of older runs are accuracies.

    >>> [measure.name for measure in of_options({"epochs": 3})]
    ['accuracy']
    """
    task, metrics = options.get("task", CLASSIFICATION), options.get("metrics", "")
    try:
        return parse(str(task), str(metrics))
    except BadValue:
        return (KNOWN["accuracy"],)


def of_averaged_model(
    measures: Sequence[Measure], scores: Sequence[float], agents: int
) -> dict[str, Any]:
    """The fields of a record for which only the averaged model was evaluated.

    >>> of_averaged_model([KNOWN["accuracy"]], [0.5], 2)["accuracy_agents"]
    [None, None]
    """
    found: dict[str, Any] = {}
    for measure, score in zip(measures, scores, strict=True):
        found |= dict.fromkeys(measure.field(form) for form in FORMS)
        found[measure.field(FORMS[0])] = None if math.isnan(score) else score
        found[measure.field("agents")] = [None] * agents
    return found


def of_record(record: Mapping[str, Any]) -> list[Measure]:
    """The metrics in a record, the first of which decides; which way a user's own one is better
    only the options say.

    >>> [measure.name for measure in of_record({"loss": 1, "f1_mean_model": 0.5, "f1_own": 0.5})]
    ['f1']
    """
    end = f"_{FORMS[0]}"
    names = [field.removesuffix(end) for field in record if field.endswith(end)]
    return [KNOWN.get(name, Measure(name, name.replace("_", " "), share=False)) for name in names]


def together(runs: Sequence[Mapping[str, Any]]) -> tuple[Measure, ...]:
    """The metrics of several runs, in the order in which they first occur."""
    found = {measure.name: measure for options in runs for measure in of_options(options)}
    return tuple(found.values()) or (KNOWN["accuracy"],)
