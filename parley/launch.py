"""Starting the workers of a run and seeing it through: files, checkpoints, resuming, stopping.

A run with one worker happens in this process. With more, this process is worker 0 and starts the
others, unless a launcher such as torchrun has already started all of them.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.rendezvous import rendezvous

import parley
from parley import checkpoint, models
from parley.errors import BadValue, ParleyError
from parley.experiment import HOW, Experiment
from parley.folder import AGENTS, CONFUSION, RECORDS, RunFolder
from parley.placement import spread
from parley.run import EpochDone, Event, Problem, Record, Run, device_of
from parley.status import reported
from parley.transport import Local, Processes, Transport, WorkerLost

Watcher = Callable[[Event], None]
"""Is shown every event of worker 0."""

JOINING = timedelta(minutes=2)
"""How long the processes of a launcher wait for each other at the start."""
SILENCE = timedelta(minutes=10)
"""How long a worker waits for another before it gives up."""
PARTING = 3.0
"""Seconds that workers have to end by themselves once one has failed."""

FAILURE = "parley/failure"
"""Where in the workers' common store the first one that fails says why."""
READY = "parley/ready"
EACH_AGENT = ("accuracy_agents", "distance_agents")
"""Fields of a record that are lists with a value for each agent."""


def started_by_launcher() -> bool:
    """Whether torchrun (or the like) has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process speaks to the user."""
    return int(os.environ.get("RANK", "0")) == 0


class Outcome:
    """What a finished run leaves in memory (on worker 0)."""

    def __init__(
        self,
        records: list[Record],
        summary: dict[str, Any],
        x_ND: Tensor,
        run: Run,
        about: dict[str, dict[str, Any]],
    ) -> None:
        self.records = records
        self.summary = summary
        self.x_ND = x_ND
        """Every agent's model."""
        self.task = run.task
        self.about = about
        """What the folder has beside records: ``agents`` and ``confusion``."""


def execute(
    experiment: Experiment,
    load: Callable[[Experiment], Problem],
    out: Path | None,
    resume: bool,
    watch: Watcher,
) -> Outcome | None:
    """Runs the experiment; returns its outcome, or None on workers other than the first.

    `load` makes the problem; with several workers it is called in each of them.
    """
    device_of(experiment.device)
    workers = int(os.environ["WORLD_SIZE"]) if started_by_launcher() else experiment.workers
    if workers > experiment.agents:
        valid = f"1 to {experiment.agents}"
        raise BadValue("workers", workers, valid, "every worker hosts an agent")
    if started_by_launcher():
        return _as_launched(experiment, load, out, resume, watch)
    if experiment.workers == 1:
        return _work(experiment, load, out, resume, 0, watch)
    return _with_local_workers(experiment, load, out, resume, watch)


