"""Every cell of the paper's tables and every curve of its figures as an experiment, by name.

>>> preset = presets()["fashion_mnist/lenet5/ring/10/ngc"]
>>> preset.paper, preset.experiment().lr, preset.experiment().algorithm.momentum
(Paper(accuracy=87.24, std=0.23), 0.01, 0.9)
>>> preset.experiment("as-printed").algorithm.nesterov, preset.experiment().algorithm.nesterov
(False, True)
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from parley.errors import BadValue, nearest, unknown_name
from parley.reproduce import followup
from parley.reproduce.preset import LABELS, Paper, Preset

TABLES = {
    "cifar10": "CIFAR-10, several networks and graphs",
    "datasets": "Fashion-MNIST, CIFAR-100 and Imagenette at 32 pixels, on a ring",
    "text-fullres": "AG News, and Imagenette at 224 pixels",
    "figures": "curves of the figures: CIFAR-10, 5-layer CNN",
    followup.TABLE: "CIFAR-10 under the conditions of later papers: not in the NGC paper",
}
"""Names of the tables and what they show."""
_WITH_NORMS = frozenset(
    f"figures/{name}/{n}/{end}"
    for n in (5, 10)
    for name, end in (("non-iid", "ring"), ("methods", "cga"))
)


@dataclass(frozen=True)
class Figure:
    """One figure of the paper and the runs it needs."""

    name: str
    title: str
    field: str
    """Of a record."""
    axis: str
    lines: Mapping[str, str]
    """Label to preset."""


@cache
def presets() -> Mapping[str, Preset]:
    """All of them: 132 cells of the tables, the curves of the figures, and the follow-up.

    >>> len([p for p in presets().values() if p.paper])
    132
    """
    made = [_cell(row) for row in read_csv("cells.csv")]
    made += [_curve(row) for row in read_csv("figures.csv")]
    made += followup.follow_up_presets()
    return {preset.name: preset for preset in made}


@cache
def figures() -> Mapping[str, Figure]:
    """The figures by name.

    A run that appears in two figures (NGC on a ring, non-IID) is made only once. There is
    no torus of 5 agents; as run, it would be a ring.
    """
    loss, accuracy = "test loss, averaged model", "test accuracy after gossip, %"
    made = []
    for n in (5, 10):
        graphs = ("ring", "full") if n == 5 else ("ring", "torus", "full")
        for kind, words in (("iid", "IID"), ("non-iid", "non-IID")):
            lines = {graph: f"figures/{kind}/{n}/{graph}" for graph in graphs}
            made.append(
                Figure(f"figures/{kind}/{n}", f"NGC, {words}, {n} agents", "loss", loss, lines)
            )
        lines = {"NGC": f"figures/non-iid/{n}/ring", "CGA": f"figures/methods/{n}/cga"}
        where = f"non-IID, ring of {n}"
        made += [
            Figure(f"figures/methods/{n}", f"NGC and CGA, {where}", "loss", loss, lines),
            Figure(
                f"figures/epsilon/{n}",
                f"Model variance bias ε, {where}",
                "epsilon_norm",
                "norm of ε",
                lines,
            ),
            Figure(
                f"figures/omega/{n}",
                f"Data variance bias ω, {where}",
                "omega_norm",
                "norm of ω",
                lines,
            ),
        ]
    alphas = {f"α = {a}": f"figures/alpha/10/{a}" for a in ("0", "0.25", "0.5", "0.75", "1")}
    title = "NGC's α, non-IID, ring of 10"
    made.append(Figure("figures/alpha/10", title, "accuracy_after_gossip", accuracy, alphas))
    return {figure.name: figure for figure in made}


def select(
    name: str, agents: int | None = None, methods: Sequence[str] | None = None
) -> list[Preset]:
    """Presets by a name, its beginning, a table, a figure, or ``all``; then by agents and methods.

    >>> [p.name for p in select("datasets", agents=10, methods=["dpsgd"])][0]
    'fashion_mnist/lenet5/ring/10/dpsgd'
    >>> [p.name for p in select("figures/epsilon/5")]
    ['figures/non-iid/5/ring', 'figures/methods/5/cga']
    >>> select("fashion_mnist/lenet/ring")
    Traceback (most recent call last):
    parley.errors.BadValue: preset: 'fashion_mnist/lenet/ring' is not valid (nearest:
    fashion_mnist/lenet5/ring, ...); valid: a name or the beginning of one, as `parley reproduce`
    lists them
    """
    known = presets()
    wanted = name.strip("/")
    found = [p for p in known.values() if wanted in ("all", p.table) or _begins(p.name, wanted)]
    for figure in figures().values():
        if _begins(figure.name, wanted):
            found += [known[line] for line in figure.lines.values()]
    found = list({p.name: p for p in found}.values())
    if not found:
        near = ", ".join(_nearest(wanted))
        valid = "a name or the beginning of one, as `parley reproduce` lists them"
        raise BadValue("preset", name, valid, because=f"nearest: {near}" if near else "")
    for method in methods or ():
        if method not in LABELS:
            raise unknown_name("methods", method, LABELS)
    if agents is not None:
        numbers = sorted({p.agents for p in found})
        found = [p for p in found if p.agents == agents]
        if not found:
            raise BadValue("agents", agents, f"{', '.join(map(str, numbers))} for {name}")
    if methods is not None:
        having = [m for m in LABELS if m in {p.method for p in found}]
        found = [p for p in found if p.method in methods]
        if not found:
            raise BadValue("methods", ",".join(methods), f"{', '.join(having)} for {name}")
    return found


def _begins(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(wanted + "/")


def _nearest(wanted: str) -> Iterable[str]:
    names = dict.fromkeys([*TABLES, *figures(), *presets()])
    for name in list(presets()):
        parts = name.split("/")
        names |= dict.fromkeys("/".join(parts[:n]) for n in range(1, len(parts)))
    return nearest(wanted, names, 3)


def read_csv(name: str) -> list[dict[str, str]]:
    """A table of figures that ships with the package."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _hyper(row: Mapping[str, str]) -> dict[str, float]:
    return {k: float(row[k]) for k in ("alpha", "momentum", "gamma") if row[k]}


def _cell(row: Mapping[str, str]) -> Preset:
    name = "/".join(row[k] for k in ("data", "model", "topology", "agents", "method"))
    return Preset(
        name=name,
        table=row["table"],
        data=row["data"],
        model=row["model"],
        topology=row["topology"],
        agents=int(row["agents"]),
        method=row["method"],
        partition="skew:1",
        epochs=int(row["epochs"]),
        batch=int(row["batch"]),
        lr=float(row["lr"]),
        # AG News: at the second of three epochs, counted from 0 as everywhere.
        lr_decay="step:0.1,0.66" if row["data"] == "ag_news" else "step",
        # The paper lists Imagenette's NGC and CompNGC with α = 0, and CGA too, which has no α. That
        # is more likely a slip in the table than what was run, but nothing says what was run.
        hyper=_hyper(row),
        paper=Paper(float(row["accuracy"]), float(row["accuracy_std"])),
    )


def _curve(row: Mapping[str, str]) -> Preset:
    name = f"figures/{row['name']}"
    return Preset(
        name=name,
        table="figures",
        data=row["data"],
        model=row["model"],
        topology=row["topology"],
        agents=int(row["agents"]),
        method=row["method"],
        partition=row["partition"],
        epochs=int(row["epochs"]),
        batch=32,
        lr=float(row["lr"]),
        lr_decay="exponential:0.981",
        hyper=_hyper(row),
        bias_norms=name in _WITH_NORMS,
    )
