"""``parley reproduce``: studies, by name or from a file; the paper's tables and figures first."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from parley.cli.options import DataRoot, Parallel, check_picture, check_place, count, option, switch
from parley.cli.paper import Json, number, show_resources, show_theory
from parley.cli.screen import screen, stoppable
from parley.compute.threads import usable_cores
from parley.errors import BadValue
from parley.reproduce import campaign, costs, page, tuned
from parley.reproduce.campaign import Order, Shard
from parley.reproduce.cells import Cell, cells, select, with_methods
from parley.reproduce.collect import Found, collect
from parley.reproduce.pictures import draw_all
from parley.reproduce.study import Study, find, named, shipped
from parley.results.table import Table
from parley.sweep.jobs import Job
from parley.watch.log import console


class NameOrCommand(TyperGroup):
    """Anything that is not a command is the name of what to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Inserts ``run``, which lists the presets if no name follows."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=NameOrCommand,
    help="The tables and figures of the NGC paper: list them, run them, and compare our results "
    "with the paper's. Other studies, too, and your own, described in one file. "
    "[bold]parley reproduce[/bold] lists them; [bold]parley reproduce fashion_mnist --agents 10 "
    "--seeds 3[/bold] runs some.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)

Out = Annotated[
    Path | None,
    option("Folder of the results. (default: results, or as the study says)", "FOLDER", "--out"),
]
PresetName = Annotated[
    str | None,
    typer.Argument(
        help="A preset, the beginning of its name, a table, a figure, or all; or a study "
        f"({', '.join(shipped())}), or the file of your own. Without one, lists the presets.",
        metavar="NAME",
        show_default=False,
    ),
]
SettingName = Annotated[
    str | None,
    typer.Argument(help="Of a study, one setting or a run.", metavar="SETTING", show_default=False),
]
Agents = Annotated[str | None, option("Only presets with this many agents.", "N")]
Methods = Annotated[
    str | None,
    option("Only some methods, by the study's names; or, where a study runs the same methods in "
           "every setting, others, as for parley compare --algorithms.", "LIST"),
]  # fmt: skip
Seeds = Annotated[
    str | None, option("Runs of each, with seeds from 0. (default: as the study says)", "N")
]
Variant = Annotated[
    str | None,
    option("as-run, like the authors' code; as-printed, like the paper; or as-run-but-CHOICES, "
           "with one or more of gradient, momentum, floor, scale, scope, evonorm as printed, "
           "comma-separated. (default: as-run)", "TEXT"),
]  # fmt: skip
Epochs = Annotated[str | None, option("Fewer epochs than the study: a reduced run.", "N")]
Fraction = Annotated[
    str | None,
    option("A share of the training data, equal for every class: a reduced run.", "NUMBER"),
]
TestFraction = Annotated[str | None, option("A share of the test samples.", "NUMBER")]
Trials = Annotated[
    str | None, option("Of a study that tunes: learning rates (and γ) tried per method.", "N")
]
TrialEpochs = Annotated[str | None, option("Of a study that tunes: epochs of a trial.", "N")]
ShardOf = Annotated[
    str | None,
    option("Only a share of the runs, for example 3/8: the third of eight, on a machine of its "
           "own. The same command without it collects what all shares have run.", "K/N"),
]  # fmt: skip
OnlyList = Annotated[bool, switch("Only list the runs and how long they would take.", "--list")]
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
OnlyReport = Annotated[
    bool, switch("Show the finished runs of a study without starting any.", "--report")
]
Page = Annotated[
    Path | None,
    option(
        "Markdown file for the tables. In an existing file, what is between its begin and end "
        "marks is replaced. (default: one in --out)",
        "FILE",
    ),
]
Pictures = Annotated[
    Path | None,
    option("Folder for pictures. (default: pictures next to the Markdown)", "FOLDER"),
]
OnePicture = Annotated[
    Path | None,
    option("File for the picture of a study that has one. (default: in --pictures)", "FILE"),
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
    setting: SettingName = None,
    agents: Agents = None,
    methods: Methods = None,
    seeds: Seeds = None,
    variant: Variant = None,
    epochs: Epochs = None,
    fraction: Fraction = None,
    test_fraction: TestFraction = None,
    trials: Trials = None,
    trial_epochs: TrialEpochs = None,
    shard: ShardOf = None,
    out: Out = None,
    parallel: Parallel = None,
    data_root: DataRoot = None,
    list_: OnlyList = False,
    measure: Measure = False,
    yes: Yes = False,
    report: OnlyReport = False,
    markdown: Page = None,
    pictures: Pictures = None,
    picture: OnePicture = None,
    json_: Json = False,
) -> None:
    """List the presets, or run those that match a name, or a study.

    The plan and its cost come first, on stderr; in a terminal, a plan of more than an hour waits
    for an answer, elsewhere it starts. Finished runs are skipped; after Ctrl-C the same command
    continues. A study that was named has its page written at the end.

    [bold]parley reproduce cifar10/cnn5/ring/5/ngc[/bold]

    [bold]parley reproduce guide ring --fraction 0.2[/bold]

    [bold]parley reproduce my-study.toml --shard 3/8[/bold]
    """
    check_picture(picture)
    check_place("markdown", markdown)
    if name is None and not list_:
        _list_groups(measure, json_)
        return
    study, wanted = find(name or "all", setting)
    study, names = with_methods(study, methods)
    chosen = select(study, wanted, _whole("agents", agents), names)
    order = Order(
        variant or "",
        _whole("epochs", epochs),
        number("fraction", fraction, "a number above 0, at most 1"),
        _whole("seeds", seeds) or study.seeds,
        data_root,
        Shard.parse(shard) if shard else Shard(),
        number("test_fraction", test_fraction, "a number above 0, at most 1"),
        _whole("trials", trials),
        _whole("trial_epochs", trial_epochs),
    )
    order.check(study)
    if picture and len(study.pictures) != 1:
        because = f"{study.name} has {len(study.pictures)} of its own"
        raise BadValue("picture", str(picture), "--pictures FOLDER", because)
    folder = out or Path(study.out)
    target = markdown or folder / f"{study.name}.md"
    places = {target: pictures or target.parent / "pictures"}
    if report:
        _show(study, folder, places, picture, json_)
        return
    todo = [] if study.tune else campaign.jobs(chosen, order, folder)  # refuses what is invalid
    plan = _planned(chosen, order, folder, measure, todo)
    at_once = _whole("parallel", parallel) or usable_cores()
    if list_:
        _list_each(plan, order, at_once, screen, json_)
        return
    hours = _list_each(plan, order, at_once, console)
    if hours > LONG and not yes and not _agreed():
        raise typer.Exit(1)
    with stoppable(folder, "the same command continues"):
        counts = _run(chosen, order, todo, at_once, folder)
    whole = name in (study.name, study.file) and order.shard.of == 1
    if json_ and not whole:
        print(json.dumps({"out": str(folder), **counts}))
    elif not json_:
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        said = f"{counts['done']} of {sum(counts.values())} runs done{failed}, in {folder}"
        shows = "report" if study.presets else f"{study.file} --report"
        more = "" if whole else f"; parley reproduce {shows} --out {folder} shows them"
        screen.print(said + more, highlight=False, soft_wrap=True)
    if whole:
        _show(study, folder, places, picture, json_)
    if counts["failed"] and not study.tune:
        raise typer.Exit(1)


