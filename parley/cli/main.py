"""The ``parley`` command: its subcommands, and how errors and signals are handled.

A command's module is imported when the command is run. Torch takes seconds to load, which
``parley --help``, ``parley train --help``, ``parley --version`` and ``parley dash`` do not need.
"""

import errno
import inspect
import logging
import os
import re
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from parley.cluster.rank import speaks
from parley.errors import BadValue, ParleyError, Stopped
from parley.process import loading
from parley.version import full_version
from parley.watch import log

COMMANDS = {
    "demo": "See what Parley does, offline, in about a minute.",
    "train": "Train one model among peers.",
    "compare": "Run several algorithms with several seeds side by side.",
    "tune": "Find learning rates by a small seeded search, with the same budget for every method.",
    "report": "Write one page about one or more runs, to read and to share.",
    "predict": "Run a trained model on images, arrays, tables or texts.",
    "export": "Export a trained model for other programs.",
    "dash": "Follow runs on a local web page, live and afterwards.",
    "algorithms": "List the algorithms, or the options of one.",
    "topology": "Check a graph: spectral gap, diameter, weights and traffic.",
    "data": "Show a dataset and how it would be split among agents.",
    "join": "Train with other organisations over the open network, with no coordinator.",
    "peers": "Make a group of hosts, look at the peers of a group, agree to a change.",
    "keys": "Make the keys and certificates that peers know each other by.",
    "reproduce": "The tables and figures of the NGC paper: list them, run them, and compare our "
    "results with the paper's.",
}
"""Every command, with the first sentence of its help. Its module in this package has its name."""

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes of a command that was stopped by Ctrl-C, and by SIGTERM."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Why stdout may not take what it is given."""

# UsageError. Recent typer ships its own click, so click's own class may be a different one.
WrongUse: Any = typer.BadParameter.__base__


class Commands(TyperGroup):
    """Commands by name, each imported when it is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _hide_type_of_help(self)
        # What the help, and the hint after a misspelt name, need to know about a command.
        self.commands = {n: TyperCommand(n, help=said) for n, said in COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of the help."""
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if found and name else found, rest


def load(name: str) -> Any:
    """A command, ready to be run."""
    with loading(for_good=True):
        command: Any = typer.main.get_command(import_module(f"parley.cli.{name}").app)
    command.name = name
    _equip(command)
    return command


def _equip(command: Any) -> None:
    """Gives a command, or those below it, ``-v`` and ``-q``, and help that is easy to read."""
    command.help = _flowing(command.help or "")
    _hide_type_of_help(command)
    below = getattr(command, "commands", {}).values()
    for one in below:
        _equip(one)
    if not below:
        both: Any = typer.main.get_command(_verbosity)
        command.params += [option for option in both.params if option.name != "help"]


def _hide_type_of_help(command: Any) -> None:
    """``--help`` takes no value, and should not look as if it did."""
    command.get_help_option(typer.Context(command)).metavar = ""


def _flowing(text: str) -> str:
    """A docstring whose lines end where the terminal does; examples, in bold, keep their own.

    >>> _flowing("One\\ntwo.\\n[bold]parley demo[/bold]\\n(three\\nfour)")
    'One two.\\n[bold]parley demo[/bold]\\n(three four)'
    """
    text = inspect.cleandoc(text)
    return re.sub(r"(?<!\n)(?<!\[/bold\])\n(?!\n|\[bold\])", " ", text)


_verbosity = typer.Typer(add_completion=False)


@_verbosity.command()
def _flags(
    verbose: Annotated[
        bool,
        typer.Option(
            "-v", "--verbose",
            help="Print more: what is chosen, waited for and written.",
            metavar="", expose_value=False,
            callback=lambda value: log.show(logging.DEBUG) if value else None,
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "-q", "--quiet",
            help="Print only results, warnings and errors.",
            metavar="", expose_value=False,
            callback=lambda value: log.show(logging.WARNING) if value else None,
        ),
    ] = False,
) -> None: ...  # fmt: skip


app = typer.Typer(
    cls=Commands,
    help="Decentralized learning: peers with different, private data train one model together, "
    "with no server. Start with [bold]parley demo[/bold].",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(full_version())
        raise typer.Exit


@app.callback()
def _before_every_command(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version.",
        metavar="",
        callback=_print_version,
        is_eager=True,
    ),
) -> None: ...


def main() -> None:
    """The ``parley`` command: every mistake is one line on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, _stop)
    if isinstance(sys.stdout, TextIOWrapper):  # as stderr: names of files need not be text
        sys.stdout.reconfigure(errors="backslashreplace")
    log.show()
    try:
        code = _carry_out()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is nothing left to stop
    except Stopped:  # also while an error is being reported
        code = TERMINATED
    sys.exit(code)


def _carry_out() -> int:
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name="parley")
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is noticed here, not after the end
    except BrokenPipeError:  # nobody reads the results any more
        _discard_stdout()
        return 1
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise
        _discard_stdout()
        return _complain(_of_the_system(error))
    except ParleyError as error:
        return _complain(str(error))
    except WrongUse as error:
        return _complain(_in_our_words(error))
    except Stopped:
        raise
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _stop(number: int, frame: FrameType | None) -> None:
    # Once is enough: what follows must not be interrupted.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def _in_our_words(error: Any) -> str:
    if not hasattr(error, "possibilities"):
        return str(error.format_message())
    near = f"did you mean {error.possibilities[0]}?" if error.possibilities else ""
    valid = f"those of {error.ctx.command_path} --help"
    return str(BadValue("flag", error.option_name, valid, near))


def _of_the_system(error: OSError) -> str:
    """Why the system refused something: a path that is too long, or not for this user to see."""
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"the output cannot be written ({reason})"
    return str(BadValue("path", error.filename, "one that can be used here", reason))


def _discard_stdout() -> None:
    """Drops what could not be written, or Python would complain about it at the very end."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _complain(message: str) -> int:
    if speaks():
        print(f"error: {' '.join(message.split())}", file=log.console.file, flush=True)
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        # torchrun ends all processes of a host as soon as one fails, which must not happen before
        # the first has told the user what is wrong. Then its SIGTERM comes, and nothing is left to
        # say.
        with suppress(Stopped):
            time.sleep(30)
    return 2
