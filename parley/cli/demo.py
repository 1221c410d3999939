"""``parley demo``: six algorithms on ten agents with one digit each."""

from typing import Any

import typer

from parley.cli.compare import run_comparison
from parley.cli.options import Out, Parallel, output_folder
from parley.experiment import Experiment
from parley.sweep import compare as comparison
from parley.watch.log import console

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
def demo(
    out: Out = None,
    parallel: Parallel = None,
) -> None:
    """See what Parley does, offline, in about a minute.

    Ten agents on a ring, each with only one digit, and six ways to learn all ten together.
    """
    console.print(
        "Ten agents on a ring. Each has seen one of the ten digits and talks to two neighbours.\n"
        "Six algorithms, three seeds, the same settings for all:",
        highlight=False,
    )
    run_comparison(demo_experiments(), 3, parallel, output_folder(out, False, "demo"))


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
