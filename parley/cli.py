"""The command line: flags in, one experiment out, results on stdout, everything else on stderr."""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import numpy as np
import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table
from rich.text import Text

import parley
from parley import compare as comparison
from parley import data as datasets
from parley import draw, folder, launch
from parley import partition as partitions
from parley import topology as topologies
from parley.algorithms import ALGORITHMS, AS_RUN
from parley.errors import BadValue, ParleyError, unknown_name, valid_values
from parley.experiment import ALGORITHM_OPTIONS, Experiment, read_file
from parley.progress import TrainingProgress, console
from parley.run import problem

app = typer.Typer(
    help="Decentralized learning: peers with different, private data train one model together, "
    "with no server.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
screen = Console()


def main() -> None:
    """The ``parley`` command: every mistake is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except ParleyError as error:
        _complain(str(error))
        code = 2
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        _complain(error.format_message())
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    if launch.is_first():
        print(f"error: {' '.join(message.split())}", file=sys.stderr)


# --- flags -----------------------------------------------------------------------------------


def _algorithm_fields() -> dict[str, tuple[FieldInfo, list[str]]]:
    """Every hyper-parameter, with the algorithms that have it."""
    found: dict[str, tuple[FieldInfo, list[str]]] = {}
    for name, algorithm in ALGORITHMS.items():
        for option, field in algorithm.model_fields.items():
            found.setdefault(option, (field, []))[1].append(name)
    return found


def _flag(name: str, kind: Any, option: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind, option])


def _flag_of(name: str, field: FieldInfo, panel: str, extra: str = "") -> inspect.Parameter:
    """A flag for a field: its help is the sentence below the field, its check is the field's."""
    words = name.replace("_", "-")
    help_ = " ".join((field.description or "").split())
    if get_origin(field.annotation) is Literal:
        help_ += f" One of {', '.join(map(str, get_args(field.annotation)))}."
    if isinstance(field.default, (bool, int, float, str)):
        help_ += f" (default: {field.default})"
    # As text: the experiment does the checking, so that flags and TOML get the same errors.
    kind: Any = str | None
    flag, metavar = f"--{words}", {int: "N", float: "NUMBER"}.get(field.annotation, "TEXT")  # type: ignore[arg-type]
    if field.annotation is bool:
        kind, flag = bool | None, f"--{words}/--no-{words}"
    option = typer.Option(
        flag, help=help_ + extra, rich_help_panel=panel, metavar=metavar, show_default=False
    )
    return _flag(name, kind, option)


WHAT, HOW, HYPER = "What is trained", "How it is carried out", "Hyper-parameters of the algorithm"


def _experiment_flags(without: frozenset[str]) -> list[inspect.Parameter]:
    special = {
        "algorithm": (str | None, typer.Option(
            "--algorithm", help=f"The optimizer: {', '.join(ALGORITHMS)}. (default: ngc)",
            metavar="NAME", rich_help_panel=WHAT, show_default=False,
        )),
        "model_options": (list[str] | None, typer.Option(
            "--model-option", help="An option of the network, as NAME=VALUE; may be repeated.",
            metavar="NAME=VALUE", rich_help_panel=WHAT, show_default=False,
        )),
        "variant": (str | None, typer.Option(
            "--variant",
            help="Sets all choices in which the NGC paper and its authors' code differ: "
            "as-printed or as-run.",
            metavar="TEXT", rich_help_panel=HYPER, show_default=False,
        )),
    }  # fmt: skip
    flags = []
    for name, field in Experiment.model_fields.items():
        if name in special:
            flags.append(_flag(name, *special[name]))
        else:
            flags.append(_flag_of(name, field, HOW if name in _HOW else WHAT))
    for name, (field, having) in _algorithm_fields().items():
        extra = "" if len(having) == len(ALGORITHMS) else f" ({', '.join(having)})"
        flags.append(_flag_of(name, field, HYPER, extra))
    flags.append(_flag("variant", *special["variant"]))
    return [flag for flag in flags if flag.name not in without]


_HOW = {
    "evaluate_every", "gossip_rounds", "bias_norms", "dtype", "data_root", "workers", "engine",
    "device", "threads",
}  # fmt: skip


def takes_experiment(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command a flag for every field of an experiment and of the algorithms."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters.values()
        kept = [p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]
        flags = _experiment_flags(frozenset(without))
        command.__signature__ = inspect.Signature([*kept, *flags])  # type: ignore[attr-defined]
        return command

    return decorate


def _options(file: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """What a TOML file says, with the flags that were given on top."""
    options = read_file(file) if file else {}
    given = {name: value for name, value in flags.items() if value is not None}
    pairs = given.pop("model_options", None)
    if pairs:
        options["model_options"] = options.get("model_options", {}) | dict(map(_setting, pairs))
    if isinstance(options.get("algorithm"), dict):
        if "algorithm" in given and given["algorithm"] != options["algorithm"].get("name"):
            # Another algorithm: keep the hyper-parameters it also has.
            fields = (
                ALGORITHMS[given["algorithm"]].model_fields
                if given["algorithm"] in ALGORITHMS
                else {}
            )
            kept = {k: v for k, v in options["algorithm"].items() if k in fields}
            options["algorithm"] = {"name": given["algorithm"], **kept}
        given.pop("algorithm", None)
    return options | given


def _setting(pair: str) -> tuple[str, str | int | float]:
    name, equals, value = pair.partition("=")
    if not (name and equals and value):
        raise BadValue("model_option", pair, "NAME=VALUE, for example hidden=64")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder for what the run writes. (default: a new one in runs/)",
        show_default=False,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out from its last checkpoint.")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as one JSON object on the last line of stdout."),
]
File = Annotated[
    Path | None,
    typer.Argument(
        help="A TOML file with the same fields as the flags; flags win.", show_default=False
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        help="Also draw it: a file that ends in .png, .svg or .pdf.",
        show_default=False,
    ),
]


# --- commands --------------------------------------------------------------------------------


@app.command()
@takes_experiment()
def train(
    file: File = None, *, out: Out = None, resume: Resume = False, json_: Json = False, **flags: Any
) -> None:
    """Train one model among peers.

    [bold]parley train --data digits --agents 10 --partition skew:1 --algorithm ngc[/bold]

    [bold]parley train experiment.toml --seed 1 --out runs/mine[/bold]
    (and after Ctrl-C the same with [bold]--resume[/bold])

    [bold]torchrun --nproc-per-node 3 -m parley train experiment.toml --out runs/three[/bold]
    """
    experiment = Experiment.of(**_options(file, flags))
    if resume and out is None:
        raise BadValue("out", None, "the folder of the run to go on with", "--resume needs it")
    if resume and out is not None and not (out / folder.EXPERIMENT).exists():
        raise BadValue("out", str(out), "a folder that holds a run", "--resume found none")
    out = out or folder.fresh_name(
        Path("runs"), f"{experiment.algorithm.name}-{_stem(experiment.data)}"
    )
    done = folder.RunFolder(out).summary() if resume else None
    if done is None or _differs(out, experiment):
        try:
            with TrainingProgress(experiment, launch.is_first()) as watch:
                outcome = launch.execute(experiment, problem, out, resume, watch)
        except KeyboardInterrupt:
            if launch.is_first():
                how = f"the same command with --out {out} --resume"
                console.print(f"\nstopped; to go on: {how}", highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None
        if outcome is None:
            return
        done = outcome.summary
    if json_:
        print(json.dumps(done))
    else:
        screen.print(_summary_table(done))


def _differs(out: Path, experiment: Experiment) -> bool:
    text = (out / folder.EXPERIMENT).read_text(encoding="utf-8")
    return bool(experiment.same_as(Experiment.from_toml(text, str(out))))


def _stem(name: str) -> str:
    return Path(name).name.replace("_", "-")


def _summary_table(done: dict[str, Any]) -> Table:
    shown = Table(
        title=f"{done['label']} on {done['data']}, {done['agents']} agents", show_header=False
    )
    lines = {
        "accuracy, averaged model": f"{done['accuracy_mean_model']:.2%}",
        "accuracy, own models": f"{done['accuracy_own']:.2%} "
        f"({done['accuracy_own_min']:.2%} to {done['accuracy_own_max']:.2%})",
        "accuracy, own models after gossip": f"{done['accuracy_after_gossip']:.2%}",
        "loss, averaged model": f"{done['loss']:.4f}",
        "consensus distance": f"{done['consensus_distance']:.4g}",
        "models sent by each agent": f"{done['bytes_models'] / 1e6:.3f} MB",
        "cross-gradients sent by each agent": f"{done['bytes_cross_gradients'] / 1e6:.3f} MB",
        "training time": f"{done['seconds']:.1f} s",
        "sample gradients a second": f"{done['gradients_per_second']:,.0f}",
        "peak memory": f"{done['peak_memory_mb']:.0f} MB",
        "written to": done["out"],
    }
    for name, value in lines.items():
        shown.add_row(name, Text(str(value)))
    return shown


@app.command()
@takes_experiment("algorithm")
def compare(
    file: File = None,
    *,
    algorithms: Annotated[
        str,
        typer.Option(
            help="Comma-separated, with options behind colons: dpsgd,ngc:alpha=0,ngc. Or: all."
        ),
    ] = "dpsgd,ngc:alpha=0,cga,ngc,compcga,compngc",
    seeds: Annotated[str, typer.Option(help="Runs of each, from --seed on.", metavar="N")] = "3",
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
    """Run several algorithms with several seeds side by side.

    Prints a table and writes it with all records and a picture of the curves.

    [bold]parley compare --algorithms dpsgd,ngc:alpha=0,ngc --seeds 3 --epochs 30[/bold]
    """
    options = _options(file, flags)
    options.pop("algorithm", None)
    inner = {name: options.pop(name) for name in ALGORITHM_OPTIONS if name in options}
    chosen = comparison.parse_algorithms(algorithms, inner)
    experiments = [Experiment.of(**options, algorithm=choice) for choice in chosen]
    out = out or folder.fresh_name(Path("runs"), f"compare-{_stem(experiments[0].data)}")
    _compare(experiments, _count("seeds", seeds), _count("parallel", parallel), out, resume, json_)


def _count(name: str, value: str | None) -> int:
    if value is None:
        return comparison.default_parallel()
    if not value.isdigit() or int(value) < 1:
        raise BadValue(name, value, "a whole number of at least 1")
    return int(value)


def _compare(
    experiments: list[Experiment], seeds: int, parallel: int, out: Path, resume: bool, as_json: bool
) -> None:
    todo = comparison.jobs(experiments, seeds, out)
    try:
        results = comparison.compare(todo, parallel, resume)
    except KeyboardInterrupt:
        console.print(
            f"\nstopped; to go on: the same command with --out {out} --resume", soft_wrap=True
        )
        raise typer.Exit(130) from None
    made = comparison.rows(results)
    comparison.write(out, results, made)
    if as_json:
        print(json.dumps({"rows": made, "out": str(out)}))
        return
    first = experiments[0]
    title = (
        f"{first.data}, {first.agents} agents, {first.topology}, {first.partition}, "
        f"{first.epochs} epochs, {seeds} seeds"
    )
    screen.print(comparison.table(made, title))
    screen.print(
        f"written to {out}: table.md, curves.png, and every run's records",
        soft_wrap=True,
        highlight=False,
    )


@app.command()
def demo(
    out: Out = None,
    parallel: Annotated[
        str | None, typer.Option(help="Runs at a time.", metavar="N", show_default=False)
    ] = None,
) -> None:
    """See what it does, offline, in about a minute.

    Ten agents on a ring, each with one digit only, and six ways to learn all ten together.
    """
    out = out or folder.fresh_name(Path("runs"), "demo")
    console.print(
        "Ten agents on a ring. Each has seen one of the ten digits and talks with two neighbours.\n"
        "Six algorithms, three seeds, the same settings for all:",
        highlight=False,
    )
    _compare(demo_experiments(), 3, _count("parallel", parallel), out, False, False)


def demo_experiments() -> list[Experiment]:
    """What ``parley demo`` compares; the same settings for every algorithm."""
    chosen = comparison.parse_algorithms("dpsgd,ngc:alpha=0,cga,ngc,compcga,compngc", {})
    common = {"data": "digits", "agents": 10, "topology": "ring", "partition": "skew:1"}
    return [
        Experiment.of(**common, algorithm=a, epochs=40, lr=0.1, evaluate_every=2) for a in chosen
    ]


@app.command("algorithms")
def list_algorithms(
    name: Annotated[
        str | None, typer.Argument(help="One of them, to see its options.", show_default=False)
    ] = None,
    json_: Json = False,
) -> None:
    """List the algorithms, or the options of one."""
    if name is not None and name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    if json_:
        chosen = [name] if name else list(ALGORITHMS)
        print(
            json.dumps(
                {n: {k: f.default for k, f in ALGORITHMS[n].model_fields.items()} for n in chosen}
            )
        )
        return
    if name is None:
        shown = Table("name", "", "weights", "idea")
        for key, algorithm in ALGORITHMS.items():
            idea = (inspect.getdoc(algorithm) or "").split("\n\n")[0]
            shown.add_row(key, algorithm.title, algorithm.needs, " ".join(idea.split()))
        screen.print(shown)
        return
    algorithm = ALGORITHMS[name]
    screen.print(Text(f"{algorithm.title}: " + " ".join((inspect.getdoc(algorithm) or "").split())))
    shown = Table("option", "valid", "as printed (default)", "as run", "meaning", show_lines=True)
    for option, field in algorithm.model_fields.items():
        as_run = AS_RUN.get(option, "")
        meaning = " ".join((field.description or "").split())
        shown.add_row(option, valid_values(field), str(field.default), str(as_run), meaning)
    screen.print(shown)


@app.command()
def topology(
    spec: Annotated[
        str,
        typer.Argument(
            help="name or name:arguments, for example " + ", ".join(topologies.EXAMPLES)
        ),
    ],
    agents: Annotated[
        str | None, typer.Option(help="Number of agents.", metavar="N", show_default=False)
    ] = None,
    weights: Annotated[str, typer.Option(help="uniform, metropolis, sinkhorn or auto.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of random graphs.")] = 0,
    parameters: Annotated[int, typer.Option(help="Size of the model whose cost is shown.")] = 61706,
    picture: Picture = None,
    json_: Json = False,
) -> None:
    """Check a graph: spectral gap, diameter, weights, and what a round costs.

    [bold]parley topology ring --agents 10[/bold]

    [bold]parley topology circulant:1,5 --agents 20 --picture graph.png[/bold]
    """
    graph = topologies.parse(spec, _count("agents", agents) if agents else None, weights, seed)
    figures: dict[str, Any] = topologies.describe(graph)
    dense = 4 * parameters
    packed = 4 + (parameters + 7) // 8
    out_degree = float(figures["messages_per_round"])
    figures["round_megabytes_models"] = round(out_degree * (32 + dense) / 1e6, 6)
    figures["round_megabytes_cross_gradients"] = figures["round_megabytes_models"]
    figures["round_megabytes_cross_gradients_1bit"] = round(out_degree * (32 + packed) / 1e6, 6)
    if picture:
        draw.topology_picture(graph, picture)
    if json_:
        print(json.dumps(figures))
        return
    shown = Table(title=f"{graph.name}, {graph.agents} agents", show_header=False)
    for key, value in figures.items():
        if key not in ("name", "agents") and not key.startswith("round_"):
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            shown.add_row(key.replace("_", " "), text)
    screen.print(shown)
    cost = Table(
        "each agent, each step, on average",
        "MB sent",
        title=f"cost for {parameters:,} parameters (float32)",
    )
    cost.add_row("its model to its neighbours", f"{figures['round_megabytes_models']:.4f}")
    cost.add_row("cross-gradients back", f"{figures['round_megabytes_cross_gradients']:.4f}")
    cost.add_row(
        "cross-gradients back, 1 bit an entry",
        f"{figures['round_megabytes_cross_gradients_1bit']:.4f}",
    )
    screen.print(cost)
    if picture:
        screen.print(f"drawn to {picture}", highlight=False)


@app.command("data")
def show_data(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A dataset; without one, lists those known by name.", show_default=False
        ),
    ] = None,
    data_root: Annotated[
        str | None,
        typer.Option(help="Folder with local copies, laid out as on the hub.", show_default=False),
    ] = None,
    agents: Annotated[str, typer.Option(help="Number of agents.", metavar="N")] = "10",
    topology: Annotated[str, typer.Option(help="Their graph.")] = "ring",
    partition: Annotated[
        str, typer.Option(help="iid, skew:S, dirichlet:A, classes:K or file:PATH.")
    ] = "skew:1",
    seed: Annotated[int, typer.Option(help="Of the partition.")] = 0,
    picture: Picture = None,
    json_: Json = False,
) -> None:
    """Look at a dataset and at who would hold what.

    [bold]parley data digits --agents 10 --partition dirichlet:0.3 --picture who.png[/bold]
    """
    if name is None:
        known = {k: s.description for k, s in datasets.SOURCES.items()}
        if json_:
            print(json.dumps(known))
            return
        shown = Table("name", "what it is")
        for key, description in known.items():
            shown.add_row(key, description)
        shown.add_row("owner/name", "any image dataset of the hub, or a local folder of its layout")
        screen.print(shown)
        return
    graph = topologies.parse(topology, _count("agents", agents), seed=seed)
    source = datasets.load(name, data_root)
    labels = source.train.targets.numpy()
    partitions.check_labels(labels, len(source.class_names))
    split = partitions.partition(partition, labels, graph, seed)
    held = partitions.holdings(split.indices, labels, len(source.class_names))
    if picture:
        draw.partition_picture(held, picture, source.class_names)
    if json_:
        about = {"data": name, "train": len(source.train), "test": len(source.test)}
        about |= {"shape": list(source.test.inputs.shape[1:]), "classes": list(source.class_names)}
        print(json.dumps(about | {"held": held.tolist(), "note": split.note}))
        return
    shape = "×".join(map(str, source.test.inputs.shape[1:]))
    title = f"{name}: {len(source.train):,} training and {len(source.test):,} test samples, {shape}"
    shown = Table("agent", *source.class_names, "all", title=title)
    for agent, counts in enumerate(np.asarray(held)):
        shown.add_row(str(agent), *(str(c) if c else "·" for c in counts), str(counts.sum()))
    screen.print(shown)
    if split.note:
        screen.print(f"note: {split.note}", highlight=False)
    if picture:
        screen.print(f"drawn to {picture}", highlight=False)


@app.command()
def version() -> None:
    """Print the version."""
    print(parley.__version__)
