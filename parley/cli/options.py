"""Options that several commands share, and checks of their values."""

from pathlib import Path
from typing import Annotated

import typer

from parley.errors import BadValue
from parley.results.style import ENDINGS
from parley.store import folder

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder to write to. (default: a new one in runs/)",
        metavar="FOLDER",
        show_default=False,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue what --out holds, from the last checkpoints.", metavar=""
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as one JSON object on the last line of stdout.", metavar=""
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        help="Also log to trackers, comma-separated: tensorboard, wandb (offline), mlflow (local "
        "folder). Needs parley-learning\\[trackers].",
        metavar="LIST",
        show_default=False,
    ),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        help="A module of your own from which the experiment may name functions; may be repeated.",
        metavar="MODULE",
        show_default=False,
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
    typer.Option(
        help="How many runs in parallel. (default: the number of cores)",
        metavar="N",
        show_default=False,
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        help="Also draw it: a file that ends in .png, .svg or .pdf.",
        metavar="FILE",
        show_default=False,
    ),
]


def count(name: str, value: str) -> int:
    """The value of an option that is a whole number of at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise BadValue(name, value, "a whole number of at least 1")
    return int(value)


def check_picture(picture: Path | None) -> None:
    """Refuses a picture that cannot be written, before any work is done."""
    if picture and picture.suffix.removeprefix(".").lower() not in ENDINGS:
        valid = "a file that ends in " + ", ".join(f".{ending}" for ending in ENDINGS)
        raise BadValue("picture", str(picture), valid)
    if picture and not picture.parent.is_dir():
        raise BadValue("picture", str(picture), "a file in a folder that exists")


def output_folder(out: Path | None, resume: bool, stem: str) -> Path:
    """Where to write: as given, or a new folder in runs/."""
    if resume and out is None:
        raise BadValue("out", None, "the folder to resume", "--resume needs it")
    if resume and out and not out.is_dir():
        raise BadValue("out", str(out), "a folder to resume", "it does not exist")
    return out or folder.fresh_name(Path("runs"), stem.replace("/", "-").replace("_", "-"))