def default_workers(experiment: Experiment, out: Path) -> int:
    """What a run is to be carried out with when nobody has said: one worker for each core.

    A run that is there already goes on as it began. Small networks get one worker (`models.SMALL`).
    """
    if started_by_launcher() or experiment.model in models.SMALL:
        return 1
    if (stored := RunFolder(out).experiment()) is not None:
        return stored.workers
    return min(usable_cores(), experiment.agents)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def give_the_first_the_word() -> None:
    """Called before a process other than the first ends because of an error.

    torchrun ends all processes as soon as one has failed, which must not be before the first has
    told the user what is wrong.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and not is_first():
        time.sleep(30)


def _work(
    experiment: Experiment,
    load: Callable[[Experiment], Problem],
    out: Path | None,
    resume: bool,
    rank: int,
    watch: Watcher,
) -> Outcome | None:
    """One worker, from loading to summary."""
    with _threads(experiment.threads), ExitStack() as until_done:
        problem = load(experiment)
        placement = spread(problem.topology, experiment.workers, rank)
        transport: Transport
        transport = Local(placement) if experiment.workers == 1 else Processes(placement)
        folder = RunFolder(out) if out else None
        first = rank == 0
        run = Run(experiment, problem, transport)
        _check_agreement(run)
        if folder and first:
            folder.open(experiment, resume)
        _meet(transport)  # nobody writes into a folder that has been refused
        agents = describe(problem) if first else {}
        if folder and first:
            folder.write_once(AGENTS, agents)
        records = _restore(run, folder, first) if folder and resume else []
        report = until_done.enter_context(reported(folder.path if folder and first else None))
        try:
            for event in run.events():
                if isinstance(event, EpochDone):
                    if folder:
                        _save(run, folder, event, first)
                    if event.record:
                        records.append(event.record)
                if first:
                    report(event)
                    watch(event)
        except WorkerLost:
            raise
        except ParleyError as error:
            raise _with_remedy(error, folder) from None
        x_ND = transport.gather(run.state.x_AD)
        if not first:
            return None
        if folder and (not records or records[-1]["epoch"] != run.epoch):
            raise ParleyError(
                f"records: {folder.path / RECORDS} lacks the last record; remove "
                f"{checkpoint.folder(folder.path, run.epoch)} to make that epoch again"
            )
        summary = summarise(experiment, records[-1], out)
        confusion = _confusion(run, problem, records[-1], x_ND)
        if folder:
            folder.write_once(CONFUSION, confusion)
            folder.finish(summary)
        about = {"agents": agents, "confusion": confusion}
        return Outcome(records, summary, x_ND, run, about)


def _check_agreement(run: Run) -> None:
    """Workers that were started with different options would not understand each other."""
    transport, placement = run.transport, run.transport.placement
    what = run.experiment.model_dump_json(exclude=set(HOW))
    what += f" {parley.__version__} {run.task.size} {transport.topology.edges}"
    codes = transport.gather(torch.full((len(placement.agents),), zlib.crc32(what.encode())))
    other = (codes != codes[0]).nonzero()
    if len(other):
        raise ParleyError(
            f"workers: worker {placement.worker_of[int(other[0])]} was started with another "
            f"experiment than worker {placement.worker_of[0]}; give all the same options"
        )


def _meet(transport: Transport) -> None:
    """Goes on once every worker has come this far."""
    transport.sum(torch.zeros(1))


def summarise(experiment: Experiment, last: Record, out: Path | None) -> dict[str, Any]:
    """The last record and what it is the record of, as one flat object."""
    return {
        "algorithm": experiment.algorithm.name,
        "label": experiment.algorithm.label,
        "data": experiment.data,
        "model": experiment.model,
        "agents": experiment.agents,
        "topology": experiment.topology,
        "partition": experiment.partition,
        "seed": experiment.seed,
        "epochs": experiment.epochs,
        **{k: v for k, v in last.items() if k not in ("epoch", *EACH_AGENT)},
        "out": str(out) if out else None,
    }


def describe(problem: Problem) -> dict[str, Any]:
    """Who talks with whom and who holds what, for whoever draws it."""
    graph, classes = problem.topology, len(problem.class_names)
    counts = [torch.bincount(s.targets, minlength=classes) for s in problem.samples]
    weights = [round(weight, 6) for weight in graph.edge_weights.tolist()]
    return {
        "topology": graph.name,
        "edges": [[j, i, weight] for (j, i), weight in zip(graph.edges, weights, strict=True)],
        "classes": list(problem.class_names),
        "held": [count.tolist() for count in counts],
        "note": problem.note,
    }


def _confusion(run: Run, problem: Problem, last: Record, x_ND: Tensor) -> dict[str, Any]:
    """What the best and the worst agent take for what."""
    accuracies, classes = last["accuracy_agents"], len(problem.class_names)
    best = max(range(len(accuracies)), key=accuracies.__getitem__)
    worst = min(range(len(accuracies)), key=accuracies.__getitem__)
    device = run.state.x_AD.device
    return {
        "classes": list(problem.class_names),
        **{
            name: {
                "agent": agent,
                "accuracy": accuracies[agent],
                "matrix": run.test.confusion(x_ND[agent].to(device), classes).tolist(),
            }
            for name, agent in (("best", best), ("worst", worst))
        },
    }


def _restore(run: Run, folder: RunFolder, first: bool) -> list[Record]:
    """Goes back to the newest checkpoint that every worker has."""
    records = folder.records() if first else []
    epoch = checkpoint.newest(folder.path, run.transport)
    if epoch:
        run.restore(*checkpoint.load(folder.path, epoch, run.state, run.transport))
    _meet(run.transport)  # nothing is changed on disk until every worker has read its part
    checkpoint.drop_after(folder.path, epoch)
    if first:
        records = folder.rewind(records, epoch)
    _meet(run.transport)
    return records


def _save(run: Run, folder: RunFolder, event: EpochDone, first: bool) -> None:
    # The record goes first: resuming drops records newer than its checkpoint, but could not make
    # up for a record that is missing.
    if first and event.record:
        folder.append(event.record)
    checkpoint.save(folder.path, event.epoch, run.state, run.transport, run.about())
    _meet(run.transport)
    checkpoint.prune(folder.path, event.epoch)


def _with_remedy(error: ParleyError, folder: RunFolder | None) -> ParleyError:
    present = checkpoint.epochs_present(folder.path) if folder else []
    if not present or not folder:
        return error
    return ParleyError(
        f"{error}; the checkpoint after epoch {present[-1]} is kept in {folder.path}"
    )


@contextmanager
def _threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _joined(store: Store, backend: str, rank: int, world: int) -> Iterator[None]:
    """Being one of several workers: when one fails, all end, with the words of the first to fail.

    A worker that fails leaves its words in the store and closes its connections, by which the
    others learn of it.
    """
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=SILENCE)
    except RuntimeError as error:
        # One that has joined and failed already has left its words, and closed its connections.
        unclear = ParleyError(f"workers: they could not be connected ({_line(error)})")
        raise _told(store) or unclear from None
    try:
        yield
    except WorkerLost as error:
        raise _told(store) or error from None
    except Exception as error:
        words = str(error) if isinstance(error, ParleyError) else f"worker {rank}: {error!r}"
        store.compare_set(FAILURE, "", words)
        raise
    finally:
        dist.destroy_process_group()


def _told(store: Store) -> ParleyError | None:
    try:
        return ParleyError(store.get(FAILURE).decode()) if store.check([FAILURE]) else None
    except RuntimeError:
        return None  # the store has gone as well


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _as_launched(
    experiment: Experiment,
    load: Callable[[Experiment], Problem],
    out: Path | None,
    resume: bool,
    watch: Watcher,
) -> Outcome | None:
    """This process as one of those that torchrun or the like has started."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if experiment.workers not in (1, world):
        raise BadValue(
            "workers", experiment.workers, f"{world}", f"the launcher started {world} processes"
        )
    experiment = experiment.replace(workers=world)
    try:
        store, _, _ = next(rendezvous("env://", timeout=JOINING))
    except (RuntimeError, ValueError) as error:
        raise ParleyError(
            f"workers: the launcher announced {world} processes, which did not all come "
            f"({_line(error)})"
        ) from None
    with _joined(store, _backend(experiment.device), rank, world):
        return _work(experiment, load, out, resume, rank, watch)


