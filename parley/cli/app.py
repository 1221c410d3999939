"""The command line: flags in, one experiment out, results on stdout, everything else on stderr."""

import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import torch
import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from parley import data as datasets
from parley import graphs as topologies
from parley.algorithms import ALGORITHMS, AS_RUN, PARTS, find, part_kind
from parley.cli.main import INTERRUPTED, TERMINATED
from parley.cli.report import report
from parley.cli.reproduce import app as reproduce_app
from parley.cluster import launch
from parley.cluster.host import Host
from parley.cluster.rank import is_first
from parley.compute.threads import usable_cores
from parley.errors import BadValue, Stopped, kind_of, valid_values
from parley.experiment import (
    ALGORITHM_OPTIONS,
    HOW,
    VARIANTS,
    Experiment,
    flatten,
    on_top,
    read_file,
)
from parley.graphs import Topology
from parley.results.graphs import topology_picture
from parley.results.holdings import partition_picture
from parley.results.style import ENDINGS
from parley.results.table import Table
from parley.store import folder
from parley.sweep import compare as comparison
from parley.sweep import field as whole_field
from parley.sweep import tune as tuning
from parley.training.run import problem
from parley.watch import trackers
from parley.watch.log import console
from parley.watch.progress import TrainingProgress
from parley.wire.codec import Dense, ScaledSign
from parley.wire.transport import HEADER

app = typer.Typer(rich_markup_mode="rich")
app.add_typer(reproduce_app, name="reproduce")
app.command()(report)
log = logging.getLogger(__name__)
screen = Console()
"""Stdout, for results."""
DEFAULT_PARTITIONS = whole_field.PARTITIONS

# --- flags: one for every field of an experiment and of the algorithms -----------------------

WHAT, HYPER = "What is trained", "Hyper-parameters of the algorithm"
MEASURED, CARRIED_OUT = "What is measured", "How it is carried out"
PANELS = dict.fromkeys(("evaluate_every", "gossip_rounds", "bias_norms"), MEASURED)
PANELS |= dict.fromkeys(HOW, CARRIED_OUT)


def _flag(
    name: str,
    help_: str,
    panel: str | None,
    kind: Any = str,
    metavar: str = "TEXT",
    spelled: str = "",
) -> inspect.Parameter:
    option = typer.Option(
        spelled or "--" + name.replace("_", "-"),
        help=help_,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, option])


def _flag_of(name: str, field: FieldInfo, panel: str | None, note: str = "") -> inspect.Parameter:
    """Its help is the sentence below the field, and `note`, by default the field's default. Its
    value is text, for the experiment to check: flags and TOML get the same errors."""
    sentences = [" ".join((field.description or "").split())]
    if get_origin(field.annotation) is Literal:
        sentences.append(f"One of {', '.join(get_args(field.annotation))}.")
    if name == "algorithm":
        sentences.append(f"One of {', '.join(ALGORITHMS)}. (default: {field.default.name})")
    elif not note and isinstance(field.default, (int, float, str)) and name != "workers":
        sentences.append(f"(default: {_shown(field.default)})")
    help_ = " ".join([*sentences, note]).strip()
    if field.annotation is bool:
        words = name.replace("_", "-")
        return _flag(name, help_, panel, bool, "", f"--{words}/--no-{words}")
    metavars: dict[Any, str] = {int: "N", float: "NUMBER"}
    return _flag(name, help_, panel, metavar=metavars.get(kind_of(field), "TEXT"))


def _shown(default: object) -> str:
    """A default as it would be typed."""
    return str(default).lower() or "none"


def _hyper_parameter(name: str) -> inspect.Parameter:
    """The flag of what several algorithms may have, each with a default and a range of its own."""
    having = {k: a.options()[name] for k, a in ALGORITHMS.items() if name in a.options()}
    lacking = [key for key in ALGORITHMS if key not in having]
    of_default: dict[str, list[str]] = {}
    described: dict[str, list[FieldInfo]] = {}
    for key, field in having.items():
        of_default.setdefault(_shown(field.default), []).append(key)
        described.setdefault(field.description or "", []).append(field)
    groups = sorted(of_default.items(), key=lambda group: -len(group[1]))
    usual = groups[0][0]
    others = [f"{default} for {', '.join(keys)}" for default, keys in groups[1:]]
    note = f"(default: {'; '.join([usual, *others])})"
    if len(lacking) >= len(having):
        note += f" Only {', '.join(having)}."
    elif lacking:
        note += f" Not {', '.join(lacking)}."
    commonest = max(described.values(), key=len)[0]
    return _flag_of(name, commonest, HYPER, note)


