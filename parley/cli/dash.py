"""``parley dash``: a local page that follows runs. It needs no torch, and does not load it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from parley.errors import BadValue, ParleyError

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
def dash(
    runs: Annotated[
        Path,
        typer.Argument(
            help="Folder with runs, at any depth; it may appear later.",
            metavar="RUNS",
            show_default=False,
        ),
    ] = Path("runs"),
    port: Annotated[
        str, typer.Option(help="If it is taken, the next free one; 0 for any.", metavar="N")
    ] = "8642",
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at. Others than this machine can look only where this is "
            "another address, such as 0.0.0.0; then a random token is needed, which is printed.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    show: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="Open the page in a browser. (default: where there is one)",
            metavar="",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Follow runs on a local web page, while they go on and afterwards.

    Curves, the graph with who agrees with whom, time left, runs side by side. It only reads; runs
    do not know of it. RUNS is runs/ unless given.

    [bold]parley dash[/bold]
    (and in another terminal [bold]parley train --epochs 200[/bold])

    [bold]parley dash results --port 9000[/bold]

    On another machine: [bold]ssh -L 8642:localhost:8642 other parley dash[/bold], then open the
    address here.
    """
    if runs.exists() and not runs.is_dir():
        raise BadValue("runs", str(runs), "a folder", "it is a file")
    if not port.isdecimal() or int(port) > 65535:
        raise BadValue("port", port, "a whole number from 0 to 65535")
    try:
        from parley.dash.serve import serve
    except ImportError as error:
        raise ParleyError(
            f"dash: {error.name} is not installed; it comes with "
            "pip install 'parley-learning[dashboard]'"
        ) from None
    serve(runs, host, int(port), show, lambda words: print(words, file=sys.stderr, flush=True))
