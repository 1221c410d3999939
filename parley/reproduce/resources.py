"""What the methods cost in communication and memory, against the printed tables.

Communication of an agent, in GiB (the paper's "GB"):

    [steps · f + 51] · degree · (P + 1) · 4 / 2³⁰

f is 1 where only models are sent, 2 with cross-gradients, 1 + 1/32 with compressed ones; 51 are the
final gossip rounds, P the model's parameters. Nothing is trained for it.

>>> row = communication()[0]
>>> row.name, row.printed, round(row.formula, 2), row.remark
('cifar10/cnn5/ring/5', 17.75, 17.75, '')
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from parley import models
from parley.reproduce import costs
from parley.reproduce.preset import METHODS, Preset, classes
from parley.reproduce.presets import presets, read_csv
from parley.training.events import EpochDone
from parley.training.trainer import Trainer
from parley.wire.local import Local
from parley.wire.placement import spread

ROUNDS = {"dpsgd": 1.0, "gut": 1.0, "qgm": 1.0, "ngc-alpha0": 1.0, "cga": 2.0, "ngc": 2.0}
"""f of the formula; 1 + 1/32 for the compressed methods."""
SWAPPED = {486.59: 468.59}
"""Printed figures with two digits swapped."""
GOSSIP = 51
EXACT = 0.011
"""GiB by which a printed figure may be off: the paper rounds, sometimes down."""
ROUNDED = 5e-4
"""Relative tolerance where parameters are known only to four digits."""


@cache
def parameters(model: str, data: str) -> int:
    """Parameters of a network for a dataset.

    >>> parameters("lenet5", "fashion_mnist")
    61706
    """
    with torch.device("meta"):  # shapes without memory
        network = models.build(model, costs.input_shape(data), classes(data))
    return sum(p.numel() for p in network.parameters())


def messages(preset: Preset) -> float:
    """What an agent sends to each neighbour over a run, in units of whole models."""
    steps = preset.epochs * preset.steps_per_epoch
    return steps * ROUNDS.get(preset.method, 1 + 1 / 32) + GOSSIP


def gib(preset: Preset) -> float:
    """What an agent sends over a run, by the formula, in GiB."""
    size = parameters(preset.model, preset.data) + 1
    return messages(preset) * costs.degree(preset) * size * 4 / 2**30


@dataclass(frozen=True)
class Communication:
    """One cell of the paper's communication tables."""

    table: str
    name: str
    """The name of the cell, without the method."""
    methods: str
    printed: float | None
    formula: float
    remark: str = ""
    """What is wrong with the printed figure; empty if it agrees. ``half of NGC's``: the paper
    halved NGC's figure, and with it the final gossip, which is the same for all methods."""


def communication() -> list[Communication]:
    """Every cell of the printed tables with the figure from the formula."""
    rows = read_csv("communication.csv")
    printed = {(_group(r), r["methods"]): _number(r["printed_gb"]) for r in rows}
    made = []
    for row in rows:
        preset = presets()[f"{_group(row)}/{row['methods'].rpartition('+')[2]}"]
        double = printed[_group(row), "cga+ngc"]
        value = printed[_group(row), row["methods"]]
        remark = _remark(preset, value, double)
        words = ", ".join(METHODS[m] for m in row["methods"].split("+"))
        made.append(Communication(row["table"], _group(row), words, value, gib(preset), remark))
    return made


def _group(row: dict[str, str]) -> str:
    return "/".join(row[k] for k in ("data", "model", "topology", "agents"))


def _number(text: str) -> float | None:
    return float(text) if text else None


def _agrees(preset: Preset, printed: float, value: float) -> bool:
    loose = ROUNDED * value if preset.data == "ag_news" else 0.0
    return abs(printed - value) <= max(EXACT, loose)


def _remark(preset: Preset, printed: float | None, double: float | None) -> str:
    """Why a printed figure differs from the formula; `double` is that of CGA and NGC."""
    value = gib(preset)
    if printed is None:
        return "missing from the paper"
    if _agrees(preset, printed, value):
        return ""
    if printed in SWAPPED:
        return f"misprint for {SWAPPED[printed]}"
    share = ROUNDS.get(preset.method, 1 + 1 / 32) / 2
    if share < 1 and double and abs(printed - share * SWAPPED.get(double, double)) <= 2 * EXACT:
        return "half of NGC's" if share == 0.5 else "33/64 of NGC's"
    return "misprint"


@dataclass(frozen=True)
class Memory:
    """What a method keeps beyond D-PSGD on a ring, in MiB (the paper's "MB")."""

    model: str
    method: str
    printed: float
    formula: float
    remark: str = ""


KEPT = {"cga": 1.0, "ngc": 0.0, "compcga": 1 + 1 / 32, "compngc": 1.0}
"""In models for each neighbour: CGA the cross-gradients, CompNGC their errors, CompCGA the errors
and the packed cross-gradients; NGC adds up as it goes."""


def memory() -> list[Memory]:
    """The printed table of memory overheads next to what the paper's own orders give.

    >>> [(m.printed, round(m.formula, 2)) for m in memory() if m.model == "resnet20"][0]
    (2.28, 2.08)
    """
    made = []
    for row in read_csv("memory.csv"):
        size = parameters(row["model"], "cifar10")
        values = {m: kept * 2 * size * 4 / 2**20 for m, kept in KEPT.items()}
        for method in KEPT:
            printed, value = float(row[method]), values[method]
            remark = ""
            if abs(printed - value) > 0.0051:
                other = {"compcga": "compngc", "compngc": "compcga"}.get(method)
                if other and abs(printed - values[other]) <= 0.011:
                    remark = f"{METHODS[other]}'s: columns swapped"
                else:
                    remark = "misprint"
            made.append(Memory(row["model"], METHODS[method], printed, value, remark))
    return made


@dataclass(frozen=True)
class Measured:
    """The bytes an agent actually sent in one step and in one round of final gossip."""

    step: float
    gossip: float
    steps: int
    """Of the paper's run."""

    @property
    def gib(self) -> float:
        """The same over the paper's run."""
        return (self.steps * self.step + GOSSIP * self.gossip) / 2**30


def measure(preset: Preset, steps: int = 3) -> Measured:
    """Counts the bytes of a short real run on random samples, headers included."""
    experiment = preset.experiment(
        epochs=1, batch=2, lr=1e-6, gossip_rounds=GOSSIP, bias_norms="off"
    )
    problem = costs.random_problem(experiment, 2 * steps)
    run = Trainer(experiment, problem, Local(spread(problem.topology, 1)))
    for event in run.events():
        if isinstance(event, EpochDone):
            break
    sent: dict[Any, float] = {k: float(v.double().mean()) for k, v in run.transport.sent.items()}
    return Measured(
        step=(sent["models"] + sent["cross_gradients"]) / run.steps_per_epoch,
        gossip=sent["evaluation"] / GOSSIP,
        steps=preset.epochs * preset.steps_per_epoch,
    )
