"""``parley reproduce resources`` and ``theory``: what can be checked of the NGC paper untrained."""

import json
from pathlib import Path
from typing import Annotated

import typer

from parley import graphs as topologies
from parley.cli.options import count, option, switch
from parley.cli.screen import screen
from parley.errors import BadValue
from parley.process import torch_threads
from parley.reproduce import resources
from parley.reproduce.cells import select
from parley.reproduce.study import named
from parley.reproduce.theory import bounds
from parley.reproduce.theory.pictures import picture as draw_theory
from parley.results.table import Table
from parley.watch.log import console

Json = Annotated[bool, switch("Print one JSON object on stdout instead.", "--json")]


def number(name: str, value: str | None, valid: str = "a number") -> float | None:
    """The value of an option that is a number, if it is given."""
    try:
        return None if value is None else float(value)
    except ValueError:
        raise BadValue(name, value, valid) from None


def show_resources(
    all_: Annotated[bool, switch("Also show the figures that agree.", "--all")] = False,
    measure: Annotated[
        str | None,
        option("Also count the bytes of a few real steps of a preset.", "NAME"),
    ] = None,
    json_: Json = False,
) -> None:
    """Compare communication and memory with the printed tables, and list the misprints."""
    counted = select(named("paper"), measure) if measure else []
    measured = [(c.name, resources.gib(c), resources.measure(c).gib) for c in counted]
    communication, memory = resources.communication(), resources.memory()
    if json_:
        keys = ("name", "formula", "measured")
        made = {"communication": [row._asdict() for row in communication]}
        made["memory"] = [row._asdict() for row in memory]
        made["measured"] = [dict(zip(keys, row, strict=True)) for row in measured]
        print(json.dumps(made))
        return
    agree = sum(not row.remark for row in communication)
    heads = ("communication of an agent, GiB", "memory beyond D-PSGD on a ring, MiB")
    for title, figures in zip(heads, (communication, memory), strict=True):
        rows = [
            [r.name, r.methods, f"{r.printed or 0:.2f}", f"{r.formula:.2f}", r.remark]
            for r in figures
            if all_ or r.remark
        ]
        headings = ["cell", "methods", "printed", "formula", ""]
        said = f": {agree} of {len(figures)} figures agree" if figures is communication else ""
        shown = Table(headings, rows, frozenset({0, 1, 4}), title + said)
        screen.print(shown.terminal(screen.width))
    screen.print(
        "Formula: [steps·f + 51]·degree·(P + 1)·4 / 2³⁰; f = 1 for D-PSGD and NGC α=0, 2 for CGA "
        "and NGC, 1 + 1/32 for CompCGA and CompNGC; 51 for the final gossip. Half (33/64) of "
        "NGC's: outside the CIFAR-10 table the paper divides NGC's whole figure, although the "
        "final gossip is the same for every method. The paper's 32× is the second round alone: "
        "with the models, the total falls by 1.94×.",
        highlight=False,
        markup=False,
    )
    if measured:
        lines = [[name, f"{f:.4f}", f"{m:.4f}", f"{m / f - 1:+.3%}"] for name, f, m in measured]
        headings = ["preset", "formula", "measured", "headers and scales"]
        title = "measured, GiB over the paper's run"
        screen.print(Table(headings, lines, title=title).terminal())


def show_theory(
    topology: Annotated[str, typer.Option(help="Graph, as in parley topology.", metavar="SPEC")] = (
        "ring"
    ),
    agents: Annotated[str, typer.Option(help="Number of agents.", metavar="N")] = "10",
    smoothness: Annotated[str, typer.Option(help="L, the smoothness.", metavar="NUMBER")] = "1",
    momentum: Annotated[str, typer.Option(help="β, the momentum.", metavar="NUMBER")] = "0.9",
    lr: Annotated[
        str | None,
        option("η, for the constants C1 to C5. (default: the upper end)", "NUMBER"),
    ] = None,
    picture: Annotated[
        Path | None,
        option(
            "Also check the lemmas and the rate on quadratics, and plot them; takes half a minute.",
            "FILE",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Show Theorem 1's step sizes and constants for a graph, and why no step size satisfies it."""
    graph = topologies.parse(topology, count("agents", agents))
    big_l = number("smoothness", smoothness) or 0.0
    beta = number("momentum", momentum) or 0.0
    sizes = bounds.StepSizes.of(graph, big_l, beta)
    given = number("lr", lr)
    rate = sizes.upper if given is None else given
    constants = bounds.Constants.of(rate, big_l, beta) if beta else None
    if picture:
        # With several threads, small matrices take many times as long on a busy machine.
        with console.status("checking lemmas and rate on quadratics"), torch_threads(1):
            draw_theory(picture)
    if json_:
        ends = {"lower": sizes.lower if beta else None, "upper": sizes.upper, "cap": sizes.cap}
        found = {"root_rho": bounds.root_rho(graph), **ends, "empty": sizes.empty, "lr": rate}
        print(json.dumps(found | {"constants": constants and constants._asdict()}))
        return
    rows = []
    rows.append(["√ρ", f"{bounds.root_rho(graph):.6g}"])
    rows.append(["η must be above", f"{sizes.lower:.6g}   (1-β)²/(βL)"])
    rows.append(["and at most", f"{sizes.upper:.6g}   at most {sizes.cap:.6g} on any graph"])
    rows.append(["step sizes", bounds.WHY_EMPTY])
    if constants:
        for name, value in zip(constants._fields, constants, strict=True):
            rows.append([f"{name.upper()} at η = {rate:.4g}", f"{value:.6g}"])
        negative = "negative: the bound is divided by it and says nothing"
        small = "positive, but η is above the upper end: the proof does not hold"
        rows.append(["C1 is", negative if constants.c1 <= 0 else small])
    title = f"Theorem 1 for {graph.name} of {graph.agents}, L = {big_l:g}, β = {beta:g}"
    screen.print(Table(["", ""], rows, frozenset({0, 1}), title).terminal())
    if picture:
        screen.print(f"drawn to {picture}", highlight=False, soft_wrap=True)