def _whole(name: str, value: str | None) -> int | None:
    return None if value is None else count(name, value)


def _agreed() -> bool:
    """Whether to start: a terminal is asked, and a pipe or a timer never waits for an answer."""
    if not (sys.stdin.isatty() and console.is_terminal):
        return True
    with suppress(EOFError):
        return console.input(Text("start? [y/N] ")).strip().lower() in ("y", "yes")
    return False


def _run(
    chosen: Sequence[Cell], order: Order, todo: Sequence[Job], at_once: int, out: Path
) -> dict[str, int]:
    """Runs what is not done; how many have which outcome."""
    if todo or not chosen[0].study.tune:
        share = order.shard.share(todo)
        became = campaign.run(share, at_once, order.shard.lock(out))
        return {state: len(jobs) for state, jobs in became.items()}
    counts = {"done": 0, "failed": 0, "refused": 0}
    for cell, outcome in tuned.run(chosen, order, at_once, out):
        counts["refused" if outcome.refusal else "failed" if outcome.diverged else "done"] += 1
        if outcome.refusal or outcome.diverged:
            what = f"is left out: {outcome.refusal}" if outcome.refusal else "diverged"
            said = f"{cell.setting}: {outcome.label} {what}"
            console.print(said, highlight=False, soft_wrap=True)
    if counts["refused"] == len(chosen):
        where = ", ".join(dict.fromkeys(cell.setting for cell in chosen))
        names = ",".join(dict.fromkeys(cell.method for cell in chosen))
        raise BadValue("methods", names, "methods that can be used in this setting", where)
    return counts


