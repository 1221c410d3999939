"""One cell of a table or one curve of a figure: what it is and which experiment it stands for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from parley.algorithms import ALGORITHMS, AlgorithmKind
from parley.data import steps_per_epoch
from parley.data.partition import partition
from parley.errors import BadValue, unknown_name
from parley.experiment import VARIANTS, Experiment
from parley.graphs import parse as parse_graph

METHODS = {
    "dpsgd": "D-PSGD",
    "ngc-alpha0": "NGC α=0",
    "cga": "CGA",
    "ngc": "NGC",
    "compcga": "CompCGA",
    "compngc": "CompNGC",
}
"""The six rows of the paper's tables."""
LABELS = METHODS | {"gut": "GUT", "qgm": "QGM"}
"""Every method of a preset."""
SAMPLES = {
    "cifar10": 50_000,
    "cifar100": 50_000,
    "fashion_mnist": 60_000,
    "imagenette": 9_469,
    "imagenette-224": 9_469,
    "ag_news": 120_000,
}
"""Training samples of the whole datasets."""
DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion_mnist": "Fashion-MNIST",
    "imagenette": "Imagenette at 32 pixels",
    "imagenette-224": "Imagenette at 224 pixels",
    "ag_news": "AG News",
}
"""What they are called."""
CLASSES = {"cifar100": 100, "ag_news": 4}
"""10 for the others."""
TESTED = {"imagenette": 3_925, "imagenette-224": 3_925, "ag_news": 7_600}
"""Test samples; 10,000 for the others."""
WITH_EVONORM = frozenset({"cnn5", "vgg11", "resnet20", "mobilenetv2", "resnet18"})
CHOICES = {
    "gradient": "gradient_at",
    "momentum": "nesterov",
    "floor": "qp_floor",
    "scale": "qp_scale",
    "scope": "scope",
    "evonorm": "evonorm",
}
"""Where the printed paper and the authors' code differ, and the option that decides it: the variant
``as-run-but-floor`` is as run except for this one choice, ``as-run-but-floor,scale`` except for
these two, which are as printed."""
EVALUATE_EVERY = 5
"""Epochs between records in a long run."""
FEWEST_RECORDS = 4
"""A run with at least this many epochs counts as long. Testing every agent's model twice takes as
long as a third of a training epoch, so a short run has no more records than its curve needs."""


class Paper(NamedTuple):
    """What the paper reports: mean and standard deviation over three seeds, in percent."""

    accuracy: float
    std: float


@dataclass(frozen=True)
class Reduction:
    """How much smaller a run is than the paper's; by default not at all.

    >>> Reduction(20, 0.1).words(100), Reduction(20, 0.1).suffix
    ('20 of 100 epochs, 10 % of the data', '-20-epochs-0.1-data')
    >>> bool(Reduction())
    False
    """

    epochs: int | None = None
    fraction: float | None = None
    """Share of the training samples, equal for every class."""

    def __bool__(self) -> bool:
        return self.epochs is not None or self.fraction is not None

    @property
    def suffix(self) -> str:
        """The suffix of its folder: a reduced run is a different experiment."""
        epochs = f"-{self.epochs}-epochs" if self.epochs is not None else ""
        return epochs + (f"-{self.fraction:g}-data" if self.fraction is not None else "")

    def words(self, of_epochs: int) -> str:
        """As readable text."""
        parts = [f"{self.epochs} of {of_epochs} epochs"] if self.epochs is not None else []
        if self.fraction is not None:
            parts.append(f"{100 * self.fraction:g} % of the data")
        return ", ".join(parts)


WHOLE = Reduction()


