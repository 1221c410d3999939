"""Options that several commands share, and checks of their values."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from parley.charts.picture import checked_path
from parley.errors import BadValue
from parley.store import folder


def option(help_: str, metavar: str, *names: str, panel: str | None = None) -> Any:
    """A flag with a value. Its help states the default, if there is one."""
    return typer.Option(
        *names, help=help_, metavar=metavar, show_default=False, rich_help_panel=panel
    )


def switch(help_: str, *names: str) -> Any:
    """A flag without a value."""
    return typer.Option(*names, help=help_, metavar="")


Out = Annotated[
    Path | None,
    option("Folder to write to. (default: a new one in runs/)", "FOLDER", "--out"),
]
Resume = Annotated[
    bool,
    switch(
        "Continue in --out from the last checkpoint; with more --epochs, also after the end.",
        "--resume",
    ),
]
Json = Annotated[
    bool,
    switch("Print the result as one JSON object on the last line of stdout.", "--json"),
]
Log = Annotated[
    str | None,
    option(
        "Also log to trackers, comma-separated: tensorboard, wandb (offline), mlflow (local "
        "folder). Needs parley-learning\\[trackers].",
        "LIST",
        "--log",
    ),
]
File = Annotated[
    Path | None,
    typer.Argument(
        help="A TOML file with the same fields as the flags; flags override it.",
        metavar="FILE",
        show_default=False,
    ),
]
Parallel = Annotated[
    str | None,
    option("Number of runs in parallel. (default: the number of cores)", "N"),
]
DataRoot = Annotated[str | None, option("Folder with local copies of datasets.", "FOLDER")]
Picture = Annotated[
    Path | None,
    option("Also draw it: a file that ends in .png, .svg or .pdf.", "FILE", "--picture"),
]
OfAgent = Annotated[
    str | None,
    typer.Option(
        "--agent",
        help="Use the model of this agent. (default: the average of all)",
        metavar="N",
        show_default=False,
    ),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        help="Allow importing this module if a file names a model, loss or metric in it as "
        "module:function; may be repeated.",
        metavar="MODULE",
        show_default=False,
    ),
]


def count(name: str, value: str, least: int = 1) -> int:
    """The value of an option that is a whole number of at least 1, or as given."""
    if not value.isdecimal() or int(value) < least:
        raise BadValue(name, value, f"a whole number of at least {least}")
    return int(value)


def check_picture(picture: Path | None) -> None:
    """Refuses a picture that cannot be written, before any work is done."""
    if picture:
        checked_path(picture, "picture")
    check_place("picture", picture)


def check_place(field: str, path: Path | None) -> None:
    """Refuses a file whose folder is not there, before any work is done: it may be a slip."""
    if path and not path.parent.is_dir():
        raise BadValue(field, str(path), "a file in a folder that exists")


def output_folder(out: Path | None, resume: bool, stem: str) -> Path:
    """Where to write: as given, or a new folder in runs/."""
    if resume and out is None:
        raise BadValue("out", None, "the folder to resume", "--resume needs it")
    if resume and out and not out.is_dir():
        raise BadValue("out", str(out), "a folder to resume", "it does not exist")
    # A colon, as in topk:0.01, is not allowed in names on Windows.
    return out or folder.fresh_name(Path("runs"), re.sub(r"[/\\:_]", "-", stem))