def _planned(
    chosen: Sequence[Cell],
    order: Order,
    out: Path,
    measure: bool,
    todo: Sequence[Job] = (),
) -> list[costs.Row]:
    """The cost of one seed of each cell; `measure` times networks not yet timed here."""
    calibration = costs.Calibration()
    for cell in chosen if measure else ():
        if cell.facts and not calibration.known(cell):
            what = f"timing {cell.usual.model} on this machine, once"
            console.print(what, highlight=False, soft_wrap=True)
            calibration.measure(cell)
    rows = [costs.row(cell, order, calibration) for cell in chosen]
    mine = {job.out for job in order.shard.share(todo)}
    for place, (cell, row) in enumerate(zip(chosen, rows, strict=True)):
        if cell.study.tune:
            row["done"], row["left"] = tuned.progress(tuned.Task(cell, order, out))
        else:
            of_it = todo[place :: len(rows)]
            done = [campaign.state(job) == "done" for job in of_it]
            row["done"] = sum(done)
            row["left"] = sum(job.out in mine and not d for job, d in zip(of_it, done, strict=True))
    return rows


def _list_groups(measure: bool, as_json: bool) -> None:
    """One line per group of methods that are compared."""
    studies = [study for study in map(named, shipped()) if study.presets]
    chosen = [cell for study in studies for cell in cells(study).values()]
    rows = _planned(chosen, Order(), Path(), measure)
    if as_json:
        print(json.dumps(rows))
        return
    for study in studies:
        for section, title in study.sections.items():
            groups: dict[str, list[costs.Row]] = {}
            for row in rows:
                if row["table"] == section:
                    groups.setdefault(row["group"], []).append(row)
            lines = []
            for group, members in groups.items():
                total = sum(row["gradients"] for row in members)
                time = costs.duration(sum(row["hours"] for row in members))
                figures = (str(len(members)), str(members[0]["epochs"]), f"{total / 1e6:,.0f} M")
                lines.append([group, *figures, time])
            headings = ["name", "runs", "epochs", "gradients", "one core"]
            screen.print(Table(headings, lines, title=f"{section}: {title}").terminal())
    others = (study for study in map(named, shipped()) if not study.presets)
    more = "; ".join(f"{study.name} ({study.title})" for study in others)
    screen.print(
        f"Append a method to a name in a table: {', '.join(studies[-1].methods)}. Gradients (of "
        "single samples) and time are for one seed of all runs in a line. parley reproduce NAME "
        f"--list shows each run, parley reproduce NAME runs them. Other studies: {more}. "
        f"{_where(rows)}",
        highlight=False,
    )


