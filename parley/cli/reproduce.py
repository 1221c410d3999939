"""``parley reproduce``: the paper's tables and figures by name."""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from parley import graphs as topologies
from parley.cli.guide import guide
from parley.cli.options import DataRoot, Parallel, check_place, count, option, switch
from parley.cli.screen import screen, stoppable
from parley.cluster.worker import threads
from parley.compute.threads import usable_cores
from parley.errors import BadValue
from parley.reproduce import campaign, costs, report, resources
from parley.reproduce.campaign import Order
from parley.reproduce.collect import Found, collect
from parley.reproduce.pictures import draw_all
from parley.reproduce.preset import CHOICES, LABELS, Preset
from parley.reproduce.presets import TABLES, presets, select
from parley.reproduce.theory import bounds
from parley.reproduce.theory.pictures import picture as draw_theory
from parley.results.table import Table
from parley.watch.log import console


class NameOrCommand(TyperGroup):
    """Anything that is not a command is the name of a preset to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Inserts ``run``, which lists the presets if no name follows."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=NameOrCommand,
    help="The tables and figures of the NGC paper: list them, run them, and compare our results "
    "with the paper's. [bold]parley reproduce[/bold] lists them; [bold]parley reproduce "
    "fashion_mnist --agents 10 --seeds 3[/bold] runs some.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.command()(guide)

Out = Annotated[Path, typer.Option("--out", help="Folder of the results.", metavar="FOLDER")]
Json = Annotated[bool, switch("Print one JSON object on stdout instead.", "--json")]


def _whole(name: str, value: str | None) -> int | None:
    return None if value is None else count(name, value)


def _number(name: str, value: str | None, valid: str) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        raise BadValue(name, value, valid) from None


PresetName = Annotated[
    str | None,
    typer.Argument(
        help="A preset, the beginning of its name, a table, a figure, or all. "
        "Without one, lists the presets.",
        metavar="NAME",
        show_default=False,
    ),
]
Agents = Annotated[
    str | None,
    option("Only presets with this many agents.", "N"),
]
Methods = Annotated[
    str | None,
    option(f"Only some of {', '.join(LABELS)}.", "LIST"),
]
Seeds = Annotated[str, typer.Option(help="Runs of each preset, with seeds from 0.", metavar="N")]
Variant = Annotated[
    str,
    typer.Option(
        help="as-run, like the authors' code; as-printed, like the paper; or "
        "as-run-but-CHOICES, with one or more of these as printed, comma-separated: "
        f"{', '.join(CHOICES)}.",
        metavar="TEXT",
    ),
]
Epochs = Annotated[
    str | None,
    option("Fewer epochs than the paper: a reduced run.", "N"),
]
Fraction = Annotated[
    str | None,
    option("A share of the training data, equal for every class: a reduced run.", "NUMBER"),
]
OnlyList = Annotated[
    bool,
    switch("Only list the runs and how long they would take.", "--list"),
]
Measure = Annotated[
    bool,
    switch(
        "Time the networks on this machine first, a few seconds each, and keep the result. "
        "Without it, networks not timed yet have the speed of another machine.",
        "--measure",
    ),
]
Yes = Annotated[
    bool,
    switch("Start without asking. Only asked in a terminal, before more than an hour.", "--yes"),
]
LONG = 1.0
"""Hours that a terminal is asked about before they begin."""
SHORTER = (
    "Shorter: --epochs N, --fraction NUMBER, --agents N, --methods LIST, or a longer NAME; --list "
    "only shows this."
)


@app.command()
def run(
    name: PresetName = None,
    agents: Agents = None,
    methods: Methods = None,
    seeds: Seeds = "1",
    variant: Variant = "as-run",
    epochs: Epochs = None,
    fraction: Fraction = None,
    out: Out = Path("results"),
    parallel: Parallel = None,
    data_root: DataRoot = None,
    list_: OnlyList = False,
    measure: Measure = False,
    yes: Yes = False,
    json_: Json = False,
) -> None:
    """List the presets, or run those that match a name.

    The plan and its cost come first, on stderr; in a terminal, a plan of more than an hour waits
    for an answer, elsewhere it starts. Finished runs are skipped; after Ctrl-C the same command
    continues.
    """
    chosen = select(
        name or "all",
        _whole("agents", agents),
        [m.strip() for m in methods.split(",")] if methods is not None else None,
    )
    order = Order(
        variant,
        _whole("epochs", epochs),
        _number("fraction", fraction, "a number above 0, at most 1"),
        _whole("seeds", seeds) or 1,
        data_root,
    )
    at_once = _whole("parallel", parallel) or usable_cores()
    todo = campaign.jobs(chosen, order, out)  # refuses what is invalid before anything is timed
    rows = cost_rows(chosen, order, measure)
    if name is None and not list_:
        _list_groups(rows, json_)
        return
    for number, row in enumerate(rows):
        row["done"] = sum(campaign.state(job) == "done" for job in todo[number :: len(rows)])
    if list_:
        _list_each(rows, order, at_once, screen, json_)
        return
    hours = _list_each(rows, order, at_once, console)
    if hours > LONG and not yes and not _agreed():
        raise typer.Exit(1)
    with stoppable(out, "the same command continues"):
        became = campaign.run(todo, at_once, out)
    counts = {state: len(jobs) for state, jobs in became.items()}
    if json_:
        print(json.dumps({"out": str(out), **counts}))
    else:
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        screen.print(
            f"{counts['done']} of {len(todo)} runs done{failed}, in {out}; "
            f"parley reproduce report --out {out} shows them",
            highlight=False,
            soft_wrap=True,
        )
    if counts["failed"]:
        raise typer.Exit(1)


def _agreed() -> bool:
    """Whether to start: a terminal is asked, and a pipe or a timer never waits for an answer."""
    if not (sys.stdin.isatty() and console.is_terminal):
        return True
    with suppress(EOFError):
        return console.input(Text("start? [y/N] ")).strip().lower() in ("y", "yes")
    return False


def cost_rows(
    chosen: Sequence[Preset], order: Order, measure: bool = False
) -> list[dict[str, Any]]:
    """The cost of one seed of each preset; `measure` times networks not yet timed here."""
    calibration = costs.Calibration()
    for preset in chosen if measure else ():
        if not calibration.known(preset):
            what = f"timing {preset.model} on this machine, once"
            console.print(what, highlight=False, soft_wrap=True)
            calibration.measure(preset)
    rows = []
    for preset in chosen:
        reduction = preset.reduced(order.epochs, order.fraction)
        speed = calibration.speed(preset)
        rows.append(
            {
                "name": preset.name,
                "group": preset.group,
                "table": preset.table,
                "method": preset.method,
                "epochs": reduction.epochs or preset.epochs,
                "reduced": reduction.words(preset.epochs) or None,
                "gradients": costs.gradients(preset, order.variant, reduction),
                "gradients_per_second": speed.per_second,
                "one_core_of": speed.machine,
                "measured_here": speed.here,
                "hours": costs.hours(preset, speed.per_second, order.variant, reduction),
                "paper": preset.paper.accuracy if preset.paper else None,
            }
        )
    return rows


def _list_groups(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """One line per group of methods that are compared."""
    if as_json:
        print(json.dumps(rows))
        return
    for table, title in TABLES.items():
        lines = []
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["table"] == table:
                groups.setdefault(row["group"], []).append(row)
        for group, members in groups.items():
            total = sum(row["gradients"] for row in members)
            time = costs.duration(sum(row["hours"] for row in members))
            epochs = str(members[0]["epochs"])
            lines.append([group, str(len(members)), epochs, f"{total / 1e6:,.0f} M", time])
        if groups:
            headings = ["name", "runs", "epochs", "gradients", "one core"]
            screen.print(Table(headings, lines, title=f"{table}: {title}").terminal())
    screen.print(
        f"Append a method to a name in a table: {', '.join(LABELS)}. Gradients (of single "
        "samples) and time are for one seed of all runs in a line. parley reproduce NAME --list "
        f"shows each run, parley reproduce NAME runs them. {_where(rows)}",
        highlight=False,
    )


def _list_each(
    rows: Sequence[dict[str, Any]], order: Order, at_once: int, to: Console, as_json: bool = False
) -> float:
    """One line per preset, and what is left; returns the hours that will take."""
    left = [(order.seeds - row["done"], row["hours"]) for row in rows]
    runs = sum(seeds for seeds, _ in left)
    hours: float = sum(seeds * each for seeds, each in left) / max(1, min(at_once, runs))
    if as_json:
        print(json.dumps(rows))
        return hours
    reduced = any(row["reduced"] for row in rows)
    of_data = f", {100 * order.fraction:g} % of the data" if order.fraction else ""
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        whole = presets()[row["name"]].epochs
        group, _, method = row["name"].rpartition("/")
        groups.setdefault(group, []).append(
            [
                method,
                str(whole) if row["epochs"] == whole else f"{row['epochs']}/{whole}",
                f"{row['gradients'] / 1e6:,.1f}",
                costs.duration(row["hours"]),
                "" if row["paper"] is None else f"{row['paper']:.2f}",
                f"{row['done']}/{order.seeds}",
            ]
        )
    headings = ["", "epochs", "million\ngradients", "one core", "paper", "done"]
    words = f", reduced{of_data}" if reduced else ""
    for group, lines in groups.items():
        to.print(Table(headings, lines, title=f"{group}/{words}").terminal())
    if not runs:
        to.print("all done", highlight=False)
        return hours
    words = f"{runs} run{'s' * (runs > 1)} left, {min(at_once, runs)} at a time: about "
    to.print(f"{words}{costs.duration(hours)}. {_where(rows)}", highlight=False)
    to.print(SHORTER, highlight=False)
    return hours


def _where(rows: Sequence[dict[str, Any]]) -> str:
    """Whose times they are."""
    there = dict.fromkeys((row["one_core_of"], row["measured_here"]) for row in rows)
    words = [
        f"Times are those of one core of this machine ({machine})."
        if here
        else f"Times are estimates, recorded on one core of {machine}; --measure times the "
        "networks here."
        for machine, here in there
    ]
    return " ".join(words)


@app.command("report")
def show_report(
    out: Out = Path("results"),
    markdown: Annotated[
        Path | None,
        option(
            "Markdown file to write. In an existing file, the report between its begin and end "
            "marks is replaced. (default: report.md in --out)",
            "FILE",
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        option("Folder for pictures. (default: pictures next to the Markdown)", "FOLDER"),
    ] = None,
    reduced: Annotated[
        Path | None,
        option(
            "A separate Markdown file for reduced runs and for runs in which single choices "
            "differ. (default: the same file)",
            "FILE",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Show our results next to the paper's, cell by cell, and draw the figures."""
    check_place("markdown", markdown)
    check_place("reduced", reduced)
    found = collect(out)
    if not found.results and not found.refused:
        raise BadValue("out", str(out), "a folder with results of parley reproduce")
    for reason in found.refused:
        console.print(f"left out: {reason}", highlight=False, soft_wrap=True)
    target = markdown or out / "report.md"
    folder = pictures or target.parent / "pictures"
    parts = {target: (found, folder)}
    if reduced is not None:
        whole, others = found.divided()
        parts = {target: (whole, folder), reduced: (others, folder / "reduced")}
    drawn = sum(_write_part(document, *part) for document, part in parts.items())
    if json_:
        print(report.as_json(found))
        return
    for table in report.tables(found):
        screen.print(table.terminal())
    screen.print(
        f"written to {' and '.join(map(str, parts))}, "
        f"{drawn} picture{'s' * (drawn != 1)} in {folder}",
        highlight=False,
        soft_wrap=True,
    )


