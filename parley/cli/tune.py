"""``parley tune``: learning rates for several methods, each with the same number of trials."""

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
    Out,
    Parallel,
    Resume,
    count,
    option,
    output_folder,
)
from parley.cli.screen import screen, stoppable
from parley.compute.threads import usable_cores
from parley.errors import BadValue
from parley.experiment import flatten, read_file
from parley.sweep import compare as comparison
from parley.sweep import tune as tuning
from parley.user_code import allow

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
@takes_experiment(
    algorithm="One algorithm, instead of --algorithms. (default: the file's, or ngc)",
    lr="Not allowed here: tuning chooses it within --rates.",
    validation="Share of the training samples, equal for every class, that is held out to evaluate "
    f"trials on. (default: {tuning.VALIDATION})",
    workers="Processes that share the agents of each run. (default: 1)",
)
def tune(
    file: File = None,
    *,
    algorithms: Annotated[
        str | None,
        option("Comma-separated, as for parley compare. Or: all. (default: --algorithm)", "LIST"),
    ] = None,
    partitions: Annotated[
        str | None,
        option("Several partitions, comma-separated, each tuned separately.", "LIST"),
    ] = None,
    trials: Annotated[
        str, typer.Option(help="Trials per method, the same number for all.", metavar="N")
    ] = "8",
    rates: Annotated[
        str,
        typer.Option(help="The smallest and the largest learning rate.", metavar="LOW,HIGH"),
    ] = ",".join(f"{rate:g}" for rate in tuning.RATES),
    parallel: Parallel = None,
    out: Out = None,
    resume: Resume = False,
    json_: Json = False,
    allow_code: AllowCode = None,
    **flags: Any,
) -> None:
    """Find learning rates by a small seeded search, with the same budget for every method.

    Trials are evaluated on a held-out fifth of the training samples (or --validation); the test set
    is not used. Writes tuned.toml for parley compare, and for each method an experiment file for
    parley train.

    [bold]parley tune --algorithms ngc,dpsgd --data digits --trials 8 --epochs 10[/bold]
    """
    allow(allow_code or ())
    given = given_options(flags)
    default = "ngc" if algorithms or "algorithm" in given else _algorithm_of(file)
    options, methods = chosen_methods(file, given, algorithms, default)
    refuse_rates(given, methods)
    first = comparison.experiments_of(methods, options)[0]
    every = on_partitions(methods, options, partitions or first.partition)
    low, _, high = rates.partition(",")
    try:
        between = float(low), float(high)
    except ValueError:
        raise BadValue("rates", rates, "LOW,HIGH, for example 0.01,1") from None
    out = output_folder(out, resume, f"tune-{Path(first.data).name}")
    at_once = count("parallel", parallel) if parallel else usable_cores()
    with stoppable(out):
        path = run_tuning(methods, every, count("trials", trials), between, at_once, out, resume)
    if json_:
        print(json.dumps({"tuned": tuning.read(path), "out": str(out)}))
        return
    screen.print(
        f"written to {out}: {path.name}, table.md, experiments and all records",
        soft_wrap=True,
        highlight=False,
    )


def _algorithm_of(file: Path | None) -> str:
    """The name of the algorithm in a file, or the default."""
    found = flatten(read_file(file)).get("algorithm") if file else None
    return found.name if found else "ngc"
