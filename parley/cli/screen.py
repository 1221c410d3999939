"""Output that commands share: stdout for results, and a hint on stderr when one is stopped."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from parley.cli.main import INTERRUPTED, TERMINATED
from parley.cluster.rank import is_first
from parley.errors import Stopped
from parley.results.table import Table
from parley.watch.log import console

screen = Console()
"""Stdout, for results."""


def heading(text: str) -> None:
    """A line above a table."""
    screen.print(Text(text, "bold"), soft_wrap=True)


def pairs(lines: Mapping[str, str]) -> Table:
    """Names and values, without headings."""
    return Table(["", ""], list(lines.items()), frozenset({0, 1}))


@contextmanager
def stoppable(out: Path, how: str | None = None) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, ends the command with a hint on how to continue."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if is_first():
            usual = f"to continue: the same command with --out {out} --resume"
            hint = f"; {how or usual}" if out.is_dir() else ""
            console.print(f"\nstopped{hint}", highlight=False, soft_wrap=True)
        raise typer.Exit(TERMINATED if isinstance(stop, Stopped) else INTERRUPTED) from None
