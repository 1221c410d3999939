"""Starting the workers of a run and seeing it through: files, checkpoints, resuming, stopping.

A run with one worker happens in this process. With more, this process is worker 0 and starts the
others, unless a launcher such as torchrun has already started all of them.
"""

import hashlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from parley import models
from parley.cluster import heal
from parley.cluster.host import Host
from parley.cluster.noticeboard import PARTING, Peers, StoreLost, ask, speaks
from parley.cluster.worker import Load, Outcome, Watcher, work
from parley.compute import kernels
from parley.compute.threads import usable_cores
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.store.folder import RunFolder
from parley.training.run import device_of
from parley.wire.placement import blocks
from parley.wire.transport import WorkerLost

READY = "parley/ready"


def started_by_launcher() -> bool:
    """Whether torchrun (or the like) has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process has the results to tell."""
    return int(os.environ.get("RANK", "0")) == 0


def execute(
    experiment: Experiment,
    load: Load,
    out: Path | None,
    resume: bool,
    watch: Watcher,
    host: Host | None = None,
) -> Outcome | None:
    """Runs the experiment; returns its outcome, or None on workers other than the first.

    `load` makes the problem; with several workers it is called in each of them, with the agents
    that it hosts. `host` is what only this host knows.
    """
    device_of(experiment.device)
    mine = (host or Host()).hosted()
    workers = int(os.environ["WORLD_SIZE"]) if started_by_launcher() else experiment.workers
    if workers > experiment.agents:
        valid = f"1 to {experiment.agents}"
        raise BadValue("workers", workers, valid, "every worker hosts an agent")
    if started_by_launcher():
        return _as_launched(experiment, load, out, resume, watch, mine)
    if mine is not None and set(mine) != set(range(experiment.agents)):
        valid = f"all {experiment.agents} agents, or a start by torchrun on every host"
        raise BadValue("agents_here", ",".join(map(str, mine)), valid, "this is the only host")
    if experiment.workers == 1:
        return work(experiment, load, out, resume, Peers(), watch)
    return _with_local_workers(experiment, load, out, resume, watch)


def default_workers(experiment: Experiment, out: Path) -> int:
    """What a run is to be carried out with when nobody has said: one worker for each core.

    A run that is there already goes on as it began. Small networks get one worker, and so do those
    with compiled kernels, whose threads share the work without sending messages.
    """
    if started_by_launcher() or experiment.links or experiment.model in models.SMALL:
        return 1
    if experiment.model in models.COMPILED and kernels.available():
        return 1
    if (stored := RunFolder(out).experiment(experiment.algorithm.kind)) is not None:
        return stored.workers
    return min(usable_cores(), experiment.agents)


def give_the_first_the_word() -> None:
    """Called before a process that does not speak ends because of an error.

    torchrun ends all processes of a host as soon as one has failed, which must not be before the
    first has told the user what is wrong.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and not speaks():
        time.sleep(30)


@contextmanager
def _joined(store: Store, backend: str, rank: int, world: int, patience: float) -> Iterator[Peers]:
    """Being one of several workers: when one fails, all end, with the words of the first to fail.

    A worker that fails leaves its words in the store and closes its connections, by which the
    others learn of it.
    """
    timeout = timedelta(seconds=patience)
    peers = Peers(store, rank, world, timeout)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    except RuntimeError as error:
        # One that has joined and failed already has left its words, and closed its connections.
        unclear = ParleyError(
            f"workers: the {world} processes could not all be connected within {patience:g} "
            f"seconds (--patience): {_line(error)}"
        )
        raise peers.told() or unclear from None
    try:
        yield peers
    except WorkerLost as error:
        _leave(peers)
        raise peers.told() or error from None
    except ParleyError as error:
        first = peers.fail(error)
        _leave(peers)
        raise (error if str(first) == str(error) else first) from None
    except Exception as error:
        peers.fail(ParleyError(f"worker {rank}: {error!r}"))
        _leave(peers)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _leave(peers: Peers) -> None:
    dist.destroy_process_group()  # by which the others learn of it
    peers.part()


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _as_launched(
    experiment: Experiment,
    load: Load,
    out: Path | None,
    resume: bool,
    watch: Watcher,
    mine: Sequence[int] | None,
) -> Outcome | None:
    """This process as one of those that torchrun or the like has started."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if experiment.workers not in (1, world):
        raise BadValue(
            "workers", experiment.workers, f"{world}", f"the launcher started {world} processes"
        )
    experiment = experiment.replace(workers=world)
    patience = experiment.patience
    if experiment.on_failure == "heal":
        return _healing(experiment, load, out, resume, watch, mine)
    try:
        timeout = timedelta(seconds=patience)
        # Some other program may listen at that address and never answer.
        store, _, _ = ask(lambda: next(rendezvous("env://", timeout=timeout)), patience + PARTING)
    except (StoreLost, ValueError) as error:
        raise _not_all_came(error, world, patience) from None
    store = _of_this_start(store, rank, world, patience)
    with _joined(store, _backend(experiment.device), rank, world, patience) as peers:
        return work(experiment, load, out, resume, peers, watch, mine)