@dataclass(frozen=True)
class Preset:
    """One cell of a table or one curve of a figure."""

    name: str
    """For example ``fashion_mnist/lenet5/ring/10/ngc`` or ``figures/iid/5/full``."""
    table: str
    data: str
    model: str
    topology: str
    """As the paper calls it: ring, torus, chain, full. In the follow-up, as Parley calls it."""
    agents: int
    method: str
    partition: str
    epochs: int
    batch: int
    lr: float
    lr_decay: str
    hyper: Mapping[str, Any]
    """alpha, momentum, gamma and other options of the method."""
    paper: Paper | None = None
    bias_norms: bool = False

    @property
    def group(self) -> str:
        """What it shares with the other methods it is compared with."""
        return self.name.rpartition("/")[0]

    @property
    def folder(self) -> str:
        """Its folder among the results."""
        inside = self.name.removeprefix("figures/") if self.table == "figures" else self.name
        return f"{self.table}/{inside.replace('/', '-')}"

    @property
    def label(self) -> str:
        """The method's name."""
        return LABELS[self.method]

    @property
    def steps_per_epoch(self) -> int:
        """On the full dataset, including the last short batch."""
        return steps_per_epoch([self.largest_part], self.batch)

    @property
    def largest_part(self) -> int:
        """Samples of the agent that has most; of seed 0, if that matters."""
        if not self.partition.startswith("dirichlet:"):
            return math.ceil(SAMPLES[self.data] / self.agents)
        return _largest_part(self.partition, self.data, self.graph("as-run"), self.agents)

    def experiment(
        self, variant: str = "as-run", reduction: Reduction = WHOLE, **others: Any
    ) -> Experiment:
        """What to run; `others` are further options, such as a seed."""
        base, printed = parse_variant(variant)
        as_run = base == "as-run"
        epochs = self._epochs(reduction)
        options: dict[str, Any] = {
            "data": self.data,
            "model": self.model,
            "agents": self.agents,
            "topology": self.graph(variant),
            "partition": self.partition,
            "algorithm": self.method.removesuffix("-alpha0"),
            **self.hyper,
            "weight_decay": 0.0,
            "epochs": epochs,
            "batch": self.batch,
            "lr": self.lr,
            "lr_decay": self.lr_decay,
            "gossip_rounds": 51,
            "evaluate_every": evaluate_every(epochs),
        }
        if "gradient_at" in self._algorithm.options():  # QGM, for one, has a single reading
            options["variant"] = base
        for choice in printed:
            options |= self._as_printed(variant, choice)
        if self.model in WITH_EVONORM:
            hard = as_run and "evonorm" not in printed
            options["model_options"] = {"evonorm": "hard-swish" if hard else "s0"}
        if self.bias_norms:
            options["bias_norms"] = "run" if as_run else "printed"
        name, _, factor = self.lr_decay.partition(":")
        if name == "exponential" and epochs != self.epochs:
            # A shorter run covers the same range of learning rates.
            options["lr_decay"] = f"{name}:{float(factor) ** (self.epochs / epochs):.6g}"
        if reduction.fraction is not None:
            options["fraction"] = reduction.fraction
        return Experiment.of(**options | others)

    @property
    def _algorithm(self) -> AlgorithmKind:
        return ALGORITHMS[self.method.removesuffix("-alpha0")]

    def _as_printed(self, variant: str, choice: str) -> dict[str, Any]:
        """The option for a choice as printed, if the choice applies to this run."""
        option = CHOICES[choice]
        algorithm = self._algorithm
        having = [name for name, of in CHOICES.items() if of in algorithm.options()]
        if not self.hyper.get("momentum") or "nesterov" in self.hyper:
            having.remove("momentum")
        if self.model in WITH_EVONORM:
            having.append("evonorm")
        if choice not in having:
            valid = f"as-run-but- followed by some of {', '.join(having)} for {self.name}"
            because = f"{self.label} does not depend on {choice} there"
            raise BadValue("variant", variant, valid, because)
        return {} if choice == "evonorm" else {option: algorithm.options()[option].default}

    def graph(self, variant: str) -> str:
        """The topology as Parley calls it: the authors' torus is a circulant graph."""
        as_run = variant.startswith("as-run")
        return "circulant:1,5" if self.topology == "torus" and as_run else self.topology

    def _epochs(self, reduction: Reduction) -> int:
        if reduction.fraction is not None and not 0 < reduction.fraction < 1:
            raise BadValue("fraction", reduction.fraction, "a number above 0 and below 1")
        if reduction.epochs is None:
            return self.epochs
        if not 1 <= reduction.epochs <= self.epochs:
            because = f"{self.name} has {self.epochs} epochs; --epochs can only shorten a run"
            raise BadValue("epochs", reduction.epochs, f"1 to {self.epochs}", because)
        return reduction.epochs

    def reduced(self, epochs: int | None, fraction: float | None) -> Reduction:
        """The reduction for these values here; the paper's number of epochs is not a reduction."""
        return Reduction(
            None if epochs == self.epochs else epochs, None if fraction == 1 else fraction
        )


