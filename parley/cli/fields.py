"""Describes the flags of an experiment, made of its fields and those of the algorithms.

What is described is kept in ``flags.json``, since making it takes torch and every algorithm, and
``--help`` should not. ``python -m parley.cli.fields`` writes the file anew.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from parley.algorithms import ALGORITHMS, PARTS, WITH_OPTIONS
from parley.cli.flags import DESCRIBED, TABLES, Flag
from parley.experiment import HOW, VARIANTS, Experiment
from parley.files import write_atomically
from parley.validation import kind_of

WHAT, HYPER = "What is trained", "Hyper-parameters of the algorithm"
MEASURED, CARRIED_OUT = "What is measured", "How it is run"
PANELS = dict.fromkeys(("metrics", "evaluate_every", "gossip_rounds", "bias_norms"), MEASURED)
PANELS |= dict.fromkeys(HOW, CARRIED_OUT)


def _flag(name: str, field: FieldInfo, panel: str, note: str = "") -> Flag:
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
        return Flag(name, help_, panel, "", "switch")
    metavars: dict[Any, str] = {int: "N", float: "NUMBER"}
    return Flag(name, help_, panel, metavars.get(kind_of(field), "TEXT"))


def _shown(default: object) -> str:
    """A default as it would be typed."""
    return str(default).lower() or "none"


def _hyper_parameter(name: str) -> Flag:
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
    return _flag(name, commonest, HYPER, note)


def _table(name: str) -> Flag:
    help_ = f"An option of the {TABLES[name][1]}; may be given several times."
    return Flag(name, help_, WHAT, "NAME=VALUE", "list")


def described() -> Iterator[Flag]:
    """Every flag of an experiment, in the order of the help."""
    for name, field in Experiment.model_fields.items():
        if name in TABLES:
            yield _table(name)
        elif name != "from_python":  # which cannot be set by a flag
            yield _flag(name, field, PANELS.get(name, WHAT))
    for name in dict.fromkeys(n for a in WITH_OPTIONS.values() for n in a.options()):
        yield _hyper_parameter(name)
    help_ = "Sets all choices in which the NGC paper and its authors' code differ; other flags "
    help_ += f"override it. One of {', '.join(VARIANTS)}."
    yield Flag("variant", help_, HYPER)


def as_text() -> str:
    """The content of ``flags.json``."""
    lines = (json.dumps(flag._asdict(), ensure_ascii=False) for flag in described())
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    write_atomically(Path(__file__).with_name(DESCRIBED), as_text())
