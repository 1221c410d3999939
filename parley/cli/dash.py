"""``parley dash``: a local page that follows runs. It needs no torch, and does not load it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import option
from parley.errors import BadValue, ParleyError

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
def dash(
    runs: Annotated[
        Path,
        typer.Argument(
            help="Folder with runs, at any depth; it need not exist yet.",
            metavar="RUNS",
            show_default=False,
        ),
    ] = Path("runs"),
    port: Annotated[
        str,
        typer.Option(help="If it is in use, the next free one is used; 0 for any.", metavar="N"),
    ] = "8642",
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. To let other machines in, use a different address, such as "
            "0.0.0.0; they then need a random token, which is printed.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    show: Annotated[
        bool | None,
        option("Open the page in a browser. (default: if there is one)", "", "--open/--no-open"),
    ] = None,
) -> None:
    """Follow runs on a local web page, live and afterwards.

    Curves, the graph with how far agents are from each other, time left, runs side by side. It only
    reads files and does not affect runs. RUNS is runs/ unless given.

    [bold]parley dash[/bold]
    (and in another terminal [bold]parley train --epochs 200[/bold])

    [bold]parley dash results --port 9000[/bold]

    For runs on another machine: [bold]ssh -L 8642:localhost:8642 other parley dash[/bold], then
    open the address here.
    """
    if runs.exists() and not runs.is_dir():
        raise BadValue("runs", str(runs), "a folder", "it is a file")
    if not port.isdecimal() or int(port) > 65535:
        raise BadValue("port", port, "a whole number from 0 to 65535")
    try:
        from parley.dash.serve import serve
    except ImportError as error:
        raise ParleyError(
            f"dash: {error.name} is not installed; run pip install 'parley-learning[dashboard]'"
        ) from None
    serve(runs, host, int(port), show, lambda words: print(words, file=sys.stderr, flush=True))