def _backend(device: str) -> str:
    """NCCL where every process of this host has a GPU of its own, else gloo."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if device != "cuda" or not dist.is_nccl_available() or torch.cuda.device_count() < here:
        return "gloo"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    return "nccl"


def _with_local_workers(
    experiment: Experiment,
    load: Callable[[Experiment], Problem],
    out: Path | None,
    resume: bool,
    watch: Watcher,
) -> Outcome | None:
    """This process as worker 0, the others started here."""
    world = experiment.workers
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=SILENCE)
    others: list[ForkServerProcess] = []
    try:
        with _interrupts_held_back():
            for rank in range(1, world):
                others.append(_started(experiment, load, out, resume, rank, store.port))
        problem = load(experiment)  # while the others are starting
        while store.add(READY, 0) < world - 1:
            if any(process.exitcode is not None for process in others):
                raise WorkerLost("a worker ended before it began")
            time.sleep(0.02)
        with _joined(store, "gloo", 0, world):
            return _work(experiment, lambda _: problem, out, resume, 0, watch)
    except WorkerLost as error:
        raise _explained(error, others, out) from None
    finally:
        _end(others)


def _started(*arguments: Any) -> ForkServerProcess:
    # A server that has imported everything makes a worker in no time; it could be an old one.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(
        target=_other_worker, args=(dict(os.environ), *arguments), daemon=True
    )
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadValue(
            "workers",
            arguments[0].workers,
            "1, or a model, data and loss that are defined at the top level of a module",
            f"these cannot be sent to other processes: {_line(error)}",
        ) from None
    return process


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C is for worker 0. Processes started meanwhile never see it, and follow worker 0."""
    resource_tracker.ensure_running()  # starting it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _explained(
    lost: WorkerLost, others: Sequence[ForkServerProcess], out: Path | None
) -> ParleyError:
    """The error of a worker that ended without a word."""
    deadline = time.monotonic() + PARTING
    wait([process.sentinel for process in others], timeout=PARTING)
    for rank, process in enumerate(others, start=1):
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode:
            code = process.exitcode
            how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"failed ({code})"
            then = "; the same command with --resume goes on from the last checkpoint"
            return ParleyError(f"worker {rank} {how}{then if out else ''}")
    return lost


def _end(others: Sequence[ForkServerProcess]) -> None:
    deadline = time.monotonic() + PARTING
    for process in others:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _other_worker(
    environment: dict[str, str],
    experiment: Experiment,
    load: Callable[[Experiment], Problem],
    out: Path | None,
    resume: bool,
    rank: int,
    port: int,
) -> None:
    """A worker that this module started; worker 0 speaks for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=SILENCE)
    store.add(READY, 1)
    try:
        with _joined(store, "gloo", rank, experiment.workers):
            _work(experiment, load, out, resume, rank, lambda event: None)
    except ParleyError:
        pass


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
