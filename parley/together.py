"""Parley from Python with other organisations: `join`, one call at every peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from parley import data as datasets
from parley.api import Result, result_of
from parley.cluster.host import Host
from parley.cluster.worker import Load, Watcher
from parley.code import allow
from parley.compute.task import Loss
from parley.data import Samples
from parley.data.targets import CLASSES, NAMED, classes_in
from parley.errors import BadValue
from parley.experiment import Experiment, read_file
from parley.peers import join as peers
from parley.peers.file import Peers
from parley.training import given
from parley.training import problem as problems
from parley.training.events import Event
from parley.training.problem import Problem
from parley.training.scoring import Function
from parley.watch import trackers
from parley.watch.log import LOG, show
from parley.watch.progress import TrainingProgress


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
    their number or names, where the task has classes. `keys` is the folder
    with this peer's key, `host` its ``host.toml``. Code that the experiment names as
    ``module:function`` is imported if `allow_code` or ``host.toml`` lists its module. All else is
    as for `parley.train`.
    """
    group = Peers.read(Path(file))
    number = group.number(me)
    own = {"model": model is not None, "data": data is not None}
    options = read_file(Path(group.experiment))
    scored, of_task = given.scored(loss, metrics, options)
    own |= dict.fromkeys(of_task, True)
    if data is not None:
        options |= {"data": "own", "partition": "own"}
    if model is not None:
        options["model"] = given.name_of(model)
    from_python = [name for name, is_own in own.items() if is_own]
    experiment = Experiment.of(**{**options, "from_python": from_python})
    build = None if model is None else given.builder_of(model)
    part = peers.part_of(Host.of(Path(host) if host else None), group, me)
    allow([*part.allow_code, *([allow_code] if isinstance(allow_code, str) else allow_code)])
    load: Load
    if data is None:
        if test is not None or classes is not None:
            raise BadValue("data", None, "a dataset for each agent", "test or classes was given")
        load = partial(_named, build, scored, part.data)
    else:
        mine = sorted(group.peer[number].agents)
        if sorted(data) != mine:
            valid = f"a dataset for each of {', '.join(map(str, mine))}"
            raise BadValue("data", sorted(data), valid, f"{me} has these agents")
        task = experiment.task
        samples = datasets.from_user([data[agent] for agent in mine], mine, task)
        tests = samples
        if test is not None:
            each = [test.get(agent) for agent in mine] if isinstance(test, Mapping) else test
            tests = given.test_sets(each, samples, task)
        # Before anybody is waited for.
        targets = [part.targets for part in [*samples, *tests]]
        names = _names(classes, experiment.task, targets, experiment.ignore_index)
        load = partial(_own, build, scored, samples, tests, names)
    logged = trackers.parse(log)
    where = Path(out) if out else None
    if logged and where is None:
        raise BadValue("log", ",".join(logged), "only together with out, where it is written")
    if progress and not LOG.hasHandlers():
        show()
    with TrainingProgress(experiment, shown=progress) as bar:

        def shown(event: Event) -> None:
            bar(event)
            if watch:
                watch(event)

        with trackers.logging(logged, experiment, where or Path(), shown) as tell:
            outcome = peers.join(
                group,
                experiment,
                me,
                Path(keys),
                load,
                where,
                resume,
                tell,
                None,
                listen,
                Path(file),
            )
    return result_of(experiment, outcome)


def _names(
    classes: int | Sequence[str] | None, task: str, targets: Sequence[Tensor], ignored: int
) -> tuple[str, ...]:
    found = classes_in(task, targets, ignored)
    if task not in NAMED:
        return found
    valid = "their number or their names, the same at every peer"
    if classes is None:
        raise BadValue("classes", None, valid, "data of your own need them")
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    if len(names) < 1 + (task in CLASSES) or len({*names}) < len(names):
        raise BadValue("classes", classes, valid, "at least two, all different")
    if len(found) > len(names):
        raise BadValue("classes", len(names), f"at least {len(found)}", "the data have so many")
    return names


def _named(
    build: Callable[[], nn.Module] | None,
    scored: given.Scored,
    places: Mapping[int, str],
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    loss, functions = scored
    return problems.problem(experiment, agents, None, build, loss, places, functions)


def _own(
    build: Callable[[], nn.Module] | None,
    scored: given.Scored,
    samples: list[Samples],
    tests: list[Samples],
    names: tuple[str, ...],
    experiment: Experiment,
    agents: Sequence[int],
) -> Problem:
    """This peer's part of a problem whose data only the peers have."""
    graph = problems.topology_of(experiment)
    experiment.algorithm.check(graph)
    made = problems.of_the_hosts(experiment, graph, build, samples, tests, names)
    loss, functions = scored
    return problems.with_task(made, experiment, None, loss, functions)
