"""``parley report``: run folders in, one page (and its pictures) out."""

import json
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import option, switch
from parley.errors import BadValue
from parley.files import write_atomically
from parley.reproduce.cells import find_cell
from parley.results.group import group_seeds
from parley.results.page import page
from parley.results.pictures import pictures as draw_pictures
from parley.results.read import read_all

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs or comparisons, or folders that contain such folders.",
            metavar="RUN...",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        option(
            "The page to write. (default: report.html in RUN, or in this folder if there are "
            "several runs)",
            "FILE",
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        option("Also write every plot as PNG and SVG into this folder.", "FOLDER"),
    ] = None,
    json_: Annotated[
        bool,
        switch("Print the paths of the files written as one JSON object.", "--json"),
    ] = False,
) -> None:
    """Write one page about one or more runs, to read and to share.

    A single self-contained HTML file: open it from disk, mail it, print it. Runs that differ only
    in their seed are averaged. Unfinished runs are shown up to their last record.

    [bold]parley report runs/demo-001[/bold]

    [bold]parley report runs/ngc-digits-001 runs/dpsgd-digits-001 --out both.html[/bold]

    [bold]parley report runs/demo-001 --pictures figures[/bold]
    """
    if out is None:
        out = (runs[0] if len(runs) == 1 else Path()) / "report.html"
    elif out.suffix.lower() not in (".html", ".htm"):
        raise BadValue("out", str(out), "a file that ends in .html")
    if out.is_dir():
        raise BadValue("out", str(out), "a file that ends in .html", "it is a folder")
    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise BadValue("pictures", str(pictures), "a folder", "it is a file")
    groups = group_seeds(read_all(runs))
    try:
        write_atomically(out, page(groups, published=find_cell))
        drawn = draw_pictures(groups, pictures) if pictures is not None else []
    except OSError as error:
        raise BadValue("out", str(out), "a writable file", str(error)) from None
    if json_:
        print(json.dumps({"page": str(out), "pictures": [str(path) for path in drawn]}))
        return
    print(f"written to {out}")
    if pictures is not None:
        print(f"{len(drawn)} pictures in {pictures}")
        if not any(path.suffix == ".png" for path in drawn):
            print("no PNG without matplotlib: pip install 'parley-learning[pictures]'")
