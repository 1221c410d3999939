"""Starting the workers of a run and seeing it through: files, checkpoints, resuming, stopping.

A run with one worker happens in this process. With more, this process is worker 0 and starts the
others, unless a launcher such as torchrun has already started all of them.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from parley import models
from parley.cluster.host import Host
from parley.cluster.join import Meeting, as_launched, local_store
from parley.cluster.rank import started_by_launcher
from parley.cluster.run import Assignment, Load, Outcome, Watcher, alone, unwatched
from parley.cluster.worker import work
from parley.compute import choose, kernels, precision
from parley.compute.threads import usable_cores
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.fabric.base import WorkerLost, listed
from parley.fabric.gloo import PARTING
from parley.process import follow_parent, interrupts_held_back
from parley.stopping import Callbacks
from parley.store.folder import RunFolder
from parley.training.problem import device_of
from parley.wire.placement import blocks

log = logging.getLogger(__name__)

READY = "parley/ready"
STOPPED = 1.0
"""Seconds that the others have to end on their own once this process is told to stop: whoever waits
for a message of its cannot, and what they write is there as a whole or not at all."""


def execute(
    experiment: Experiment,
    load: Load,
    out: Path | None,
    resume: bool,
    watch: Watcher,
    host: Host | None = None,
    callbacks: Callbacks | None = None,
    everywhere: bool = False,
) -> Outcome | None:
    """Runs the experiment; returns its outcome, or None on workers other than the first, unless
    `everywhere` asks for it in every process of a launcher.

    `load` creates the problem; with several workers it is called in each of them, with the agents
    that it hosts. `host` is what only this host knows.
    """
    # Refused before anything is written.
    precision.check_device(experiment.precision, device_of(experiment.device))
    choose.check_name(experiment.engine)
    if experiment.on_failure == "heal":
        valid = "stop; or parley join, with keys and peers.toml as parley peers hosts makes them"
        raise BadValue("on_failure", "heal", valid, "only peers continue without a lost one")
    mine = (host or Host()).hosted()
    launched = started_by_launcher()
    world = int(os.environ["WORLD_SIZE"]) if launched else experiment.workers
    if world > experiment.agents:
        valid = f"1 to {experiment.agents}"
        raise BadValue("workers", world, valid, "every worker must host an agent")
    if launched and experiment.workers not in (1, world):
        because = f"the launcher started {world} processes"
        raise BadValue("workers", experiment.workers, f"{world}", because)
    experiment = experiment.replace(workers=world) if launched else experiment
    assignment = Assignment(experiment, load, out, resume, watch, mine, callbacks or Callbacks())
    if launched:
        return work(replace(assignment, everywhere=everywhere), as_launched(experiment))
    if mine is not None and set(mine) != set(range(experiment.agents)):
        valid = f"all {experiment.agents} agents, or torchrun on every host"
        raise BadValue("agents_here", ",".join(map(str, mine)), valid, "this is the only host")
    assignment = replace(assignment, mine=None)
    return alone(assignment) if world == 1 else _with_local_workers(assignment)


def default_workers(experiment: Experiment, out: Path) -> int:
    """The default number of workers: one per core.

    An existing run continues as it started. Small networks get one worker, and so do those with
    compiled kernels, whose threads share the work without sending messages.
    """
    if started_by_launcher() or experiment.links or experiment.model in models.SMALL:
        return 1
    computes_here = experiment.precision == precision.FULL and kernels.available()
    if experiment.model in models.COMPILED and computes_here:
        return 1
    if (stored := RunFolder(out).experiment(experiment.algorithm.kind)) is not None:
        return stored.workers
    return min(usable_cores(), experiment.agents)


def _with_local_workers(assignment: Assignment) -> Outcome | None:
    """Runs worker 0 in this process and starts the others."""
    experiment = assignment.experiment
    world, patience = experiment.workers, experiment.patience
    store = local_store(patience)
    others: list[BaseProcess] = []
    parting = PARTING
    try:
        with interrupts_held_back():
            for rank in range(1, world):
                others.append(_started(assignment, rank, store.port))
        worker_of = blocks(experiment.agents, world)
        first = [agent for agent, worker in enumerate(worker_of) if not worker]
        problem = assignment.load(experiment, first)  # while the others are starting
        while store.add(READY, 0) < world - 1:
            if any(process.exitcode is not None for process in others):
                raise WorkerLost("a worker ended before training began")
            time.sleep(0.02)
        mine = replace(assignment, load=lambda *_: problem)
        return work(mine, Meeting(0, world, patience, store=store, local=True))
    except WorkerLost as error:
        raise _explained(error, others, assignment) from None
    except KeyboardInterrupt:
        parting = STOPPED
        raise
    finally:
        _end(others, parting)


def _started(assignment: Assignment, rank: int, port: int) -> BaseProcess:
    told = replace(assignment, watch=unwatched, callbacks=assignment.callbacks.silent())
    arguments = (dict(os.environ), told, rank, port)
    process: BaseProcess = context(__name__).Process(
        target=_other_worker, args=arguments, daemon=True
    )
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadValue(
            "workers",
            assignment.experiment.workers,
            "1, or a model, data and loss that are defined at the top level of a module",
            f"these cannot be sent to other processes: {str(error).splitlines()[0]}",
        ) from None
    return process


def context(preload: str) -> Any:
    """How processes are started: quickly, by a server that has imported everything, where the
    system has one. It may be running already, so it is told what to import."""
    kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    made = multiprocessing.get_context(kind)
    if kind == "forkserver":
        made.set_forkserver_preload([preload])
    return made


def _explained(
    lost: WorkerLost, others: Sequence[BaseProcess], assignment: Assignment
) -> ParleyError:
    """The error for a worker that ended without reporting one."""
    deadline = time.monotonic() + PARTING
    wait([process.sentinel for process in others], timeout=PARTING)
    experiment = assignment.experiment
    worker_of = blocks(experiment.agents, experiment.workers)
    for rank, process in enumerate(others, start=1):
        process.join(max(0.0, deadline - time.monotonic()))
        if code := process.exitcode:
            how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"failed ({code})"
            who = f"worker {rank} ({listed([a for a, w in enumerate(worker_of) if w == rank])})"
            then = "; the same command with --resume continues from the last checkpoint"
            return ParleyError(f"{who} {how}{then if assignment.out else ''}")
    return lost


def _end(others: Sequence[BaseProcess], parting: float) -> None:
    deadline = time.monotonic() + parting
    for process in others:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _other_worker(
    environment: dict[str, str], assignment: Assignment, rank: int, port: int
) -> None:
    """A worker that this module started; worker 0 reports for it."""
    follow_parent(environment)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    experiment = assignment.experiment
    timeout = timedelta(seconds=experiment.patience)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    store.add(READY, 1)
    with suppress(ParleyError):
        meeting = Meeting(rank, experiment.workers, experiment.patience, store=store, local=True)
        work(assignment, meeting)
