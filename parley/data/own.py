"""Private data of each agent: a folder, a Hugging Face hub dataset, or a user's Python function.

Only the process that hosts an agent opens its data. What the others
get are models, gradients and counts, and test outputs with their labels where a metric needs them.
"""

import importlib
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from parley.data import tables
from parley.data.from_python import from_user, is_table, numbered, open_table
from parley.data.options import Options
from parley.data.preparation import AS_IS, Preparation
from parley.data.samples import Samples
from parley.data.sources import load_own
from parley.data.targets import CLASSES, IGNORED, classes_in
from parley.errors import BadValue, ParleyError
from parley.files import user_path
from parley.measures import CLASSIFICATION

log = logging.getLogger(__name__)

VALID = "a folder, a .csv or .parquet file, a hub ID owner/name, or module:function"


class Own(NamedTuple):
    """The data of some agents, in the order in which they were requested."""

    samples: list[Samples]
    """Their training data."""
    tests: list[Samples]
    """Their test data; an agent may have none."""
    class_names: tuple[str, ...]
    preparation: Preparation = AS_IS
    """How the inputs were made of files, the same for all of them."""


class _One(NamedTuple):
    train: Samples
    test: Samples | None
    class_names: tuple[str, ...]
    preparation: Preparation = AS_IS


def load(
    places: Mapping[int, str | Path],
    agents: Iterable[int] | None = None,
    class_names: Iterable[str] | None = None,
    like: str = "",
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    may_call: bool = True,
    task: str = CLASSIFICATION,
    ignored: int = IGNORED,
    labels: Sequence[str] = (),
) -> Own:
    """Opens the data of these agents only (by default, of all with a known location).

    With `may_call`, places may be functions: only where this host itself has named them.

    Classes are matched by name to `class_names` or to the option `labels`, or else to the argument
    `labels`, so an agent need not have all of them. Without any, all must have the same classes.
    """
    agents = list(places if agents is None else agents)
    for agent in agents:
        if agent not in places:
            because = f"agent {agent} runs on this host, but the location of its data is not given"
            raise BadValue("data_here", None, f"{agent}=PLACE with {VALID}", because)
    loaded = []
    for agent in agents:
        place = str(places[agent])
        if not may_call and _is_function(place):
            because = f"agent {agent}'s is a function, and code comes only from the host itself"
            raise BadValue("partition", place, "a folder or a hub ID; or --data-here", because)
        loaded.append(_open(agent, place, like, root, options, tokenizer, task, ignored))
    names = tuple(class_names or Options.of(options or {}).told.labels or labels)
    fixed = bool(names)
    names = names or loaded[0].class_names
    for agent, one in zip(agents, loaded, strict=True):
        strange = [c for c in one.class_names if c not in names]
        if strange or (one.class_names != names and (not fixed or task not in CLASSES)):
            found = ", ".join(strange or one.class_names)
            valid = f"the classes {', '.join(names)}, or data_options.labels with all of them"
            because = f"agent {agent} has classes {found}"
            raise BadValue("data", str(places[agent]), valid, because)
    _check_columns(agents, loaded)
    matched = []
    for one in loaded:
        if task in CLASSES:
            number = torch.tensor([names.index(c) for c in one.class_names])
            matched.append([_renumbered(part, number) for part in (one.train, one.test)])
        else:
            matched.append([one.train, one.test])
    samples = from_user([train for train, _ in matched], agents, task)
    # If classes are given there is a common test set too, perhaps of a different size.
    empty = Samples(samples[0].inputs[:0], samples[0].targets[:0])
    tests = [empty] * len(agents)
    for row, (_, test) in enumerate(matched):
        if test is not None and len(test) and class_names is None:
            # The same kind of inputs as the models are trained on.
            tests[row] = from_user([samples[0], test], task=task)[1]
    return Own(samples, tests, names, loaded[0].preparation)


