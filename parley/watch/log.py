"""What the command prints besides its results: the package's log, on stderr.

Library code logs to ``parley`` and its children and prints nothing; a Python caller decides what to
do with that. The command shows notes; with ``-v`` everything, with ``-q`` only warnings.
"""

import logging
import sys

from rich.console import Console
from rich.text import Text

from parley.cluster.rank import speaks

console = Console(stderr=True)
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
        try:
            if console.quiet:
                print(line, file=sys.stderr, flush=True)
            else:
                console.print(Text(line), soft_wrap=True)
        except (BrokenPipeError, SystemExit):
            # Whoever read this is gone, and rich would end whichever thread has something to say.
            console.quiet = True


def show(level: int = logging.INFO) -> None:
    """Shows the package's log from this level up; above `INFO`, progress is hidden too."""
    if not any(isinstance(handler, _Notes) for handler in LOG.handlers):
        LOG.addHandler(_Notes())
        LOG.propagate = False
    LOG.setLevel(level)
    console.quiet = level > logging.INFO