def _of_this_start(store: Store, rank: int, world: int, patience: float) -> Store:
    """The part of the launcher's store that belongs to the processes that are there now.

    The store outlives the processes when torchrun starts them anew, and what earlier ones left in
    it leads nowhere. Each draws a number, and all show which numbers they see until all see the
    same: earlier processes cannot have seen those of later ones.
    """
    own = uuid.uuid4().hex
    store.set(f"parley/start/{rank}", own)
    keys = [f"parley/{what}/{r}" for what in ("start", "seen") for r in range(world)]
    deadline, seen = time.monotonic() + patience, ""
    while time.monotonic() < deadline:
        numbers = store.multi_get(keys[:world]) if store.check(keys[:world]) else []
        if (sight := b",".join(numbers).decode()) != seen:
            store.set(f"parley/seen/{rank}", sight)
            seen = sight
        if seen and store.check(keys) and set(store.multi_get(keys[world:])) == {seen.encode()}:
            return PrefixStore(hashlib.sha256(seen.encode()).hexdigest()[:16], store)
        time.sleep(0.02)
    missing = [r for r, key in enumerate(keys[:world]) if not store.check([key])]
    who = f"worker {', '.join(map(str, missing))} is missing" if missing else "some are restarting"
    raise _not_all_came(ParleyError(who), world, patience)


def _healing(
    experiment: Experiment,
    load: Load,
    out: Path | None,
    resume: bool,
    watch: Watcher,
    mine: Sequence[int] | None,
) -> Outcome | None:
    """The same with workers that may go and come back.

    They need one store as long as some of them live, where torchrun gives every restart a new one.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kept_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = ask(
            lambda: TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=rank == 0 and not kept_by_agent,
                wait_for_workers=False,
                timeout=timedelta(seconds=experiment.patience),
            ),
            experiment.patience + PARTING,
        )
    except (StoreLost, KeyError, ValueError) as error:
        raise _not_all_came(error, world, experiment.patience) from None
    return heal.work(experiment, load, out, resume, store, rank, world, watch, mine)


def _not_all_came(error: Exception, world: int, patience: float) -> ParleyError:
    words = error.why if isinstance(error, StoreLost) else _line(error)
    port = os.environ.get("MASTER_PORT", "")
    if "EADDRINUSE" in words or "address already in use" in words:
        valid = "a free port for MASTER_PORT or --rdzv-endpoint, the same on all hosts"
        return BadValue("port", port, valid, "another program on this host uses it")
    return ParleyError(
        f"workers: the launcher announced {world} processes, which did not all come within "
        f"{patience:g} seconds (--patience): {words}"
    )


def _backend(device: str) -> str:
    """NCCL where every process of this host has a GPU of its own, else gloo."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if device != "cuda" or not dist.is_nccl_available() or torch.cuda.device_count() < here:
        return "gloo"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    return "nccl"


def _with_local_workers(
    experiment: Experiment,
    load: Load,
    out: Path | None,
    resume: bool,
    watch: Watcher,
) -> Outcome | None:
    """This process as worker 0, the others started here."""
    world = experiment.workers
    patience = timedelta(seconds=experiment.patience)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)
    others: list[ForkServerProcess] = []
    try:
        with _interrupts_held_back():
            for rank in range(1, world):
                others.append(_started(experiment, load, out, resume, rank, store.port))
        first = [
            agent for agent, worker in enumerate(blocks(experiment.agents, world)) if not worker
        ]
        problem = load(experiment, first)  # while the others are starting
        while store.add(READY, 0) < world - 1:
            if any(process.exitcode is not None for process in others):
                raise WorkerLost("a worker ended before it began")
            time.sleep(0.02)
        with _joined(store, "gloo", 0, world, experiment.patience) as peers:
            return work(experiment, lambda *_: problem, out, resume, peers, watch)
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
    load: Load,
    out: Path | None,
    resume: bool,
    rank: int,
    port: int,
) -> None:
    """A worker that this module started; worker 0 speaks for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    os.environ.update(environment)
    patience = timedelta(seconds=experiment.patience)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
    store.add(READY, 1)
    try:
        with _joined(store, "gloo", rank, experiment.workers, experiment.patience) as peers:
            work(experiment, load, out, resume, peers, lambda event: None)
    except ParleyError:
        pass


def end_with_parent() -> None:
    """In a child: ends it when its parent is gone, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