def _list_each(
    rows: Sequence[costs.Row], order: Order, at_once: int, to: Console, as_json: bool = False
) -> float:
    """One line per cell, and what is left; returns the hours that will take."""
    runs = sum(row["left"] for row in rows)
    known = [row for row in rows if row["hours"] is not None]
    hours: float = sum(row["left"] * row["hours"] for row in known) / max(1, min(at_once, runs))
    if as_json:
        print(json.dumps(rows))
        return hours
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        part, whole = row["epochs"], row["whole_epochs"]
        groups.setdefault(row["group"], []).append(
            [
                row["name"].removeprefix(row["group"] + "/"),
                str(whole) if part == whole else f"{part}/{whole}",
                "" if row["hours"] is None else f"{row['gradients'] / 1e6:,.1f}",
                "" if row["hours"] is None else costs.duration(row["hours"]),
                "" if row["paper"] is None else f"{row['paper']:.2f}",
                f"{row['done']}/{order.seeds}",
            ]
        )
    headings = ["", "epochs", "million\ngradients", "one core", "paper", "done"]
    of_data = f", {100 * order.fraction:g} % of the data" if order.fraction else ""
    words = f", reduced{of_data}" if any(row["reduced"] for row in rows) else ""
    for group, lines in groups.items():
        to.print(Table(headings, lines, title=f"{group}/{words}").terminal())
    if not runs:
        to.print("all done", highlight=False)
        return hours
    said = f"{runs:g} run{'s' * (runs != 1)} left, {min(at_once, runs):g} at a time: "
    time = f"about {costs.duration(hours)}" if known else "how long is not known"
    to.print(f"{said}{time}. {_where(known)}", highlight=False)
    to.print(SHORTER, highlight=False)
    return hours


def _where(rows: Sequence[costs.Row]) -> str:
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
    out: Out = None,
    markdown: Page = None,
    pictures: Pictures = None,
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
    folder = out or Path(named("paper").out)
    target = markdown or folder / "report.md"
    place = pictures or target.parent / "pictures"
    parts = {target: place} | ({reduced: place / "reduced"} if reduced else {})
    _show(named("paper"), folder, parts, None, json_)


def _show(
    study: Study,
    out: Path,
    parts: Mapping[Path, Path],
    picture: Path | None,
    as_json: bool,
) -> None:
    """Prints what was found, and writes it to documents, each with a folder for its pictures. A
    second document takes the reduced runs."""
    found = collect(study, out)
    for reason in found.refused:
        console.print(f"left out: {reason}", highlight=False, soft_wrap=True)
    shares = found.divided() if len(parts) > 1 else (found,)
    drawn = [
        _write_part(document, share, folder, picture)
        for (document, folder), share in zip(parts.items(), shares, strict=True)
    ]
    if as_json:
        print(page.as_json(found))
        return
    for part in page.parts(found, {}):
        shown = part.removeprefix("### ") if isinstance(part, str) else part.terminal(screen.width)
        screen.print(shown, highlight=False, markup=False)
        screen.print()
    said = f"written to {' and '.join(map(str, parts))}, {sum(drawn)} picture"
    where = picture or next(iter(parts.values()))
    screen.print(f"{said}{'s' * (sum(drawn) != 1)} in {where}", highlight=False, soft_wrap=True)


def _write_part(document: Path, found: Found, folder: Path, picture: Path | None) -> int:
    """Writes one document and its pictures; returns how many pictures there are."""
    drawn = draw_all(found, folder, picture)
    places = {name: _seen_from(document, path) for name, path in drawn.items()}
    page.write_markdown(document, found, places)
    return len(drawn)


def _seen_from(document: Path, path: Path) -> str:
    try:
        return path.resolve().relative_to(document.parent.resolve()).as_posix()
    except ValueError:
        return path.as_posix()


@app.command()
def pack(
    to: Annotated[Path, option("Folder to copy to.", "FOLDER")],
    out: Out = None,
) -> None:
    """Copy finished runs without their checkpoints, for archiving.

    [bold]parley reproduce report[/bold] works from the copy.
    """
    copied = campaign.pack(out or Path("results"), to)
    screen.print(f"{len(copied)} run{'s' * (len(copied) != 1)} copied to {to}", highlight=False)


app.command("resources")(show_resources)
app.command("theory")(show_theory)
