"""Flags for every field of an experiment and of the algorithms, generated from the fields."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from parley.algorithms import ALGORITHMS, PARTS, WITH_OPTIONS, AlgorithmKind
from parley.cli.own_algorithm import own_algorithm
from parley.errors import BadValue, kind_of
from parley.experiment import HOW, VARIANTS, Experiment, on_top, read_file, with_own
from parley.user_code import allow_named

WHAT, HYPER = "What is trained", "Hyper-parameters of the algorithm"
MEASURED, CARRIED_OUT = "What is measured", "How it is run"
PANELS = dict.fromkeys(("metrics", "evaluate_every", "gossip_rounds", "bias_norms"), MEASURED)
PANELS |= dict.fromkeys(HOW, CARRIED_OUT)


def _flag(
    name: str,
    help_: str,
    panel: str | None,
    kind: Any = str,
    metavar: str = "TEXT",
    spelled: str = "",
) -> inspect.Parameter:
    option = typer.Option(
        spelled or "--" + name.replace("_", "-"),
        help=help_,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, option])


def _flag_of(name: str, field: FieldInfo, panel: str | None, note: str = "") -> inspect.Parameter:
    """The flag for a field. Its help is the field's description and `note`, by default the field's
    default. Its value is text that the experiment checks: flags and TOML get the same errors."""
    sentences = [" ".join((field.description or "").split())]
    if get_origin(field.annotation) is Literal:
        sentences.append(f"One of {', '.join(get_args(field.annotation))}.")
    if name == "algorithm":
        sentences.append(f"One of {', '.join(ALGORITHMS)}, or your own as module:Class.")
        sentences.append(f"(default: {field.default.name})")
    elif not note and isinstance(field.default, (int, float, str)) and name != "workers":
        sentences.append(f"(default: {_shown(field.default)})")
    help_ = " ".join([*sentences, note]).strip()
    if field.annotation is bool:
        words = name.replace("_", "-")
        return _flag(name, help_, panel, bool, "", f"--{words}/--no-{words}")
    metavars: dict[Any, str] = {int: "N", float: "NUMBER"}
    return _flag(name, help_, panel, metavar=metavars.get(kind_of(field), "TEXT"))


def _shown(default: object) -> str:
    """A default as it would be typed."""
    return str(default).lower() or "none"


def _hyper_parameter(name: str) -> inspect.Parameter:
    """The flag for a hyper-parameter of several algorithms, each with its own default and range."""
    own = {word for word, part in PARTS.items() if name in part.model_fields}
    having = {
        key: kind.options()[name]
        for key, kind in WITH_OPTIONS.items()
        if name in kind.options() and (key in ALGORITHMS or key in own)
    }
    lacking = [key for key in ALGORITHMS if key not in having]
    of_default: dict[str, list[str]] = {}
    described: dict[str, list[FieldInfo]] = {}
    for key, field in having.items():
        of_default.setdefault(_shown(field.default), []).append(key)
        described.setdefault(field.description or "", []).append(field)
    groups = sorted(of_default.items(), key=lambda group: -len(group[1]))
    usual = groups[0][0]
    others = [f"{default} for {', '.join(keys)}" for default, keys in groups[1:]]
    note = f"(default: {'; '.join([usual, *others])})"
    if len(lacking) >= len(having):
        note += f" Only for {', '.join(having)}."
    elif lacking:
        note += f" Not for {', '.join(lacking)}."
    commonest = max(described.values(), key=len)[0]
    return _flag_of(name, commonest, HYPER, note)


TABLES = {"model_options": ("model-option", "network"), "data_options": ("data-option", "dataset")}
"""Fields that are tables: their flag, and what it sets."""


def _table_flag(name: str, panel: str | None) -> inspect.Parameter:
    flag, what = TABLES[name]
    help_ = f"An option of the {what}; may be given several times."
    return _flag(name, help_, panel, list[str], "NAME=VALUE", f"--{flag}")


def _experiment_flags(helps: dict[str, str]) -> Iterator[inspect.Parameter]:
    for name, field in Experiment.model_fields.items():
        if name == "from_python":
            continue  # cannot be set by a flag
        if name in helps:
            yield _flag(name, helps[name], PANELS.get(name, WHAT))
        elif name in TABLES:
            yield _table_flag(name, WHAT)
        else:
            yield _flag_of(name, field, PANELS.get(name, WHAT))
    for name in dict.fromkeys(n for a in WITH_OPTIONS.values() for n in a.options()):
        yield _hyper_parameter(name)
    help_ = "Sets all choices in which the NGC paper and its authors' code differ; other flags "
    yield _flag("variant", f"{help_}override it. One of {', '.join(VARIANTS)}.", HYPER)


def takes_experiment(
    *only: str, **helps: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the flags of an experiment, all or those named, in place of ``**flags``.

    `helps` are texts for those that mean something else in this command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[:-1]
        few = [
            _table_flag(name, None)
            if name in TABLES
            else _flag_of(name, Experiment.model_fields[name], None)
            for name in only
        ]
        flags = few or _experiment_flags(helps)
        command.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
        return command

    return decorate


def given_options(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, as options of an experiment."""
    given = {name: value for name, value in flags.items() if value is not None}
    allow_named(given)
    for name, (flag, _) in TABLES.items():
        if name in given:
            given[name] = dict(_setting(pair, flag) for pair in given[name])
    return given


def with_file(
    file: Path | None, given: dict[str, Any], known: Sequence[AlgorithmKind] = ()
) -> dict[str, Any]:
    """The options in a file, overridden by flags. The user's own algorithms can be in the file if
    they are `known`."""
    written = read_file(file) if file else {}
    for kind in known:
        written = with_own(written, kind)
    if own := own_algorithm(given.get("algorithm", "")):
        if twice := [name for name in own if name != "name" and name in given]:
            raise BadValue(twice[0], given[twice[0]], "each option once", "it is given twice")
        given = {**given, "algorithm": own}
        written = with_own(written, own["name"])
    options = on_top(written, given)
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
