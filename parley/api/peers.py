"""`join` trains with other organisations: one call at every peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from parley import data as datasets
from parley.api.runs import Result, result_of
from parley.cluster.host import Host
from parley.cluster.run import Load, Watcher
from parley.compute.task import Loss
from parley.data import Samples
from parley.data.from_python import numbered
from parley.data.options import Options
from parley.data.preparation import Preparation
from parley.data.targets import CLASSES, NAMED, classes_in
from parley.errors import BadValue
from parley.experiment import Experiment, read_file
from parley.peers import join as peers
from parley.peers.file import Peers
from parley.training import from_python
from parley.training import problem as problems
from parley.training.preceding import preceding
from parley.training.problem import Problem
from parley.training.scoring import Function
from parley.user_code import allow
from parley.watch.observe import logged_to, observed


def join(
    file: str | Path,
    me: str,
    *,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    data: Mapping[int, Any] | None = None,
    test: Any = None,
    classes: int | Sequence[str] | None = None,
    loss: str | Loss | None = None,
    metrics: str | Sequence[str | Function] = (),
    allow_code: str | Sequence[str] = (),
    keys: str | Path = ".",
    host: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    listen: str | None = None,
    progress: bool = True,
    watch: Watcher | None = None,
    log: str | Sequence[str] = (),
) -> Result:
    """Trains with other peers over the open network, as ``parley join`` does; every peer gets the
    result.

    `file` is ``peers.toml``, the same at every peer, and `me` this peer's name in it. `model`,
    `data`, `loss` and `metrics` take the place of what the experiment names and must be given at
    every peer alike: `data` has a dataset for each agent of this peer, `test` is this peer's part
    of the test set, or one for each of its agents (left out: its training data), and `classes`
    their number or names, where the task has classes and the experiment's ``data_options`` name
    neither ``labels`` nor several target columns. `keys` is the folder
    with this peer's key, `host` its ``host.toml``. Code that the experiment names as
    ``module:function`` is imported if `allow_code` or ``host.toml`` lists its module. All else is
    as for `parley.train`.
    """
    group = Peers.read(Path(file))
    part = peers.part_of(Host.of(Path(host) if host else None), group, me)
    allow([*part.allow_code, *([allow_code] if isinstance(allow_code, str) else allow_code)])
    where = Path(out) if out else None
    logged = logged_to(log, where)
    experiment, scored = _experiment_of(group, model, data, loss, metrics)
    build = None if model is None else from_python.builder_of(model)
    load: Load
    if data is not None:
        mine = _own_samples(group, me, experiment, data, test, classes)
        load = partial(_own, build, scored, mine)
    elif test is not None or classes is not None:
        raise BadValue("data", None, "a dataset for each agent", "test or classes was given")
    else:
        load = partial(_named, build, scored, part.data)
    with observed(experiment, logged, where, notes=progress, bar=progress, watch=watch) as tell:
        outcome = peers.join(
            group, experiment, me, Path(keys), load, where, resume, tell, None, listen, Path(file)
        )
    return result_of(experiment, outcome)


def _experiment_of(
    group: Peers,
    model: nn.Module | Callable[[], nn.Module] | None,
    data: Mapping[int, Any] | None,
    loss: str | Loss | None,
    metrics: str | Sequence[str | Function],
) -> tuple[Experiment, from_python.Scored]:
    """The experiment that the group's file names, with names in place of the program's objects."""
    options = read_file(Path(group.experiment))
    scored, of_task = from_python.scored(loss, metrics, options)
    own = {"model": model is not None, "data": data is not None} | dict.fromkeys(of_task, True)
    if data is not None:
        options |= {"data": "own", "partition": "own"}
    if model is not None:
        options["model"] = from_python.name_of(model)
    options["from_python"] = [name for name, is_own in own.items() if is_own]
    return Experiment.of(**options), scored


class _Mine(NamedTuple):
    """What this peer's agents hold."""

    samples: list[Samples]
    tests: list[Samples]
    names: tuple[str, ...]
    """The names of the classes, the same at every peer."""
    preparation: Preparation | None = None
    """If the data were tables: what becomes of their columns."""


def _own_samples(
    group: Peers,
    me: str,
    experiment: Experiment,
    data: Mapping[int, Any],
    test: Any,
    classes: int | Sequence[str] | None,
) -> _Mine:
    """The samples of this peer's agents, checked before it waits for the others."""
    agents = sorted(group.peer[group.number(me)].agents)
    task, of_data = experiment.task, experiment.data_options
    if sorted(data) != agents:
        valid = f"a dataset for each of {', '.join(map(str, agents))}"
        raise BadValue("data", sorted(data), valid, f"{me} has these agents")
    each = [test.get(agent) for agent in agents] if isinstance(test, Mapping) else test
    mine: Any = [data[agent] for agent in agents]
    told = {"data_options": of_data, "task": task}
    mine, each, table = from_python.from_tables(mine, each, told, agents)
    samples = datasets.from_user(mine, agents, task, of_data)
    tests = samples if each is None else from_python.test_sets(each, samples, task, of_data)
    if table is not None and task not in CLASSES:  # the columns have names
        if classes is not None:
            listed = ", ".join(table.class_names)
            raise BadValue("classes", classes, "none", f"they are the target columns {listed}")
        return _Mine(samples, tests, table.class_names, Preparation(table=table.form))
    found = classes_in(task, [p.targets for p in [*samples, *tests]], experiment.ignore_index)
    before = preceding(experiment.init)
    known = before.labels if before else ()
    names = _names(classes, task, found, Options.of(of_data).told.labels, known)
    if table is None:
        return _Mine(samples, tests, names)
    classes_here = table.class_names
    samples, tests = (numbered(parts, classes_here, names, me) for parts in (samples, tests))
    return _Mine(samples, tests, names, Preparation(table=table.form))


def _names(
    classes: int | Sequence[str] | None,
    task: str,
    found: tuple[str, ...],
    labels: Sequence[str],
    before: Sequence[str],
) -> tuple[str, ...]:
    """What classes are called: as the program says, or else the experiment, or else the run
    `before` whose model is continued."""
    if task not in NAMED:
        return found
    valid = "their number or their names, the same at every peer"
    given = classes or labels or before
    if not given:
        raise BadValue("classes", classes, valid, "your own data need them")
    if isinstance(given, str):
        raise BadValue("classes", classes, valid, "it is text, not a list of names")
    names = tuple(map(str, range(given) if isinstance(given, int) else given))
    if labels and names != tuple(labels):
        because = "data_options.labels in the experiment has others"
        raise BadValue("classes", list(names), f"none, or {', '.join(labels)}", because)
    if len(names) < 1 + (task in CLASSES) or len({*names}) < len(names):
        raise BadValue("classes", classes, valid, "at least two, all different")
    if len(found) > len(names):
        raise BadValue("classes", len(names), f"at least {len(found)}", "the data have that many")
    return names


def _named(
    build: Callable[[], nn.Module] | None,
    scored: from_python.Scored,
    places: Mapping[int, str],
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    loss, functions = scored
    return problems.problem(experiment, agents, None, build, loss, places, functions)


def _own(
    build: Callable[[], nn.Module] | None,
    scored: from_python.Scored,
    mine: _Mine,
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    """This peer's part of a problem whose data only the peers have."""
    graph = problems.topology_of(experiment)
    experiment.algorithm.check(graph)
    parts = mine.samples, mine.tests, mine.names, mine.preparation
    made = problems.of_the_hosts(experiment, graph, build, *parts)
    loss, functions = scored
    return problems.with_task(made, experiment, None, loss, functions)
