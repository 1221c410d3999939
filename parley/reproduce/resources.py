"""What the methods cost in communication and memory, against the printed tables.

Communication of an agent, in GiB (the paper's "GB"):

    [steps · f + 51] · degree · (P + 1) · 4 / 2³⁰

f is 1 where only models are sent, 2 with cross-gradients, 1 + 1/32 with compressed ones; 51 are the
final gossip rounds, P the model's parameters. Nothing is trained for it. The printed figures are in
the CSV files here, each that does not agree with what is wrong with it. ``half of NGC's``: the
paper halved NGC's figure, and with it the final gossip, which is the same for all methods.

>>> row = communication()[0]
>>> row.name, row.printed, round(row.formula, 2), row.remark
('cifar10/cnn5/ring/5', 17.75, 17.75, '')
"""

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

import torch

from parley import models
from parley.reproduce import costs
from parley.reproduce.cells import Cell, cells
from parley.reproduce.study import named
from parley.training.events import EpochDone

FACTORS = {"cga": 2.0, "ngc": 2.0, "compcga": 1 + 1 / 32, "compngc": 1 + 1 / 32}
"""f of the formula; 1 for the other methods."""
GOSSIP = 51
KEPT = {"cga": 1.0, "ngc": 0.0, "compcga": 1 + 1 / 32, "compngc": 1.0}
"""In models for each neighbour: CGA the cross-gradients, CompNGC their errors, CompCGA the errors
and the packed cross-gradients; NGC adds up as it goes."""


class Printed(NamedTuple):
    """A printed figure, and what the formula gives instead: communication in GiB, memory beyond
    D-PSGD on a ring in MiB (the paper's "MB")."""

    table: str
    name: str
    """A cell without the method, or a network."""
    methods: str
    printed: float | None
    """None if it is missing from the paper."""
    formula: float
    remark: str
    """What is wrong with the printed figure; empty if it agrees."""


@cache
def parameters(model: str, data: str) -> int:
    """Parameters of a network for a dataset.

    >>> parameters("lenet5", "fashion_mnist")
    61706
    """
    facts = named("paper").data[data]
    with torch.device("meta"):  # shapes without memory
        network = models.build(model, facts.shape, facts.classes)
    return sum(p.numel() for p in network.parameters())


def gib(cell: Cell) -> float:
    """What an agent sends over a run, by the formula, in GiB."""
    factor = FACTORS.get(cell.method, 1.0)
    messages = cell.usual.epochs * cell.steps_per_epoch * factor + GOSSIP
    size = parameters(cell.usual.model, cell.usual.data) + 1
    return messages * costs.degree(cell) * size * 4 / 2**30


def communication() -> list[Printed]:
    """Every figure of the printed tables with the one from the formula."""
    made = []
    for row in _rows("communication.csv"):
        *_, last = methods = row["methods"].split("+")
        formula = gib(cells(named("paper"))[f"{row['cell']}/{last}"])
        printed = float(row["printed_gib"]) if row["printed_gib"] else None
        names = ", ".join(map(_label, methods))
        made.append(Printed(row["table"], row["cell"], names, printed, formula, row["remark"]))
    return made


def memory() -> list[Printed]:
    """The printed table of memory overheads next to what the paper's own orders give."""
    made = []
    for row in _rows("memory.csv"):
        size = parameters(row["model"], "cifar10")
        formula = KEPT[row["method"]] * 2 * size * 4 / 2**20
        printed, label = float(row["printed_mib"]), _label(row["method"])
        made.append(Printed("memory", row["model"], label, printed, formula, row["remark"]))
    return made


def _label(method: str) -> str:
    cell = cells(named("paper"))[f"cifar10/cnn5/ring/5/{method}"]
    return cell.label


def _rows(name: str) -> list[Mapping[str, str]]:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


class Measured(NamedTuple):
    """The bytes an agent actually sent in one step and in one round of final gossip."""

    step: float
    gossip: float
    steps: int
    """Of the published run."""

    @property
    def gib(self) -> float:
        """The same over the published run."""
        return (self.steps * self.step + GOSSIP * self.gossip) / 2**30


def measure(cell: Cell, steps: int = 3) -> Measured:
    """Counts the bytes of a short real run on random samples, headers included."""
    short = {"epochs": 1, "batch": 2, "lr": 1e-6, "gossip_rounds": GOSSIP, "bias_norms": "off"}
    run = costs.random_run(cell.usual.replace(**short), cell.facts, 2 * steps)
    next(event for event in run.events() if isinstance(event, EpochDone))
    sent = {name: float(v.double().mean()) for name, v in run.transport.sent.items()}
    return Measured(
        step=(sent["models"] + sent["cross_gradients"]) / run.steps_per_epoch,
        gossip=sent["evaluation"] / GOSSIP,
        steps=cell.usual.epochs * cell.steps_per_epoch,
    )
