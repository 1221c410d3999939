"""``parley compare``: several algorithms with several seeds, in one table."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from parley.cli.flags import given_options, takes_experiment
from parley.cli.methods import chosen_methods, on_partitions, refuse_rates, run_tuning
from parley.cli.options import (
    AllowCode,
    File,
    Json,
    Log,
    Out,
    Parallel,
    Resume,
    count,
    option,
    output_folder,
)
from parley.cli.screen import heading, screen, stoppable
from parley.compute.threads import usable_cores
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.sweep import compare as comparison
from parley.sweep import field as whole_field
from parley.sweep import tune as tuning
from parley.user_code import allow
from parley.watch import trackers

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

Algorithms = Annotated[
    str | None,
    option(
        "Comma-separated, with any options after colons: dpsgd,ngc:alpha=0,ngc:lr=0.01, "
        "relaysgd:topology=chain; your own as module:Class. Or: all. "
        f"(default: {comparison.PAPER})",
        "LIST",
    ),
]
Seeds = Annotated[str, typer.Option(help="Seeds per method, starting from --seed.", metavar="N")]
Partitions = Annotated[
    str | None,
    option(
        "Several partitions, comma-separated: one table and one picture for all. "
        f"(default with --algorithms all: {','.join(whole_field.PARTITIONS)})",
        "LIST",
    ),
]
Tuned = Annotated[
    Path | None,
    option("A tuned.toml from parley tune, with settings for each method.", "FILE"),
]
Tune = Annotated[
    str | None,
    option("Tune first, with this many trials per method and partition.", "TRIALS"),
]


@app.command()
@takes_experiment(
    algorithm="One algorithm, instead of --algorithms.",
    workers="Processes that share the agents of each run. (default: 1)",
)
def compare(
    file: File = None,
    *,
    algorithms: Algorithms = None,
    seeds: Seeds = "3",
    parallel: Parallel = None,
    partitions: Partitions = None,
    tuned: Tuned = None,
    tune: Tune = None,
    out: Out = None,
    resume: Resume = False,
    json_: Json = False,
    log: Log = None,
    allow_code: AllowCode = None,
    **flags: Any,
) -> None:
    """Run several algorithms with several seeds side by side.

    Prints a table and writes it with all records and a picture of the curves.

    Flags apply to every algorithm, hyper-parameters to those that have them. Options after a name
    override flags, and the table shows what differs.

    [bold]parley compare --algorithms dpsgd,ngc:alpha=0,ngc --seeds 3 --epochs 30[/bold]

    [bold]parley compare --algorithms all --data digits --tune 6[/bold]
    """
    allow(allow_code or ())
    given = given_options(flags)
    options, methods = chosen_methods(file, given, algorithms, comparison.PAPER)
    experiments = comparison.experiments_of(methods, options)
    out = output_folder(out, resume, f"compare-{Path(experiments[0].data).name}")
    logged = trackers.parse(log)
    if tuned and tune:
        raise BadValue("tune", tune, "either --tune or --tuned")
    if tuned and "lr" in given:
        valid = f"none, or after a name: {methods[0].name}:lr={given['lr']}"
        raise BadValue("lr", given["lr"], valid, "--tuned sets it for each method")
    if tune:
        refuse_rates(given, methods)
    if partitions or tuned or tune or algorithms == "all":
        if logged:
            raise BadValue("log", log, "a comparison on one partition, without tuning")
        own = "partition" in options or algorithms != "all"
        default = experiments[0].partition if own else ",".join(whole_field.PARTITIONS)
        every = on_partitions(methods, options, partitions or default)
        _compare_field(
            methods, every, count("seeds", seeds), parallel,
            out, resume, json_, tuned, count("tune", tune) if tune else 0, set(given),
        )  # fmt: skip
        return
    run_comparison(experiments, count("seeds", seeds), parallel, out, resume, json_, logged)


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
    at_once = count("parallel", parallel) if parallel else usable_cores()
    runs = out / "runs" if trials else out
    asked = next(iter(by_partition.values()))
    labels = comparison.labels(asked)  # tuned rates are in the records, not in the names
    with stoppable(out):
        if trials:
            tuned = run_tuning(
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
    heading(f"{comparison.title(asked, seeds, *more)}: averaged model, %")
    screen.print(whole_field.table(rows).terminal(screen.width))
    where = f"written to {out}: table.md, field.svg, and every run's records"
    screen.print(where, soft_wrap=True, highlight=False)


def run_comparison(
    experiments: list[Experiment],
    seeds: int,
    parallel: str | None,
    out: Path,
    resume: bool = False,
    as_json: bool = False,
    log: tuple[str, ...] = (),
) -> None:
    """Runs every experiment with each of the seeds, on one partition, and prints the table."""
    at_once = count("parallel", parallel) if parallel else usable_cores()
    jobs = comparison.jobs(experiments, seeds, out, log)
    with stoppable(out):
        comparison.compare(jobs, at_once, out, resume)
    rows = comparison.rows(jobs)
    comparison.write(out, jobs, rows)
    if as_json:
        print(json.dumps({"rows": rows, "out": str(out)}))
        return
    heading(comparison.title(experiments, seeds, experiments[0].partition))
    screen.print(comparison.table(rows).terminal(screen.width))
    screen.print(
        f"written to {out}: table.md, curves.svg, and every run's records",
        soft_wrap=True,
        highlight=False,
    )
