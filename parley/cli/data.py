"""``parley data``: a dataset, and how it would be split among agents."""

import json
from typing import Annotated, Any

import numpy as np
import typer

from parley import data as datasets
from parley.cli.flags import given_options, takes_experiment
from parley.cli.options import Json, Picture, check_picture
from parley.cli.screen import heading, screen
from parley.data import targets
from parley.experiment import Experiment
from parley.results.holdings import partition_picture
from parley.results.table import Table
from parley.training.problem import problem

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("data")
@takes_experiment(
    "agents",
    "topology",
    "partition",
    "fraction",
    "validation",
    "seed",
    "data_root",
    "data_options",
    "task",
)
def show_data(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A dataset. Without one, lists the datasets that have names.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    picture: Picture = None,
    json_: Json = False,
    **flags: Any,
) -> None:
    """Show a dataset and how it would be split among agents.

    [bold]parley data digits --agents 10 --partition dirichlet:0.3 --picture who.png[/bold]
    """
    if name is None:
        known = {k: s.description for k, s in datasets.SOURCES.items()}
        if json_:
            print(json.dumps(known))
            return
        other = (
            "owner/name",
            "any image dataset on the hub, or a local folder with the same layout",
        )
        shown = Table(["name", "what it is"], [*known.items(), other], frozenset({0, 1}))
        screen.print(shown.terminal())
        return
    check_picture(picture)
    asked = Experiment.of(**given_options(flags), data=name)
    found = problem(asked)
    outputs = len(found.class_names)
    classes = tuple(targets.held_names(asked.task, found.class_names))
    held = np.array([targets.held(asked.task, s.targets, outputs) for s in found.samples])
    sizes = [len(samples) for samples in found.samples]
    shape = found.test.inputs.shape[1:]
    if picture:
        partition_picture(held, picture, classes)
    if json_:
        about = {
            "data": name, "train": sum(sizes), "test": len(found.test), "shape": list(shape),
            "classes": classes, "agents": asked.agents, "partition": asked.partition,
            "held": held.tolist(), "note": found.note,
        }  # fmt: skip
        print(json.dumps(about))
        return
    size = "×".join(map(str, shape))
    title = f"{name}: {sum(sizes):,} training and {len(found.test):,} test samples, {size}"
    heading(title)
    screen.print(_holdings_table(held, classes, sizes).terminal())
    if found.note:
        screen.print(f"note: {found.note}", highlight=False)
    if picture:
        screen.print(f"drawn to {picture}", highlight=False, soft_wrap=True)


def _holdings_table(held: np.ndarray, classes: tuple[str, ...], sizes: list[int]) -> Table:
    """One column per class or, if that is too wide, a list of what each agent holds."""
    wide = 14 + sum(2 + max(len(name), len(str(held.max()))) for name in classes) <= screen.width
    rows = []
    for agent, counts in enumerate(held):
        cells = [str(count) if count else "·" for count in counts]
        if not wide:
            cells = [", ".join(f"{classes[c]}: {counts[c]}" for c in np.flatnonzero(counts))]
        rows.append([str(agent), *cells, str(sizes[agent])])
    headings = ["agent", *(classes if wide else ("holds",)), "all"]
    return Table(headings, rows, frozenset({0}) if wide else frozenset({0, 1}))
