"""What the command prints besides its results: the package's log, on stderr.

Library code logs to ``parley`` and its children and prints nothing; a Python caller decides what to
do with that. The command shows notes; with ``-v`` everything, with ``-q`` only warnings.
"""

import logging
import sys
from contextlib import suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

from parley.cluster.rank import speaks


class _Stderr:
    """Stderr as it is at the moment, which no run ends for: whoever reads it may be gone, and a
    log's disk full. What cannot be written is lost."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError, AttributeError):  # full or cut off, closed, none at all
            self._now().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            self._now().flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)

    @staticmethod
    def _now() -> Any:
        # While a bar is shown, rich puts something in its place that prints above the bar.
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)


console = Console(file=cast(IO[str], _Stderr()), stderr=True)
"""Everything meant for eyes goes to stderr; stdout is for results."""

LOG = logging.getLogger("parley")


class _Notes(logging.Handler):
    """One line per message, above a bar if there is one; one process per host prints."""

    def emit(self, record: logging.LogRecord) -> None:
        if not speaks() and record.levelno < logging.WARNING:
            return
        words = " ".join(record.getMessage().split())
        if record.levelno < logging.INFO:
            line = f"{record.name.removeprefix('parley.')}: {words}"
        else:
            line = f"{'note' if record.levelno < logging.WARNING else 'warning'}: {words}"
        if console.quiet:
            print(line, file=console.file, flush=True)
        else:
            console.print(Text(line), soft_wrap=True)


def show(level: int = logging.INFO) -> None:
    """Shows the package's log from this level up; above `INFO`, progress is hidden too."""
    if not any(isinstance(handler, _Notes) for handler in LOG.handlers):
        LOG.addHandler(_Notes())
        LOG.propagate = False
    LOG.setLevel(level)
    console.quiet = level > logging.INFO
