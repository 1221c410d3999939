"""``parley algorithms``: the list of algorithms, and the options of each."""

import json
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from parley.algorithms import ALGORITHMS, AS_RUN, PARTS, AlgorithmKind, find, part_kind
from parley.cli.options import Json
from parley.cli.own_algorithm import own_algorithm
from parley.cli.screen import screen
from parley.results.table import Table
from parley.validation import valid_values

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("algorithms")
def list_algorithms(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An algorithm, or your own as module:Class, to see its options.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """List the algorithms, or the options of one.

    [bold]parley algorithms ngc[/bold]

    [bold]parley algorithms ngc+qgm[/bold]
    """
    if json_:
        chosen = [name] if name else list(ALGORITHMS)
        fields = {n: _kind(n).options() for n in chosen}
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
        algorithm = _kind(name)
        screen.print(Text(f"{algorithm.title}: {_prose(algorithm.about())}\n"))
        options = algorithm.options()
        for option, field in options.items():
            runs = "gradient_at" in options and option in AS_RUN
            as_run = f", as run {AS_RUN[option]}" if runs else ""
            line = Text.assemble((option, "bold"), f" = {field.default}{as_run}")
            line.append(f"  [{valid_values(field)}]", "dim")
            screen.print(line)
            screen.print(Padding(Text(" ".join((field.description or "").split())), (0, 0, 0, 4)))


def _kind(name: str) -> AlgorithmKind:
    """One of Parley's algorithms, or the user's own."""
    own = own_algorithm(name)
    kind: AlgorithmKind = own["name"] if own else find(name)
    return kind


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "").split())