def _write_part(document: Path, found: Found, folder: Path) -> int:
    """Writes one document and its pictures; returns how many pictures there are."""
    drawn = draw_all(found, folder)
    places = {name: _seen_from(document, path) for name, path in drawn.items()}
    report.write_markdown(document, report.markdown(found, places))
    return len(drawn)


def _seen_from(document: Path, path: Path) -> str:
    try:
        return path.resolve().relative_to(document.parent.resolve()).as_posix()
    except ValueError:
        return path.as_posix()


@app.command()
def pack(
    to: Annotated[Path, option("Folder to copy to.", "FOLDER")],
    out: Out = Path("results"),
) -> None:
    """Copy finished runs without their checkpoints, for archiving.

    [bold]parley reproduce report[/bold] works from the copy.
    """
    copied = campaign.pack(out, to)
    screen.print(f"{len(copied)} run{'s' * (len(copied) != 1)} copied to {to}", highlight=False)


@app.command("resources")
def show_resources(
    all_: Annotated[bool, switch("Also show the figures that agree.", "--all")] = False,
    measure: Annotated[
        str | None,
        option("Also count the bytes of a few real steps of a preset.", "NAME"),
    ] = None,
    json_: Json = False,
) -> None:
    """Compare communication and memory with the printed tables, and list the misprints."""
    counted = [(p, resources.measure(p)) for p in select(measure)] if measure else []
    communication, memory = resources.communication(), resources.memory()
    if json_:
        print(
            json.dumps(
                {
                    "communication": [vars(row) for row in communication],
                    "memory": [vars(row) for row in memory],
                    "measured": [
                        {"name": p.name, "formula": resources.gib(p), "measured": m.gib}
                        for p, m in counted
                    ],
                }
            )
        )
        return
    agree = sum(not row.remark for row in communication)
    title = f"communication of an agent, GiB: {agree} of {len(communication)} figures agree"
    rows = []
    short = {"D-PSGD": "1", "CGA": "2", "CompCGA": "1.03"}
    for row in communication:
        if all_ or row.remark:
            printed = "" if row.printed is None else f"{row.printed:.2f}"
            factor = short[row.methods.partition(",")[0]]
            rows.append([row.name, factor, printed, f"{row.formula:.2f}", row.remark])
    words = frozenset({0, 1, 4})
    headings = ["cell", "f", "printed", "formula", ""]
    screen.print(Table(headings, rows, words, title).terminal())
    rows = []
    for kept in memory:
        if all_ or kept.remark:
            values = (f"{kept.printed:.2f}", f"{kept.formula:.2f}")
            rows.append([kept.model, kept.method, *values, kept.remark])
    headings = ["network", "method", "printed", "formula", ""]
    screen.print(Table(headings, rows, words, "memory beyond D-PSGD on a ring, MiB").terminal())
    screen.print(
        "Formula: [steps·f + 51]·degree·(P + 1)·4 / 2³⁰; f = 1 for D-PSGD and NGC α=0, 2 for CGA "
        "and NGC, 1 + 1/32 for CompCGA and CompNGC; 51 for the final gossip. Half (33/64) of "
        "NGC's: outside the CIFAR-10 table the paper divides NGC's whole figure, although the "
        "final gossip is the same for every method. The paper's 32× is the second round alone: "
        "with the models, the total falls by 1.94×.",
        highlight=False,
        markup=False,
    )
    if counted:
        found = [(preset.name, resources.gib(preset), sent.gib) for preset, sent in counted]
        rows = [[name, f"{f:.4f}", f"{m:.4f}", f"{m / f - 1:+.3%}"] for name, f, m in found]
        headings = ["preset", "formula", "measured", "headers and scales"]
        title = "measured, GiB over the paper's run"
        screen.print(Table(headings, rows, title=title).terminal())


@app.command("theory")
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
    graph = topologies.parse(topology, _whole("agents", agents))
    some = "a number"
    big_l = _number("smoothness", smoothness, some) or 0.0
    beta = _number("momentum", momentum, some) or 0.0
    sizes = bounds.StepSizes.of(graph, big_l, beta)
    given = _number("lr", lr, some)
    rate = sizes.upper if given is None else given
    constants = bounds.Constants.of(rate, big_l, beta) if beta else None
    if picture:
        # With several threads, small matrices take many times as long on a busy machine.
        with console.status("checking lemmas and rate on quadratics"), threads(1):
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
