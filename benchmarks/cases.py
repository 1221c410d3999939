"""What is measured: rules, models, numbers of agents, and the data that all contestants share.

Axes: n samples, c h w channels, rows, columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.own import WIDTHS, own
from parley import models
from parley.data import Samples, Transform
from parley.experiment import Experiment
from parley.graphs import Topology, ring
from parley.training.problem import Problem

Rule = Literal["dpsgd", "ngc0", "ngc1", "compngc", "cga"]

RULES: dict[Rule, str] = {
    "dpsgd": "D-PSGD",
    "ngc0": "NGC α=0",
    "ngc1": "NGC α=1",
    "compngc": "CompNGC",
    "cga": "CGA",
}

CLASSES = 10
COLOUR = (3, 32, 32)
SHAPES = {
    **dict.fromkeys(("lenet5", "mlp"), (1, 28, 28)),
    "logistic": (1, 8, 8),
    **dict.fromkeys(("cnn5", "vgg11", "resnet20", "mobilenetv2", *WIDTHS), COLOUR),
    "resnet18": (3, 224, 224),
    "bert-mini": (128,),
}
"""Of one input: channels, rows and columns, or the tokens of a text."""
TOKENS = 30_522
"""Of the text models' vocabulary."""
OPTIONS: dict[str, dict[str, float]] = {"bert-mini": {"dropout": 0.0}}
"""No dropout: it would draw other numbers in each implementation."""


@dataclass(frozen=True)
class Case:
    """One configuration. What every contestant computes follows from it alone."""

    rule: Rule
    model: str
    agents: int
    batch: int = 32
    samples: int = 256
    """Of each agent."""
    hidden: int = 64
    """Units of the mlp."""
    lr: float = 0.01
    momentum: float = 0.9
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"

    @property
    def key(self) -> str:
        """Names the case in results and filters."""
        return f"{self.model}/{self.agents}/{self.rule}"

    @property
    def pass_length(self) -> int:
        """The steps an agent needs for one pass over its samples."""
        return -(-self.samples // self.batch)

    @property
    def shape(self) -> tuple[int, ...]:
        return SHAPES[self.model]

    @property
    def is_text(self) -> bool:
        return len(self.shape) == 1

    def topology(self) -> Topology:
        return ring(self.agents)

    def start(self) -> nn.Module:
        """The model from which every agent starts, initialised as Parley does."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._build()().to(getattr(torch, self.dtype))

    def _build(self) -> partial[nn.Module]:
        if self.model in WIDTHS:
            return partial(own, self.model, self.shape, CLASSES)
        options = {"hidden": self.hidden} if self.model == "mlp" else OPTIONS.get(self.model, {})
        return partial(models.build, self.model, self.shape, CLASSES, **options)

    def transform(self) -> Transform:
        """As in the paper: colour images are flipped and cropped, others are not."""
        if self.is_text:
            return Transform()
        channels, *_ = self.shape
        half = (0.5,) * channels
        return Transform(half, half, *((True, 4) if channels == 3 else (False, 0)))

    def samples_of(self, agent: int) -> Samples:
        """An agent's own samples: only some classes, each a distinct pattern with noise."""
        rng = np.random.default_rng([self.seed, agent])
        own = [c for c in range(CLASSES) if c % self.agents == agent] or [agent % CLASSES]
        targets = rng.choice(own, self.samples)
        if self.is_text:
            texts = rng.integers(1_000, TOKENS, size=(self.samples, *self.shape))
            texts[:, 0] = targets
            return Samples(torch.from_numpy(texts), torch.from_numpy(targets))
        patterns = np.random.default_rng(self.seed).integers(128, size=(CLASSES, *self.shape))
        noise = rng.integers(128, size=(self.samples, *self.shape), dtype=np.uint8)
        inputs = patterns.astype(np.uint8)[targets] + noise
        return Samples(torch.from_numpy(inputs), torch.from_numpy(targets))

    def problem(self, hosted: Sequence[int]) -> Problem:
        """The same for Parley, with the data of these agents."""
        own = [self.samples_of(agent) for agent in hosted]
        names = tuple(map(str, range(CLASSES)))
        test = own[0].take(range(8))
        return Problem(self.topology(), self._build(), own, test, self.transform(), names)

    def experiment(self, workers: int, threads: int = 1) -> Experiment:
        """The experiment that Parley runs."""
        algorithm, options = {
            "dpsgd": ("dpsgd", {}),
            "ngc0": ("ngc", {"alpha": 0.0}),
            "ngc1": ("ngc", {"alpha": 1.0}),
            "compngc": ("compngc", {"alpha": 1.0}),
            "cga": ("cga", {}),
        }[self.rule]
        return Experiment.of(
            algorithm=algorithm,
            **options,
            momentum=self.momentum,
            model=self.model,
            agents=self.agents,
            batch=self.batch,
            lr=self.lr,
            seed=self.seed,
            dtype=self.dtype,
            engine="auto",
            workers=workers,
            threads=threads,
            epochs=1,
        )

    def gradients(self) -> int:
        """Batch gradients that a step needs: one per agent, and one per edge of the ring."""
        return self.agents * (1 if self.rule == "dpsgd" else 3)

    def flops(self) -> int:
        """Floating-point operations of a step's gradients."""
        return self.gradients() * self.batch * gradient_flops(self.start(), self.shape)


def forward_flops(model: nn.Module, shape: tuple[int, ...]) -> list[int]:
    """Of each convolution and dense layer for one sample, in the order of use: 2 for each
    multiplication with its addition."""
    counts: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counts.append(2 * output[0].numel() * weight[0].numel())

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    dtype = next(model.parameters()).dtype if len(shape) > 1 else torch.int64
    with torch.no_grad():
        model(torch.ones(1, *shape, dtype=dtype))  # a token of 0 would be padding
    for hook in hooks:
        hook.remove()
    return counts


def gradient_flops(model: nn.Module, shape: tuple[int, ...]) -> int:
    """For one sample: forward, gradient by the weights, and (not for the first) by the inputs."""
    counts = forward_flops(model, shape)
    return 3 * sum(counts) - counts[0]


def every_case() -> list[Case]:
    """All configurations, grouped by number of agents."""
    paper = [
        Case(rule, model, agents)
        for agents in (5, 10, 20)
        for model in ("lenet5", "cnn5", "mlp")
        for rule in RULES
    ]
    deeper = [
        *(Case("ngc1", model, 10) for model in ("vgg11", "mobilenetv2", "own")),
        *(Case("ngc1", "resnet20", agents) for agents in (5, 10, 20)),
    ]
    growth = [Case("ngc1", "logistic", agents) for agents in (10, 100, 1_000, 10_000)]
    return sorted(paper + deeper + growth, key=lambda case: case.agents)


NETWORKS = (
    *(Case("ngc1", model, 10) for model in ("lenet5", "cnn5", *WIDTHS, "vgg11")),
    *(Case("ngc1", "resnet20", agents) for agents in (5, 10, 20)),
    Case("ngc1", "mobilenetv2", 10),
    Case("ngc1", "bert-mini", 3, batch=16, samples=32),
    Case("ngc1", "resnet18", 3, batch=16, samples=32),
)
"""The networks of the paper and a user's own, from the quickest to the slowest."""


QUICK = (
    "lenet5/10/dpsgd",
    "lenet5/10/ngc1",
    "lenet5/10/compngc",
    "lenet5/10/cga",
    "mlp/10/ngc1",
    "logistic/100/ngc1",
)
