"""Carrying out an experiment: alone in this process, and from there on with others as well.

Axes: A agents hosted here, N all agents, E parameters and running statistics.
"""

import logging
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parley.data import standard
from parley.data.tables import Form
from parley.data.targets import held, held_names
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.fabric.base import WorkerLost, listed
from parley.fabric.board import Board
from parley.fabric.gloo import StoreLost
from parley.fabric.messages import Count
from parley.process import torch_threads
from parley.stopping import Callbacks
from parley.store.enclosed import enclosed
from parley.store.folder import RunFolder
from parley.store.journal import Journal
from parley.store.lock import Hold
from parley.store.status import reported
from parley.training.events import EpochDone, Event, Started
from parley.training.problem import Problem
from parley.training.record import Record
from parley.training.trainer import Trainer
from parley.wire.local import Local
from parley.wire.placement import Placement

log = logging.getLogger(__name__)

Watcher = Callable[[Event], None]
"""Receives every event of worker 0."""

Load = Callable[[Experiment, Sequence[int]], Problem]
"""Creates the problem as seen by the host of these agents."""


def unwatched(event: Event) -> None:
    """Ignores events."""


@dataclass(frozen=True)
class Assignment:
    """A worker's assignment."""

    experiment: Experiment
    load: Load
    out: Path | None = None
    resume: bool = False
    watch: Watcher = unwatched
    mine: Sequence[int] | None = None
    """The agents that this host claims; None: a share of the unclaimed ones."""
    callbacks: Callbacks = field(default_factory=Callbacks)
    """Functions that worker 0 asks whether to continue."""
    everywhere: bool = False
    """Whether every worker gets the outcome, or only the first."""
    version: str = ""
    """The version of the code. Workers started by this process inherit it: they run the same files,
    whatever has been committed since."""


class Outcome:
    """What a finished run leaves in memory (on worker 0, or on all)."""

    def __init__(
        self,
        records: list[Record],
        summary: dict[str, Any],
        models_NE: Tensor,
        mean_E: Tensor,
        run: Trainer,
        about: dict[str, dict[str, Any]],
    ) -> None:
        self.records = records
        self.summary = summary
        self.task = run.task
        self.x_ND = models_NE[:, : run.task.size]
        """Every agent's parameters."""
        self.models_NE = models_NE
        """The same with the running statistics of each model behind them."""
        self.mean_E = mean_E
        """The average of all."""
        self.about = about
        """What the folder has besides records: ``agents`` and ``confusion``."""


def alone(assignment: Assignment) -> Outcome:
    """Carries out an experiment in this process; returns the outcome."""
    experiment, out, resume = assignment.experiment, assignment.out, assignment.resume
    agents = range(experiment.agents)
    with torch_threads(experiment.threads or 1), ExitStack() as holding:
        problem = assignment.load(experiment, agents)
        kept, hold = enclosed(experiment, problem.topology), None
        if out is not None:
            RunFolder(out).check(kept.experiment, resume, kept.files)
            hold = holding.enter_context(Hold(out, uuid.uuid4().hex, 0))
            hold.settle([hold.take()])
        problem = standardised(problem, experiment.data, agents, out if resume else None)
        transport = Local(Placement(problem.topology, (0,) * len(agents), here=0))
        trainer = Trainer(experiment, problem, transport, callbacks=assignment.callbacks)
        journal = Journal(hold)
        journal.open(kept, resume)
        if resume:
            journal.restore(trainer)
        about = describe(problem, holdings(problem, agents, experiment.agents))
        outcome = follow(trainer, journal, assignment.watch, about)
    assert outcome is not None
    return outcome


def standardised(
    problem: Problem,
    data: str,
    hosted: Sequence[int],
    begun: Path | None,
    board: Board | None = None,
) -> Problem:
    """With the columns of hosts' own tables standardised over the rows of all agents, or as in the
    folder of a run that has `begun`. Several workers tell each other on the `board`."""
    form = problem.preparation.table
    if form is None:
        return problem
    kept = _kept_columns(form, begun)
    if not problem.standardise:
        made = torch.tensor([(column.mean, column.std) for column in form.columns])
        if kept is not None and not torch.allclose(made, torch.tensor(kept)):
            because = "the means and deviations of its columns are others than at the start"
            valid = "the rows that the run began with; or a new run, with --init"
            raise BadValue("data", data, valid, because)
        return problem
    each = zip(map(str, hosted), map(standard.moments, problem.samples), strict=True)
    mine = standard.Said(kept=kept, agents=dict(each))
    said = [mine] if board is None else board.share("columns", mine, standard.Said)
    form = standard.settled(form, said)
    return replace(
        problem,
        samples=[standard.standardised(samples, form) for samples in problem.samples],
        test=standard.standardised(problem.test, form),
        preparation=replace(problem.preparation, table=form),
        standardise=False,
    )