def variants() -> list[str]:
    """The printed paper, the authors' code, and the code with a single choice as printed.

    >>> variants()[:3]
    ['as-printed', 'as-run', 'as-run-but-gradient']
    """
    return [*VARIANTS, *(f"as-run-but-{choice}" for choice in CHOICES)]


def parse_variant(variant: str) -> tuple[str, tuple[str, ...]]:
    """The base variant, and the choices that are as printed regardless, in a fixed order.

    >>> parse_variant("as-run-but-scale,floor"), parse_variant("as-printed")
    (('as-run', ('floor', 'scale')), ('as-printed', ()))
    """
    base, but, listed = variant.partition("-but-")
    named = listed.split(",") if but else []
    if base not in VARIANTS or (but and base != "as-run"):
        raise unknown_name("variant", variant, variants())
    for choice in named:
        if choice not in CHOICES or named.count(choice) > 1:
            valid = f"as-run-but- followed by some of {', '.join(CHOICES)}, comma-separated"
            raise BadValue("variant", variant, valid)
    return base, tuple(choice for choice in CHOICES if choice in named)


def variant_name(variant: str) -> str:
    """The canonical name of a variant, whatever the order of its choices.

    >>> variant_name("as-run-but-scale,floor")
    'as-run-but-floor,scale'
    """
    base, printed = parse_variant(variant)
    return f"{base}-but-{','.join(printed)}" if printed else base


def variant_words(variant: str) -> str:
    """As readable text; empty for the usual case, as run.

    >>> variant_words("as-run-but-floor"), variant_words("as-printed"), variant_words("as-run")
    ('floor as printed', 'as printed', '')
    >>> variant_words("as-run-but-floor,scale")
    'floor and scale as printed'
    """
    base, printed = parse_variant(variant)
    if printed:
        return f"{choice_words(printed)} as printed"
    return "as printed" if base == "as-printed" else ""


def choice_words(choices: Sequence[str]) -> str:
    """A list in words.

    >>> choice_words(["gradient", "floor", "scale"])
    'gradient, floor and scale'
    """
    *others, last = choices
    return f"{', '.join(others)} and {last}" if others else last


def evaluate_every(epochs: int) -> int:
    """Epochs between records in a run of `epochs`.

    >>> [evaluate_every(epochs) for epochs in (1, 3, 8, 100)]
    [1, 1, 2, 5]
    """
    return max(1, min(EVALUATE_EVERY, epochs // FEWEST_RECORDS))


def classes(data: str) -> int:
    """The number of classes of a dataset."""
    return CLASSES.get(data, 10)


def tested(data: str) -> int:
    """The number of test samples of a dataset."""
    return TESTED.get(data, 10_000)


def chance_level(data: str) -> float:
    """The accuracy below which guessing stays: three standard errors above one in `classes`.

    >>> chance_level("fashion_mnist")
    0.109
    """
    share = 1 / classes(data)
    return share + 3 * math.sqrt(share * (1 - share) / tested(data))


@cache
def _largest_part(spec: str, data: str, graph: str, agents: int) -> int:
    labels = np.arange(SAMPLES[data]) % classes(data)  # as many of each class
    return max(map(len, partition(spec, labels, parse_graph(graph, agents), 0).indices))
