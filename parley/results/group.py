"""Which runs are seeds of one experiment, and what to call each group of them."""

import json
from collections.abc import Sequence
from typing import Any

from parley.algorithms import ALGORITHMS, AlgorithmKind
from parley.errors import ParleyError
from parley.experiment import HOW, Experiment, with_own
from parley.results.read import RecordedRun, label
from parley.results.seeds import METHODS, Group
from parley.store.folder import EXPERIMENT

NOT_COMPARED = {*HOW, "seed"}
"""Fields in which runs of one group may differ."""


def group_seeds(runs: Sequence[RecordedRun], own: AlgorithmKind | None = None) -> list[Group]:
    """Groups runs that differ only in their seed, the paper's methods first and in its order.

    Groups are named after their algorithm and, if that is not enough, the options in which they
    differ. `own` is an algorithm of the user's, if the runs used one.
    """
    groups: dict[str, list[RecordedRun]] = {}
    found: dict[str, Experiment | None] = {}
    notes: dict[str, str] = {}
    for run in runs:
        experiment, note = _understood(run, own)
        if experiment:
            key = experiment.model_dump_json(exclude=NOT_COMPARED)
        else:
            written = {k: v for k, v in run.options.items() if k not in NOT_COMPARED}
            key = json.dumps(written, default=str) if written else str(run.path)
        groups.setdefault(key, []).append(run)
        found.setdefault(key, experiment)
        notes[key] = note
    keys = sorted(groups, key=lambda key: _place(found[key]))
    members = [sorted(groups[key], key=lambda run: run.seed) for key in keys]
    experiments = [found[key] for key in keys]
    names = _labels([runs[0] for runs in members], experiments)
    return [
        Group(name, runs, experiment, notes[key])
        for name, runs, experiment, key in zip(names, members, experiments, keys, strict=True)
    ]


def _understood(run: RecordedRun, own: AlgorithmKind | None) -> tuple[Experiment | None, str]:
    if not run.options:
        return None, ""
    try:
        return Experiment.of(**with_own(run.options, own)), ""
    except ParleyError as error:
        return None, f"this version does not understand {EXPERIMENT}: {error}"


def _place(experiment: Experiment | None) -> int:
    names = list(ALGORITHMS)
    if experiment is None:
        return len(METHODS) + len(names)
    name, label = experiment.algorithm.name, experiment.algorithm.label
    if label in METHODS:
        return METHODS.index(label)
    return len(METHODS) + (names.index(name) if name in names else len(names))


def _labels(runs: Sequence[RecordedRun], experiments: Sequence[Experiment | None]) -> list[str]:
    names = [
        experiment.algorithm.label
        if experiment
        else label(run.options, run.environment, run.summary) or run.path.name
        for run, experiment in zip(runs, experiments, strict=True)
    ]
    flat = [_flat(experiment) for experiment in experiments]
    labels = []
    for name, mine in zip(names, flat, strict=True):
        others = [other for its, other in zip(names, flat, strict=True) if its == name]
        differing = [k for k in mine if any(mine[k] != other.get(k) for other in others)]
        labels.append(" ".join([name, *(f"{k}={mine[k]}" for k in differing)]))
    # Experiments that this version does not understand may share a name.
    return [
        f"{name} ({run.path})" if labels.count(name) > 1 else name
        for name, run in zip(labels, runs, strict=True)
    ]


def _flat(experiment: Experiment | None) -> dict[str, Any]:
    if experiment is None:
        return {}
    fields: dict[str, Any] = experiment.model_dump(exclude=NOT_COMPARED)
    inner = {name: found for name, found in fields.pop("algorithm").items() if name != "name"}
    return {**fields, **inner}
