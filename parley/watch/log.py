"""What the command says beside its results: the package's log, on stderr.

Library code logs to ``parley`` and below and prints nothing; whoever calls it from Python decides
what becomes of that. The command shows notes, with ``-v`` everything, with ``-q`` only warnings.
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
    """One line for each message, above a bar if there is one; on each host one process speaks."""

    def emit(self, record: logging.LogRecord) -> None:
        if not speaks() and record.levelno < logging.WARNING:
            return
        words = " ".join(record.getMessage().split())
        if record.levelno < logging.INFO:
            line = f"{record.name.removeprefix('parley.')}: {words}"
        else:
            line = f"{'note' if record.levelno < logging.WARNING else 'warning'}: {words}"
        if console.quiet:
            print(line, file=sys.stderr, flush=True)
        else:
            console.print(Text(line), soft_wrap=True)


def show(level: int = logging.INFO) -> None:
    """Shows the package's log from this level on; above `INFO` nothing else is shown either."""
    if not any(isinstance(handler, _Notes) for handler in LOG.handlers):
        LOG.addHandler(_Notes())
        LOG.propagate = False
    LOG.setLevel(level)
    console.quiet = level > logging.INFO
