"""Sets up a run: its transport, its engine, and a trial of the model on a few samples."""

import logging
import os
from collections.abc import Sequence

import torch

from parley.compute import choose as engines
from parley.compute import kernels
from parley.compute.engine import Engine
from parley.compute.task import Task
from parley.compute.threads import usable_cores
from parley.data import Batches
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.graphs import Topology
from parley.stopping import Stop
from parley.training.frequency import Frequency, frequency_of
from parley.training.problem import Problem
from parley.wire import clock as links
from parley.wire.guard import Guard
from parley.wire.transport import Transport

log = logging.getLogger(__name__)


def equipped(
    transport: Transport, experiment: Experiment, problem: Problem, task: Task
) -> Transport:
    """With the simulated clock that the experiment asks for, and with a guard where messages come
    from processes that another command started, here or on another host."""
    placement = transport.placement
    alone = len(placement.agents) == placement.topology.agents
    if not alone:
        if experiment.links:
            raise BadValue("links", experiment.links, "workers=1, with all agents in one process")
        if transport.trusted:
            return transport
        return transport.guarded(Guard(task.dtype, experiment.suspicious, transport.worker_name))
    if not experiment.links:
        return transport
    return transport.timed(links.parse(experiment.links, problem.topology, experiment.seed))


def expect_weights(transport: Transport, factors: Sequence[float]) -> None:
    """Tells the guard by how much the gradients of each agent are multiplied."""
    factor_N = transport.gather(torch.tensor(factors, dtype=torch.float64))
    if transport.guard is not None:
        number = transport.placement.number
        weights = enumerate((factor_N / factor_N.min()).tolist())
        transport.guard.weigh({number(agent): max(weight, 1.0) for agent, weight in weights})


def choose_engine(
    experiment: Experiment, task: Task, batches: Batches, transport: Transport
) -> Engine:
    """The requested engine; ``auto`` is the one that is fastest on worker 0, for all."""
    name, threads = experiment.engine, _threads(experiment, transport)
    batch = batches.at(0)
    if name != "auto":
        engines.check(name, task, batch)
    else:
        shape = tuple(batch.inputs.shape[2:])
        found = engines.fastest(task, batch) if transport.placement.here == 0 else "loop"
        names = list(engines.ENGINES)
        chosen = int(transport.each(torch.tensor(names.index(found)))[0])
        name = names[min(max(chosen, 0), len(names) - 1)]
        if why := engines.reason_against(name, task, shape):
            log.info("using engine loop here, not %s: %s", name, why)
            name = "loop"
        if how := engines.missed(task, shape):
            log.info("using engine %s, with %s", name, how)
    library = kernels.identity() or "no kernels"
    log.debug("engine %s, %d threads, %s", name, threads, library)
    return engines.build(name, task, experiment.seed, threads)


def frequency(
    experiment: Experiment,
    stop: Stop,
    topology: Topology,
    task: Task,
    steps_per_epoch: int,
    tested: int,
) -> Frequency:
    """How often the run is evaluated; if not every model is after every epoch, that is said."""
    parameters = sum(p.numel() for p in task.model.parameters())
    found = frequency_of(experiment, stop, len(topology.edges), steps_per_epoch, tested, parameters)
    if found.own > found.records:
        log.info(
            "the averaged model is evaluated after every epoch, the agents' own models after every "
            "%d epochs and at the end; --evaluate-every 1 evaluates all of them after every epoch",
            found.own,
        )
    return found


def _threads(experiment: Experiment, transport: Transport) -> int:
    """The requested number, or this process's share of the cores; never more than agents."""
    placement = transport.placement
    together = 1 if transport.alone_on_host else placement.workers
    here = int(os.environ.get("LOCAL_WORLD_SIZE", together))
    threads = experiment.threads or max(1, usable_cores() // here)
    return min(threads, len(placement.agents))
