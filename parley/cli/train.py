"""``parley train``: one experiment, from flags and a file, in this process or several."""

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from parley.cli.flags import given_options, takes_experiment, with_file
from parley.cli.options import AllowCode, File, Json, Log, Out, Resume, option, output_folder
from parley.cli.screen import heading, pairs, screen, stoppable
from parley.cluster.rank import is_first
from parley.measures import Measure, of_options
from parley.process import loading
from parley.results.table import Table
from parley.user_code import allow

app = typer.Typer(rich_markup_mode="rich", add_completion=False)
HERE = "This host's own settings"
HostFile = Annotated[
    Path | None,
    option(
        "A TOML file with this host's own part: its agents, and where their data are.",
        "FILE",
        "--host",
        panel=HERE,
    ),
]
AgentsHere = Annotated[
    str | None,
    option(
        "Agents that live on this host, for example 0,1. (default: those of --data-here, or a "
        "share of the unclaimed ones)",
        "LIST",
        panel=HERE,
    ),
]
DataHere = Annotated[
    list[str] | None,
    option(
        "An agent's own data: a folder, a hub ID owner/name, or module:function; may be repeated.",
        "AGENT=PLACE",
        panel=HERE,
    ),
]


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
    allow_code: AllowCode = None,
    **flags: Any,
) -> None:
    """Train one model among peers.

    [bold]parley train --data digits --agents 10 --partition skew:1 --algorithm ngc[/bold]

    [bold]parley train experiment.toml --seed 1 --out runs/mine[/bold]
    (after Ctrl-C, continue with the same command and [bold]--resume[/bold])

    [bold]torchrun --nproc-per-node 3 -m parley train experiment.toml --out runs/three[/bold]
    """
    with loading(for_good=True):  # here, since --help should not load torch
        from parley.cluster import launch
        from parley.cluster.host import Host
        from parley.cluster.run import Watcher
        from parley.experiment import Experiment
        from parley.training.problem import problem
        from parley.watch import trackers
        from parley.watch.progress import TrainingProgress

    experiment = Experiment.of(**with_file(file, given_options(flags)))
    part = Host.of(host, agents_here, data_here or ())
    allow([*part.allow_code, *(allow_code or ())])
    logged = trackers.parse(log) if log else ()
    out = output_folder(out, resume, f"{experiment.algorithm.name}-{Path(experiment.data).name}")
    if "workers" not in experiment.model_fields_set:
        workers = launch.default_workers(experiment, out)
        experiment = experiment.model_copy(update={"workers": workers})
    with ExitStack() as open_:
        open_.enter_context(stoppable(out))
        watch: Watcher = open_.enter_context(TrainingProgress(experiment, is_first()))
        if logged:
            watch = open_.enter_context(trackers.logging(logged, experiment, out, watch))
        load = partial(problem, places=part.data)
        outcome = launch.execute(experiment, load, out, resume, watch, part)
    if outcome is None:
        return
    show_summary(outcome.summary, json_)


def _absent(done: dict[str, Any]) -> dict[str, str]:
    if absent := done.get("agents_absent"):
        from parley.fabric.base import listed

        return {"without": f"{listed(absent)} of {', '.join(done['hosts_absent'])}"}
    return {}


def _part_of_test_samples(done: dict[str, Any]) -> dict[str, str]:
    if absent := done.get("test_samples_absent", 0):
        some = done["test_samples"]
        return {"tested on": f"{some} of {some + absent} samples; the others are on absent hosts"}
    return {}


def _early_end(done: dict[str, Any]) -> dict[str, str]:
    why = done.get("stopped")
    return {"stopped": f"after epoch {done['epochs']}: {why}"} if why else {}


def show_summary(done: dict[str, Any], as_json: bool) -> None:
    """Prints the results of a run, as a table or as JSON."""
    if as_json:
        print(json.dumps(done))
        return
    heading(f"{done['label']} on {done['data']}, {done['agents']} agents")
    screen.print(_summary_table(done).terminal())


def _summary_table(done: dict[str, Any]) -> Table:
    lines: dict[str, Any] = {}
    for measure in of_options(done):
        means, own, after, low, high = (
            _shown(measure, done.get(measure.field(form)))
            for form in ("mean_model", "own", "after_gossip", "own_min", "own_max")
        )
        title = measure.title
        lines |= {
            f"{title}, averaged model": means,
            f"{title}, own models": f"{own} ({low} to {high})",
            f"{title}, own models after gossip": after,
        }
    lines |= {
        **_absent(done),
        **_part_of_test_samples(done),
        **_early_end(done),
        "loss, averaged model": f"{done['loss']:.4f}",
        "consensus distance": f"{done['consensus_distance']:.4g}",
        "models sent per agent": f"{done['bytes_models'] / 1e6:.3f} MB",
        "cross-gradients sent per agent": f"{done['bytes_cross_gradients'] / 1e6:.3f} MB",
        "training time": f"{done['seconds']:.1f} s",
        "sample gradients per second": f"{done['gradients_per_second']:,.0f}",
        "peak memory": f"{done['peak_memory_mb']:.0f} MB",
        "written to": done["out"],
    }
    return pairs({name: str(value) for name, value in lines.items()})


def _shown(measure: Measure, value: float | None) -> str:
    return "not defined" if value is None else measure.shown(value, digits=2)
