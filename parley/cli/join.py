"""``parley join``: one peer of a group that trains over the open network."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.flags import with_file
from parley.cli.options import AllowCode, Json, Log, Out, Resume, option, output_folder
from parley.cli.screen import stoppable
from parley.cli.train import HostFile, show_summary
from parley.cluster.host import Host
from parley.experiment import Experiment
from parley.peers import join as peers
from parley.peers.file import Peers
from parley.training.problem import problem
from parley.user_code import allow
from parley.watch import trackers
from parley.watch.progress import TrainingProgress

app = typer.Typer(rich_markup_mode="rich", add_completion=False)
INCOMPLETE = 3
"""Exit code of a run that is complete, but without some of its agents."""

PeersFile = Annotated[
    Path,
    typer.Argument(
        help="Who takes part: the same file at every peer.", metavar="PEERS.toml",
        show_default=False,
    ),
]  # fmt: skip
Me = Annotated[
    str,
    option("Which of the peers this is.", "NAME"),
]
Keys = Annotated[
    Path,
    option("Folder with this peer's NAME.key and NAME.crt. (default: here)", "FOLDER"),
]  # fmt: skip
Listen = Annotated[
    str | None,
    option(
        "Address to listen on for other peers. (default: the port of this peer's address)",
        "HOST:PORT",
    ),
]


@app.command()
def join(
    file: PeersFile,
    *,
    me: Me,
    host: HostFile = None,
    keys: Keys = Path(),
    listen: Listen = None,
    out: Out = None,
    resume: Resume = False,
    allow_code: AllowCode = None,
    json_: Json = False,
    log: Log = None,
) -> None:
    """Train with other organisations over the open network, with no coordinator.

    [bold]parley join peers.toml --me ward-a --host host.toml --out runs/mine[/bold]

    Every peer runs this command with the same peers.toml and its own name. Links are encrypted, and
    only those whose keys peers.toml lists are let in.
    """
    group = Peers.read(file)
    experiment = Experiment.of(**with_file(Path(group.experiment), {}))
    part = peers.part_of(Host.of(host), group, me)
    allow([*part.allow_code, *(allow_code or ())])
    logged = trackers.parse(log)
    out = output_folder(out, resume, f"{me}-{experiment.algorithm.name}")
    with (
        stoppable(out),
        TrainingProgress(experiment, True) as progress,
        trackers.logging(logged, experiment, out, progress) as watch,
    ):
        load = partial(problem, places=part.data)
        outcome = peers.join(
            group, experiment, me, keys, load, out, resume, watch, None, listen, file
        )
    show_summary(outcome.summary, json_)
    if outcome.summary.get("agents_absent"):
        raise typer.Exit(INCOMPLETE)