TABLES = {"model_options": ("model-option", "network"), "data_options": ("data-option", "dataset")}
"""Fields that are tables: their flag, and what it is about."""


def _experiment_flags(helps: dict[str, str]) -> Iterator[inspect.Parameter]:
    for name, field in Experiment.model_fields.items():
        if name == "from_python":
            continue  # nothing that a flag could give
        if name in helps:
            yield _flag(name, helps[name], PANELS.get(name, WHAT))
        elif name in TABLES:
            flag, what = TABLES[name]
            help_ = f"An option of the {what}; may be repeated."
            yield _flag(name, help_, WHAT, list[str], "NAME=VALUE", f"--{flag}")
        else:
            yield _flag_of(name, field, PANELS.get(name, WHAT))
    for name in dict.fromkeys(n for a in ALGORITHMS.values() for n in a.options()):
        yield _hyper_parameter(name)
    help_ = "Sets all choices in which the NGC paper and its authors' code differ; flags beside it "
    yield _flag("variant", f"{help_}win. One of {', '.join(VARIANTS)}.", HYPER)


def takes_experiment(
    *only: str, **helps: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the flags of an experiment, all or those named, in place of ``**flags``.

    `helps` are the words for those that mean something else to this command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[:-1]
        few = [_flag_of(name, Experiment.model_fields[name], None) for name in only]
        flags = few or _experiment_flags(helps)
        command.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
        return command

    return decorate


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, as options of an experiment."""
    given = {name: value for name, value in flags.items() if value is not None}
    for name, (flag, _) in TABLES.items():
        if name in given:
            given[name] = dict(_setting(pair, flag) for pair in given[name])
    return given


def _with_file(file: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """What a file says, with flags on top."""
    options = on_top(read_file(file) if file else {}, given)
    if missing := options.get("from_python"):
        what = " and ".join(missing)
        named = [f"--{name} with one of Parley's own" for name in missing if name != "loss"]
        valid = ", or ".join(["the Python program that gave them", *named])
        because = f"its {what} came from Python, and no file holds them"
        raise BadValue("experiment", str(file), valid, because)
    return options


def _setting(pair: str, flag: str) -> tuple[str, str | int | float]:
    name, equals, value = pair.partition("=")
    if not (name and equals and value):
        raise BadValue(flag.replace("-", "_"), pair, "NAME=VALUE, for example hidden=64")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _count(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise BadValue(name, value, "a whole number of at least 1")
    return int(value)


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder for what is written. (default: a new one in runs/)",
        metavar="FOLDER",
        show_default=False,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on with what --out holds, from the last checkpoints.", metavar=""
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as one JSON object on the last line of stdout.", metavar=""
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        help="Also tell trackers, comma-separated: tensorboard, wandb (offline), mlflow (local "
        "folder). Needs parley-learning\\[trackers].",
        metavar="LIST",
        show_default=False,
    ),
]
File = Annotated[
    Path | None,
    typer.Argument(
        help="A TOML file with the same fields as the flags; flags win.",
        metavar="FILE",
        show_default=False,
    ),
]
HERE = "What only this host knows"
HostFile = Annotated[
    Path | None,
    typer.Option(
        "--host",
        help="A TOML file with this host's own part: agents, and where their data lie.",
        metavar="FILE",
        rich_help_panel=HERE,
        show_default=False,
    ),
]
AgentsHere = Annotated[
    str | None,
    typer.Option(
        help="Agents that live on this host, for example 0,1. (default: those of --data-here, or a "
        "share of those nobody claims)",
        metavar="LIST",
        rich_help_panel=HERE,
        show_default=False,
    ),
]
DataHere = Annotated[
    list[str] | None,
    typer.Option(
        help="An agent's own data: a folder, a hub id owner/name, or module:function; may be "
        "repeated.",
        metavar="AGENT=PLACE",
        rich_help_panel=HERE,
        show_default=False,
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        help="Also draw it: a file that ends in .png, .svg or .pdf.",
        metavar="FILE",
        show_default=False,
    ),
]


def _check_picture(picture: Path | None) -> None:
    """Before the work is done."""
    if picture and picture.suffix.removeprefix(".").lower() not in ENDINGS:
        valid = "a file that ends in " + ", ".join(f".{ending}" for ending in ENDINGS)
        raise BadValue("picture", str(picture), valid)
    if picture and not picture.parent.is_dir():
        raise BadValue("picture", str(picture), "a file in a folder that exists")


def _folder(out: Path | None, resume: bool, stem: str) -> Path:
    """Where to write: as given, or a new folder in runs/."""
    if resume and out is None:
        raise BadValue("out", None, "the folder to go on with", "--resume needs it")
    if resume and out and not out.is_dir():
        raise BadValue("out", str(out), "a folder to go on with", "--resume found none")
    return out or folder.fresh_name(Path("runs"), stem.replace("/", "-").replace("_", "-"))


@contextmanager
def _stoppable(out: Path) -> Iterator[None]:
    """Ctrl-C (or SIGTERM) ends the command with a word on how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if is_first():
            how = f"; to go on: the same command with --out {out} --resume" if out.is_dir() else ""
            console.print(f"\nstopped{how}", highlight=False, soft_wrap=True)
        raise typer.Exit(TERMINATED if isinstance(stop, Stopped) else INTERRUPTED) from None


# --- commands --------------------------------------------------------------------------------


@app.command()
@takes_experiment()
def train(
    file: File = None,
    *,
    out: Out = None,
    resume: Resume = False,
    json_: Json = False,
    log: Log = None,
    host: HostFile = None,
    agents_here: AgentsHere = None,
    data_here: DataHere = None,
    **flags: Any,
) -> None:
    """Train one model among peers.

    [bold]parley train --data digits --agents 10 --partition skew:1 --algorithm ngc[/bold]

    [bold]parley train experiment.toml --seed 1 --out runs/mine[/bold]
    (and after Ctrl-C the same with [bold]--resume[/bold])

    [bold]torchrun --nproc-per-node 3 -m parley train experiment.toml --out runs/three[/bold]
    """
    experiment = Experiment.of(**_with_file(file, _given(flags)))
    part = Host.of(host, agents_here, data_here or ())
    logged = trackers.parse(log)
    out = _folder(out, resume, f"{experiment.algorithm.name}-{Path(experiment.data).name}")
    if "workers" not in experiment.model_fields_set:
        experiment = experiment.replace(workers=launch.default_workers(experiment, out))
    with (
        _stoppable(out),
        TrainingProgress(experiment, is_first()) as progress,
        trackers.logging(logged, experiment, out, progress) as watch,
    ):
        load = partial(problem, places=part.data)
        outcome = launch.execute(experiment, load, out, resume, watch, part)
    if outcome is None:
        return
    if json_:
        print(json.dumps(outcome.summary))
    else:
        done = outcome.summary
        _heading(f"{done['label']} on {done['data']}, {done['agents']} agents")
        screen.print(_summary_table(done).terminal())


def _heading(text: str) -> None:
    screen.print(Text(text, "bold"), soft_wrap=True)


def _part_of_test_samples(done: dict[str, Any]) -> dict[str, str]:
    if absent := done.get("test_samples_absent", 0):
        some = done["test_samples"]
        return {"tested on": f"{some} of {some + absent} samples; the others' hosts are absent"}
    return {}


def _summary_table(done: dict[str, Any]) -> Table:
    lines = {
        "accuracy, averaged model": f"{done['accuracy_mean_model']:.2%}",
        "accuracy, own models": f"{done['accuracy_own']:.2%} "
        f"({done['accuracy_own_min']:.2%} to {done['accuracy_own_max']:.2%})",
        "accuracy, own models after gossip": f"{done['accuracy_after_gossip']:.2%}",
        **_part_of_test_samples(done),
        "loss, averaged model": f"{done['loss']:.4f}",
        "consensus distance": f"{done['consensus_distance']:.4g}",
        "models sent per agent": f"{done['bytes_models'] / 1e6:.3f} MB",
        "cross-gradients sent per agent": f"{done['bytes_cross_gradients'] / 1e6:.3f} MB",
        "training time": f"{done['seconds']:.1f} s",
        "sample gradients per second": f"{done['gradients_per_second']:,.0f}",
        "peak memory": f"{done['peak_memory_mb']:.0f} MB",
        "written to": done["out"],
    }
    return _pairs({name: str(value) for name, value in lines.items()})


def _pairs(lines: Mapping[str, str]) -> Table:
    return Table(["", ""], list(lines.items()), frozenset({0, 1}))


@app.command()
@takes_experiment(
    algorithm="One algorithm, in place of --algorithms.",
    workers="Processes that share the agents of each run. (default: 1)",
)
def compare(
    file: File = None,
    *,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated, with any options behind colons: dpsgd,ngc:alpha=0,ngc:lr=0.01, "
            f"relaysgd:topology=chain. Or: all. (default: {comparison.PAPER})",
            metavar="LIST",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Runs of each, from --seed on.", metavar="N")] = "3",
    parallel: Annotated[
        str | None,
        typer.Option(
            help="Runs at a time. (default: the number of cores)", metavar="N", show_default=False
        ),
    ] = None,
    partitions: Annotated[
        str | None,
        typer.Option(
            help="Several partitions, comma-separated: one table and one picture for all. "
            f"(default with --algorithms all: {','.join(DEFAULT_PARTITIONS)})",
            metavar="LIST",
            show_default=False,
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            help="Each method with the settings found by parley tune: its tuned.toml.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            help="Tune first, with so many trials for each method and partition.",
            metavar="TRIALS",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    json_: Json = False,
    log: Log = None,
    **flags: Any,
) -> None:
    """Run several algorithms with several seeds side by side.

    Prints a table and writes it with all records and a picture of the curves.

    Flags go to every algorithm, hyper-parameters to those that have them. What stands behind a name
    wins, and the table names what differs.

    [bold]parley compare --algorithms dpsgd,ngc:alpha=0,ngc --seeds 3 --epochs 30[/bold]

    [bold]parley compare --algorithms all --data digits --tune 6[/bold]
    """
    given = _given(flags)
    options, methods = _methods(file, given, algorithms, comparison.PAPER)
    experiments = [method.experiment(options) for method in methods]
    out = _folder(out, resume, f"compare-{Path(experiments[0].data).name}")
    logged = trackers.parse(log)
    if tuned and tune:
        raise BadValue("tune", tune, "either --tune or --tuned")
    if tuned and "lr" in given:
        valid = f"none, or behind a name: {methods[0].name}:lr={given['lr']}"
        raise BadValue("lr", given["lr"], valid, "--tuned says it for each method")
    if tune:
        _refuse_rates(given, methods)
    if partitions or tuned or tune or algorithms == "all":
        if logged:
            raise BadValue("log", log, "a comparison on one partition, without tuning")
        own = "partition" in options or algorithms != "all"
        names = partitions or (experiments[0].partition if own else ",".join(DEFAULT_PARTITIONS))
        _compare_field(
            methods, _on_partitions(methods, options, names), _count("seeds", seeds), parallel,
            out, resume, json_, tuned, _count("tune", tune) if tune else 0, set(given),
        )  # fmt: skip
        return
    _compare(experiments, _count("seeds", seeds), parallel, out, resume, json_, logged)


def _methods(
    file: Path | None, given: dict[str, Any], algorithms: str | None, default: str
) -> tuple[dict[str, Any], list[comparison.Method]]:
    """What a file and flags say for all methods, and the methods with what is said for each."""
    one = given.pop("algorithm", None)
    if one and algorithms:
        raise BadValue("algorithm", one, "either --algorithm or --algorithms")
    options = _with_file(file, given)
    options.pop("algorithm", None)
    methods = comparison.parse_algorithms(algorithms or one or default)
    for name in ALGORITHM_OPTIONS:
        if name in given and not any(name in find(m.name).options() for m in methods):
            names = ", ".join(dict.fromkeys(method.name for method in methods))
            because = f"none of {names} has it"
            raise BadValue(name, given[name], "an option of one of the algorithms", because)
    return options, methods


def _refuse_rates(given: dict[str, Any], methods: list[comparison.Method]) -> None:
    """A learning rate that is asked for, where tuning would put another in its place."""
    asked = [m.settings["lr"] for m in methods if "lr" in m.settings]
    for rate in [given["lr"]] if "lr" in given else asked:
        raise BadValue("lr", rate, "none, or no tuning", "tuning looks for it")


def _on_partitions(
    methods: list[comparison.Method], options: dict[str, Any], names: str
) -> dict[str, list[Experiment]]:
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    fitting = []
    for method in methods:
        if "partition" in method.settings:
            valid = "one partition for all methods, or several by --partitions"
            raise BadValue("algorithms", f"{method.name}:partition=…", valid)
        asked = method.experiment(options)
        if "topology" in method.settings:
            comparison.check_graph(asked)
            one = asked
        else:
            one = whole_field.fitting(asked)
        if asked.topology != one.topology:
            where = f"{one.algorithm.label} runs on {one.topology}"
            log.info("%s, for it cannot use %s", where, asked.topology)
        fitting.append(one)
    return {name: [one.replace(partition=name) for one in fitting] for name in chosen}


def _compare_field(
    methods: list[comparison.Method],
    by_partition: dict[str, list[Experiment]],
    seeds: int,
    parallel: str | None,
    out: Path,
    resume: bool,
    as_json: bool,
    tuned: Path | None,
    trials: int,
    flags: set[str],
) -> None:
    at_once = _count("parallel", parallel) if parallel else usable_cores()
    runs = out / "runs" if trials else out
    asked = next(iter(by_partition.values()))
    labels = comparison.labels(asked)  # tuned rates are in the records, not in the names
    with _stoppable(out):
        if trials:
            tuned = _tune(
                methods, by_partition, trials, tuning.RATES, at_once, out / "tune", resume
            )
        if tuned:
            found = tuning.read(tuned)
            by_partition = {
                name: [
                    tuning.tuned(experiment, found, method.key, {*method.settings, *flags})
                    for method, experiment in zip(methods, experiments, strict=True)
                ]
                for name, experiments in by_partition.items()
            }
        jobs = whole_field.jobs(by_partition, seeds, runs, labels)
        comparison.compare(jobs, at_once, runs, resume and runs.exists())
    rows = whole_field.rows(jobs)
    whole_field.write(out, jobs, rows)
    if as_json:
        print(json.dumps({"rows": rows, "out": str(out)}))
        return
    more = (f"lr of {tuned}",) if tuned else ()
    _heading(f"{comparison.title(asked, seeds, *more)}: averaged model, %")
    screen.print(whole_field.table(rows).terminal())
    where = f"written to {out}: table.md, field.png, and every run's records"
    screen.print(where, soft_wrap=True, highlight=False)


def _tune(
    methods: list[comparison.Method],
    by_partition: dict[str, list[Experiment]],
    trials: int,
    rates: tuple[float, float],
    parallel: int,
    out: Path,
    resume: bool,
) -> Path:
    keys = [method.key for method in methods]
    todo = [t for es in by_partition.values() for t in tuning.plan(es, trials, out, rates, keys)]
    tuning.tune(todo, parallel, out, resume and out.exists())
    path = tuning.write(todo, out)
    console.print(tuning.table(todo).terminal())
    return path


@app.command()
@takes_experiment(
    algorithm="One algorithm, in place of --algorithms. (default: the file's, or ngc)",
    lr="Not here: tuning looks for it between --rates.",
    validation="Share of the training samples, the same of every class, that nobody trains on and "
    f"that trials are measured on. (default: {tuning.VALIDATION})",
    workers="Processes that share the agents of each run. (default: 1)",
)
def tune(
    file: File = None,
    *,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated, as for parley compare. Or: all. (default: --algorithm's)",
            metavar="LIST",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[
        str | None,
        typer.Option(
            help="Several partitions, comma-separated, each tuned by itself.",
            metavar="LIST",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[
        str, typer.Option(help="Runs for each method, the same number for all.", metavar="N")
    ] = "8",
    rates: Annotated[
        str,
        typer.Option(help="The smallest and the largest learning rate.", metavar="LOW,HIGH"),
    ] = ",".join(f"{rate:g}" for rate in tuning.RATES),
    parallel: Annotated[
        str | None,
        typer.Option(
            help="Runs at a time. (default: the number of cores)", metavar="N", show_default=False
        ),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    json_: Json = False,
    **flags: Any,
) -> None:
    """Find learning rates by a small seeded search, with the same budget for every method.

    Trials are measured on a fifth of the training samples (or --validation), which nobody trains
    on; the test set plays no part. Writes tuned.toml for parley compare, and for each method an
    experiment for parley train.

    [bold]parley tune --algorithms ngc,dpsgd --data digits --trials 8 --epochs 10[/bold]
    """
    given = _given(flags)
    of_file = flatten(read_file(file)).get("algorithm") if file else None
    options, methods = _methods(file, given, algorithms, of_file.name if of_file else "ngc")
    _refuse_rates(given, methods)
    first = methods[0].experiment(options)
    every = _on_partitions(methods, options, partitions or first.partition)
    low, _, high = rates.partition(",")
    try:
        between = float(low), float(high)
    except ValueError:
        raise BadValue("rates", rates, "LOW,HIGH, for example 0.01,1") from None
    out = _folder(out, resume, f"tune-{Path(first.data).name}")
    at_once = _count("parallel", parallel) if parallel else usable_cores()
    with _stoppable(out):
        path = _tune(methods, every, _count("trials", trials), between, at_once, out, resume)
    if json_:
        print(json.dumps({"tuned": tuning.read(path), "out": str(out)}))
        return
    screen.print(
        f"written to {out}: {path.name}, table.md, experiments and all records",
        soft_wrap=True,
        highlight=False,
    )


def _compare(
    experiments: list[Experiment],
    seeds: int,
    parallel: str | None,
    out: Path,
    resume: bool = False,
    as_json: bool = False,
    log: tuple[str, ...] = (),
) -> None:
    at_once = _count("parallel", parallel) if parallel else usable_cores()
    jobs = comparison.jobs(experiments, seeds, out, log)
    with _stoppable(out):
        comparison.compare(jobs, at_once, out, resume)
    rows = comparison.rows(jobs)
    comparison.write(out, jobs, rows)
    if as_json:
        print(json.dumps({"rows": rows, "out": str(out)}))
        return
    _heading(comparison.title(experiments, seeds, experiments[0].partition))
    screen.print(comparison.table(rows).terminal())
    screen.print(
        f"written to {out}: table.md, curves.png, and every run's records",
        soft_wrap=True,
        highlight=False,
    )


@app.command()
def demo(
    out: Out = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            help="Runs at a time. (default: the number of cores)", metavar="N", show_default=False
        ),
    ] = None,
) -> None:
    """See what it does, offline, in about a minute.

    Ten agents on a ring, each with one digit only, and six ways to learn all ten together.
    """
    console.print(
        "Ten agents on a ring. Each has seen one of the ten digits and talks with two neighbours.\n"
        "Six algorithms, three seeds, the same settings for all:",
        highlight=False,
    )
    _compare(demo_experiments(), 3, parallel, _folder(out, False, "demo"))


def demo_experiments() -> list[Experiment]:
    """What ``parley demo`` compares; the same settings for every algorithm."""
    common: dict[str, Any] = {
        "data": "digits",
        "agents": 10,
        "topology": "ring",
        "partition": "skew:1",
    }
    common |= {"variant": "as-run", "epochs": 40, "lr": 0.05, "evaluate_every": 2}
    common |= {"momentum": 0.9}
    return [method.experiment(common) for method in comparison.parse_algorithms(comparison.PAPER)]


@app.command("algorithms")
def list_algorithms(
    name: Annotated[
        str | None,
        typer.Argument(help="One of them, to see its options.", metavar="NAME", show_default=False),
    ] = None,
    json_: Json = False,
) -> None:
    """List the algorithms, or the options of one.

    [bold]parley algorithms ngc[/bold]

    [bold]parley algorithms ngc+qgm[/bold]
    """
    if json_:
        chosen = [name] if name else list(ALGORITHMS)
        fields = {n: find(n).options() for n in chosen}
        print(json.dumps({n: {k: f.default for k, f in fields[n].items()} for n in chosen}))
    elif name is None:
        ideas = [_prose(algorithm.about()).partition(". ")[0] for algorithm in ALGORITHMS.values()]
        rows = [
            [key, algorithm.title, algorithm.needs, idea.rstrip(".")]
            for (key, algorithm), idea in zip(ALGORITHMS.items(), ideas, strict=True)
        ]
        shown = Table(["name", "", "needs weights", "idea"], rows, frozenset(range(4)))
        screen.print(shown.terminal())
        screen.print("parley algorithms NAME shows the options of one.", highlight=False)
        parts = ", ".join(f"{part} ({part_kind(part)})" for part in PARTS)
        screen.print(f"Parts that can be joined, as in ngc+qgm: {parts}.", highlight=False)
    else:
        algorithm = find(name)
        screen.print(Text(f"{algorithm.title}: {_prose(algorithm.about())}\n"))
        options = algorithm.options()
        for option, field in options.items():
            runs = "gradient_at" in options and option in AS_RUN
            as_run = f", as run {AS_RUN[option]}" if runs else ""
            line = Text.assemble((option, "bold"), f" = {field.default}{as_run}")
            line.append(f"  [{valid_values(field)}]", "dim")
            screen.print(line)
            screen.print(Padding(Text(" ".join((field.description or "").split())), (0, 0, 0, 4)))


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "").split())


@app.command()
@takes_experiment("weights", "seed")
def topology(
    spec: Annotated[
        str,
        typer.Argument(
            help="name or name:arguments: " + ", ".join(topologies.EXAMPLES) + ".",
            metavar="SPEC",
            show_default=False,
        ),
    ],
    agents: Annotated[
        str | None,
        typer.Option(
            help="Number of peers; a file or torus:2x5 says it itself.",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    parameters: Annotated[
        str, typer.Option(help="Size of the model whose cost is shown: LeNet-5's.", metavar="N")
    ] = "61706",
    picture: Picture = None,
    json_: Json = False,
    **flags: Any,
) -> None:
    """Check a graph: spectral gap, diameter, weights, and what a round costs.

    [bold]parley topology ring --agents 10[/bold]

    [bold]parley topology circulant:1,5 --agents 20 --picture graph.png[/bold]

    A graph that changes from step to step, with its period and whether that is the exact mean:
    [bold]parley topology base:1 --agents 10[/bold]
    """
    _check_picture(picture)
    asked = Experiment.of(**_given(flags))
    n = _count("agents", agents) if agents else None
    graph = topologies.parse(spec, n, asked.weights, asked.seed)
    size = _count("parameters", parameters)
    figures: dict[str, Any] = topologies.describe(graph)
    messages = float(figures["messages_per_round"])
    dense, packed = (
        round(messages * (HEADER.itemsize + codec.message_bytes(torch.float32)) / 1e6, 6)
        for codec in (Dense(size), ScaledSign((size,)))
    )
    figures["round_megabytes_models"] = figures["round_megabytes_cross_gradients"] = dense
    figures["round_megabytes_cross_gradients_1bit"] = packed
    if picture:
        topology_picture(graph, picture)
    if json_:
        if graph.phases:
            figures["rounds"] = [_round_figures(phase) for phase in graph.phases]
        print(json.dumps(figures | {"weight_matrix": graph.weights.tolist()}))
        return

    def degrees() -> str:
        low, mean, high = (figures[f"degree_{k}"] for k in ("min", "mean", "max"))
        return f"{low}" if low == high else f"{low} to {high}, {mean:.3g} on average"

    properties = ["symmetric" if graph.symmetric else "not symmetric"]
    properties.append("doubly stochastic" if graph.doubly_stochastic else "not doubly stochastic")
    _heading(f"{graph.name}, {graph.agents} agent{'s' * (graph.agents > 1)}")
    in_all = ", of all rounds together" if graph.phases else ""
    each = " in every round" if graph.phases else ""
    lines = {
        "neighbours of an agent": degrees() + in_all,
        "edges": f"{len(graph.edges)}, {'some one-way' * graph.directed or 'all both ways'}",
        "diameter": str(graph.diameter),
        "weights": f"{graph.scheme}: {', '.join(properties)}{each}",
    }
    if graph.phases:
        lines["period"] = f"{graph.period} rounds, one a step"
        exact = f"after {graph.exact_after} rounds" if graph.exact_after else "never, only nearly"
        lines["everyone has the exact mean"] = exact
        lines["spectral gap of a period"] = f"{graph.spectral_gap:.6g}"
        if not graph.exact_after:
            per_round = 1 - (1 - graph.spectral_gap) ** (1 / graph.period)
            lines["the same for each round"] = f"{per_round:.6g}"
    else:
        lines["spectral gap"] = f"{graph.spectral_gap:.6g}"
        lines["smallest eigenvalue"] = f"{graph.lambda_min + 0.0:.6g}"
    screen.print(_pairs(lines).terminal())
    if graph.phases:
        _rounds_table(graph, HEADER.itemsize + Dense(size).message_bytes(torch.float32))
    elif graph.agents <= 10:
        _heading("the weight that an agent (row) gives to another's value (column)")
        weights = [
            [str(agent), *(f"{w:.2f}" if w else "·" for w in row)]
            for agent, row in enumerate(graph.weights)
        ]
        matrix = Table(["", *map(str, range(graph.agents))], weights)
        screen.print(matrix.terminal())
    _heading(f"what a step costs with {size:,} parameters in float32")
    costs = [
        ["its model to its neighbours", f"{dense:.4f}"],
        ["cross-gradients back", f"{dense:.4f}"],
        ["cross-gradients back, 1 bit per parameter", f"{packed:.4f}"],
    ]
    screen.print(Table(["each agent, on average", "MB sent"], costs).terminal())
    if picture:
        screen.print(f"drawn to {picture}", highlight=False, soft_wrap=True)


def _round_figures(phase: Topology) -> dict[str, Any]:
    return {
        "edges": [list(edge) for edge in phase.edges],
        "weights": phase.edge_weights.tolist(),
        "degree_max": max(phase.degrees),
        "messages": len(phase.edges),
        "doubly_stochastic": phase.doubly_stochastic,
    }


ROUNDS_SHOWN = 16


def _rounds_table(graph: Topology, message: int) -> None:
    """Who talks with whom in each round, and what it costs."""
    _heading("round by round")
    rows = []
    for number, phase in enumerate(graph.phases[:ROUNDS_SHOWN]):
        pairs = [f"{j}→{i}" for j, i in phase.edges]
        if not phase.directed:
            pairs = [f"{j}–{i}" for j, i in phase.edges if j < i]
        sent = [degree * message / 1e6 for degree in phase.out_degrees]
        some = " ".join(pairs[:8]) + " …" * (len(pairs) > 8)
        mean = f"{sum(sent) / len(sent):.4f}"
        fewest, most = min(phase.degrees), max(phase.degrees)
        degrees = f"{fewest} to {most}" if fewest < most else str(most)
        rows.append([str(number), degrees, f"{max(sent):.4f}", mean, some])
    headings = ["round", "neighbours", "MB sent, most", "MB sent, mean", ""]
    screen.print(Table(headings, rows, frozenset({0, 4})).terminal())
    if graph.period > ROUNDS_SHOWN:
        screen.print(f"and {graph.period - ROUNDS_SHOWN} further rounds", highlight=False)


@app.command("data")
@takes_experiment("agents", "topology", "partition", "seed", "data_root")
def show_data(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A dataset; without one, lists those known by name.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    picture: Picture = None,
    json_: Json = False,
    **flags: Any,
) -> None:
    """Look at a dataset and at who would hold what.

    [bold]parley data digits --agents 10 --partition dirichlet:0.3 --picture who.png[/bold]
    """
    if name is None:
        known = {k: s.description for k, s in datasets.SOURCES.items()}
        if json_:
            print(json.dumps(known))
            return
        other = ("owner/name", "any image dataset of the hub, or a local folder of its layout")
        shown = Table(["name", "what it is"], [*known.items(), other], frozenset({0, 1}))
        screen.print(shown.terminal())
        return
    _check_picture(picture)
    asked = Experiment.of(**_given(flags), data=name)
    found = problem(asked)
    classes = found.class_names
    held = np.stack([np.bincount(s.targets, minlength=len(classes)) for s in found.samples])
    shape = found.test.inputs.shape[1:]
    if picture:
        partition_picture(held, picture, classes)
    if json_:
        about = {
            "data": name, "train": int(held.sum()), "test": len(found.test), "shape": list(shape),
            "classes": classes, "agents": asked.agents, "partition": asked.partition,
            "held": held.tolist(), "note": found.note,
        }  # fmt: skip
        print(json.dumps(about))
        return
    size = "×".join(map(str, shape))
    title = f"{name}: {held.sum():,} training and {len(found.test):,} test samples, {size}"
    _heading(title)
    screen.print(_holdings_table(held, classes).terminal())
    if found.note:
        screen.print(f"note: {found.note}", highlight=False)
    if picture:
        screen.print(f"drawn to {picture}", highlight=False, soft_wrap=True)


def _holdings_table(held: np.ndarray, classes: tuple[str, ...]) -> Table:
    """A column for each class, or where that is too wide a list of what each agent holds."""
    wide = 14 + sum(2 + max(len(name), len(str(held.max()))) for name in classes) <= screen.width
    rows = []
    for agent, counts in enumerate(held):
        cells = [str(count) if count else "·" for count in counts]
        if not wide:
            cells = [", ".join(f"{classes[c]}: {counts[c]}" for c in np.flatnonzero(counts))]
        rows.append([str(agent), *cells, str(counts.sum())])
    headings = ["agent", *(classes if wide else ("holds",)), "all"]
    return Table(headings, rows, frozenset({0}) if wide else frozenset({0, 1}))