def _kept_columns(form: Form, begun: Path | None) -> list[tuple[float, float]] | None:
    """The mean and the deviation of each column that a run which is resumed has begun with:
    its models expect them, whatever rows there are now."""
    kept = RunFolder(begun).columns() if begun else None
    if kept is None:  # as it is before the run has begun
        return None
    if kept.names != form.names:
        because = f"the run began with {', '.join(kept.names)}"
        raise BadValue("data", ", ".join(form.names), "the same columns as before", because)
    return [(column.mean, column.std) for column in kept.columns]


def follow(
    run: Trainer, journal: Journal, watch: Watcher, agents: dict[str, Any], everywhere: bool = False
) -> Outcome | None:
    """Trains to the end and writes the results; returns the outcome, on worker 0 or on every
    worker."""
    journal.describe(agents)
    with reported(journal.out if journal.keeper else None, journal.locked) as report:
        try:
            for event in run.events():
                if isinstance(event, Started) and "LOCAL_WORLD_SIZE" in os.environ:
                    log.info("training begins at step %d of %d", run.step + 1, run.steps)
                if isinstance(event, EpochDone):
                    journal.save(run, event)
                report(event)
                watch(event)
        except (WorkerLost, StoreLost):
            raise
        except ParleyError as error:
            raise journal.with_remedy(error) from None
        models_NE = run.transport.gather(run.now.models_AE)
        mean_E = run.evaluation.mean_model(run.now)
        last = journal.last(run)
        confusion = _confusion(run, agents["classes"], last, models_NE)
        summary = journal.finish(run, confusion, mean_E)
        if absent := summary.get("agents_absent"):
            hosts = ", ".join(summary["hosts_absent"])
            log.warning("the run ends without %s: lost %s", listed(absent), hosts)
    if run.transport.placement.here and not everywhere:
        return None
    about = {"agents": agents, "confusion": confusion}
    return Outcome(journal.records, summary, models_NE, mean_E, run, about)


def describe(problem: Problem, counts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Who talks to whom, and how many samples of each class each agent holds, for drawing; of
    tables also how their columns are prepared, which stays so if the run is resumed."""
    graph = problem.topology
    weights = [round(weight, 6) for weight in graph.edge_weights.tolist()]
    form = problem.preparation.table
    return {
        "topology": graph.name,
        "edges": [[j, i, weight] for (j, i), weight in zip(graph.edges, weights, strict=True)],
        "classes": held_names(problem.goal.task, problem.class_names),
        "held": [list(count) for count in counts],
        "note": problem.note,
        **({"columns": [asdict(column) for column in form.columns]} if form else {}),
    }


def holdings(
    problem: Problem, hosted: Sequence[int], agents: int, board: Board | None = None
) -> list[list[int]]:
    """Samples of each class at each agent; zeros for other hosts' own data, which stay private."""
    task, names = problem.goal.task, len(problem.class_names)
    own = {a: held(task, s.targets, names)
           for a, s in zip(hosted, problem.samples, strict=True)}  # fmt: skip
    classes = len(held_names(task, problem.class_names))
    told = [{str(a): count for a, count in own.items()}]
    if board is not None and not problem.data_are_own:
        told = board.share("holdings", told[0], dict[str, list[Count]])
    known = {int(a): count for said in told for a, count in said.items() if a.isdecimal()}
    return [known.get(agent, [0] * classes) for agent in range(agents)]


def _confusion(
    run: Trainer, names: Sequence[str], last: Record, models_NE: Tensor
) -> dict[str, Any]:
    """Confusion matrices of the best and the worst agent; all workers take part. Nothing where a
    sample does not have one class."""
    if not run.task.goal.has_classes:
        return {}
    measure = run.experiment.measures[0]
    placement = run.transport.placement
    present = [placement.number(row) for row in range(len(models_NE))]
    each: list[float | None] = last.get(measure.field("agents"), [])  # type: ignore[assignment]
    sign = 1 if measure.higher else -1
    figures = [sign * (each[agent] or 0.0) for agent in present]
    best = max(range(len(present)), key=figures.__getitem__)
    worst = min(range(len(present)), key=figures.__getitem__)
    return {
        "classes": list(names),
        "best": _matrix(run, present[best], models_NE[best], len(names)),
        "worst": _matrix(run, present[worst], models_NE[worst], len(names)),
    }


def _matrix(run: Trainer, agent: int, x_E: Tensor, classes: int) -> dict[str, Any]:
    cells = run.evaluation.test.confusion(x_E.to(run.state.x_AD.device), classes)
    right = float(cells.diag().sum()) / max(1, int(cells.sum()))
    return {"agent": agent, "accuracy": round(right, 6), "matrix": cells.tolist()}