def _check_columns(agents: Iterable[int], loaded: Iterable[_One]) -> None:
    """Refuses tables whose columns are not in the same places."""
    each = [one.preparation.table for one in loaded]
    listed = ["" if form is None else ", ".join(form.names) for form in each]
    for agent, names in zip(agents, listed, strict=True):
        if names != listed[0]:
            valid = f"the columns of the first table, in their order: {listed[0] or 'no table'}"
            raise BadValue("data", f"agent {agent}", valid, f"it has {names or 'no table'}")


def _renumbered(samples: Samples | None, number: torch.Tensor) -> Samples | None:
    return samples and Samples(samples.inputs, number[samples.targets])


def _open(
    agent: int,
    place: str,
    like: str,
    root: str | Path | None,
    options: Mapping[str, Any] | None,
    tokenizer: str | None,
    task: str,
    ignored: int,
) -> _One:
    if _is_function(place):
        return _call(agent, place, task, ignored, options)
    folder = _is_folder(place)
    try:
        found = load_own(place, like, root, options, tokenizer, task)
    except ParleyError as error:
        is_file = user_path(place).is_file()
        if folder or is_file or re.fullmatch(r"[\w-]+/[\w.-]+", place):
            raise
        because = f"agent {agent}'s data cannot be found"
        raise BadValue("data", place, VALID, because) from error
    return _One(found.train, found.test, found.class_names, found.preparation)


def _is_folder(place: str) -> bool:
    return user_path(place).is_dir()


def _is_function(place: str) -> bool:
    return re.fullmatch(r"[\w.]+:\w+", place) is not None and not _is_folder(place)


def _call(
    agent: int, place: str, task: str, ignored: int, options: Mapping[str, Any] | None
) -> _One:
    """Calls a user's function with the agent's number. It returns a dataset of any kind that
    `parley.train` accepts, or a dict with ``train``, ``test`` and ``labels``."""
    module, _, name = place.partition(":")

    def wrong(
        because: str, valid: str = "module:function, importable from the current folder"
    ) -> BadValue:
        return BadValue("data", place, valid, f"agent {agent}: {because}")

    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as with python -m
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise wrong(str(error)) from error
    try:
        made = function(agent)
    except Exception as error:  # anything the user's code may raise
        # Its message may quote the data, and errors are passed on: only this host sees it.
        log.error("agent %d: %s: %s: %s", agent, place, type(error).__name__, error)
        because = f"it raised {type(error).__name__}; the log of its host has more"
        raise wrong(because, "a function that succeeds") from error
    parts = made if isinstance(made, dict) else {"train": made}
    if "train" not in parts or set(parts) - {"train", "test", "labels"}:
        found = f"it returned {', '.join(map(str, parts)) or 'nothing'}"
        raise wrong(found, "a dataset, or a dict of train, test and labels")
    given, chosen = parts.get("test"), Options.of(options or {})
    if is_table(parts["train"], chosen):
        return _framed(agent, parts, task, chosen)
    [train] = from_user([parts["train"]], [agent], task, options)
    test = None if given is None else from_user([given], [agent], task, options)[0]
    held = [part.targets for part in (train, test) if part is not None]
    counted = classes_in(task, held, ignored)
    names = tuple(map(str, parts.get("labels") or counted))
    if len(counted) > len(names):
        because = f"it has class {len(counted) - 1} but only {len(names)} labels"
        raise wrong(because, "a label for every class")
    return _One(train, test, names, chosen.preparation)


def _framed(agent: int, parts: Mapping[str, Any], task: str, options: Options) -> _One:
    """Tables of one agent; their classes have names already."""
    given = {f"agent {agent}": parts["train"]}
    if parts.get("test") is not None:
        given[f"agent {agent}, test"] = parts["test"]
    opened = {where: open_table(each, where, options) for where, each in given.items()}
    found = tables.read(opened, options.told, task, alone=True)
    names = tuple(map(str, parts.get("labels") or found.class_names))
    made = [Samples(inputs, targets) for inputs, targets in found.pairs]
    if task in CLASSES:
        made = numbered(made, found.class_names, names, f"agent {agent}")
    return _One(made[0], made[1] if len(made) > 1 else None, names, Preparation(table=found.form))
