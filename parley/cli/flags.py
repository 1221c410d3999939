"""The flags of an experiment, as ``flags.json`` describes them, and the options they give.

Nothing here loads torch before a flag has a value that needs it.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from parley.errors import BadValue
from parley.user_code import allow_named

if TYPE_CHECKING:
    from parley.algorithms import AlgorithmKind

DESCRIBED = "flags.json"
KINDS: dict[str, Any] = {"text": str, "switch": bool, "list": list[str]}
TABLES = {"model_options": ("model-option", "network"), "data_options": ("data-option", "dataset")}
"""Fields that are tables: their flag, and what it sets."""


class Flag(NamedTuple):
    """A flag of an experiment."""

    name: str
    """Of the field that it sets."""
    help: str
    panel: str
    """The part of the help that lists it."""
    metavar: str = "TEXT"
    kind: str = "text"
    """One of `KINDS`."""

    def parameter(self, help_: str | None = None, panel: str | None = None) -> inspect.Parameter:
        """The parameter of a command that has this flag, with its own help or another one."""
        words = TABLES[self.name][0] if self.name in TABLES else self.name.replace("_", "-")
        option = typer.Option(
            f"--{words}/--no-{words}" if self.kind == "switch" else f"--{words}",
            help=help_ or self.help,
            metavar="TEXT" if help_ else self.metavar,
            rich_help_panel=panel,
            show_default=False,
        )
        taken: Any = Annotated[KINDS[self.kind] | None, option]
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, keyword, default=None, annotation=taken)


@cache
def flags() -> dict[str, Flag]:
    """Every flag of an experiment by name."""
    found = json.loads(Path(__file__).with_name(DESCRIBED).read_text(encoding="utf-8"))
    return {flag["name"]: Flag(**flag) for flag in found}


def takes_experiment(
    *only: str, **helps: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the flags of an experiment, all or those named, in place of ``**flags``.

    `helps` are texts for those that mean something else in this command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[:-1]
        made = [flags()[name].parameter() for name in only] or [
            flag.parameter(helps.get(name), flag.panel) for name, flag in flags().items()
        ]
        command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
        return command

    return decorate


def given_options(values: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, as options of an experiment."""
    given = {name: value for name, value in values.items() if value is not None}
    allow_named(given)
    for name, (flag, _) in TABLES.items():
        if name in given:
            given[name] = dict(_setting(pair, flag) for pair in given[name])
    return given


def with_file(
    file: Path | None, given: dict[str, Any], known: Sequence["AlgorithmKind"] = ()
) -> dict[str, Any]:
    """The options in a file, overridden by flags. The user's own algorithms can be in the file if
    they are `known`."""
    from parley.cli.own_algorithm import own_algorithm
    from parley.experiment import on_top, read_file, with_own

    written = read_file(file) if file else {}
    for kind in known:
        written = with_own(written, kind)
    if own := own_algorithm(given.get("algorithm", "")):
        if twice := [name for name in own if name != "name" and name in given]:
            raise BadValue(twice[0], given[twice[0]], "each option once", "it is given twice")
        given = {**given, "algorithm": own}
        written = with_own(written, own["name"])
    options = on_top(written, given) if written else given
    if missing := options.get("from_python"):
        what = " and ".join(missing)
        named = [f"--{name} with one of Parley's own" for name in missing if name != "loss"]
        valid = ", or ".join(["the Python program that provided them", *named])
        because = f"its {what} came from Python and cannot be stored in a file"
        raise BadValue("experiment", str(file), valid, because)
    return options


def _setting(pair: str, flag: str) -> tuple[str, str | int | float]:
    name, equals, value = pair.partition("=")
    if not (name and equals and value):
        raise BadValue(flag.replace("-", "_"), pair, "NAME=VALUE, for example hidden=64")
    if value in ("true", "false"):  # as in TOML
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
