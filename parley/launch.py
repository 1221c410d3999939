"""Starting the workers of a run and seeing it through: files, checkpoints, resuming, stopping.

A run with one worker happens in this process. With more, this process is worker 0 and starts the
others, unless a launcher such as torchrun has already started all of them.
"""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from parley import checkpoint
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.folder import RunFolder
from parley.placement import spread
from parley.run import EpochDone, Event, Problem, Record, Run
from parley.transport import Local, Processes, Transport

Watcher = Callable[[Event], None]
"""Is shown every event of worker 0."""

SILENCE = timedelta(minutes=10)
"""How long a worker waits for another before it gives up."""


def started_by_launcher() -> bool:
    """Whether torchrun (or the like) has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process speaks to the user."""
    return int(os.environ.get("RANK", "0")) == 0


class Outcome:
    """What a finished run leaves in memory (on worker 0)."""

    def __init__(
        self, records: list[Record], summary: dict[str, Any], x_ND: Tensor, run: Run
    ) -> None:
        self.records = records
        self.summary = summary
        self.x_ND = x_ND
        """Every agent's model."""
        self.task = run.task


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
    _check_device(experiment.device)
    if started_by_launcher():
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if experiment.workers not in (1, world):
            raise BadValue(
                "workers", experiment.workers, f"{world}", f"the launcher started {world} processes"
            )
        experiment = experiment.replace(workers=world)
        backend = (
            "nccl" if experiment.device.startswith("cuda") and dist.is_nccl_available() else "gloo"
        )
        with _group(lambda: dist.init_process_group(backend, timeout=SILENCE)):
            return _work(experiment, load, out, resume, rank, watch)
    if experiment.workers == 1:
        return _work(experiment, load, out, resume, 0, watch)
    return _with_local_workers(experiment, load, out, resume, watch)


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise BadValue("device", device, "cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadValue("device", device, "cpu", "no CUDA device can be used here")


def _work(
    experiment: Experiment,
    load: Callable[[Experiment], Problem],
    out: Path | None,
    resume: bool,
    rank: int,
    watch: Watcher,
) -> Outcome | None:
    """One worker, from loading to summary."""
    with _threads(experiment.threads):
        problem = load(experiment)
        placement = spread(problem.topology, experiment.workers, rank)
        transport: Transport
        transport = Local(placement) if experiment.workers == 1 else Processes(placement)
        folder = RunFolder(out) if out else None
        first = rank == 0
        run = Run(experiment, problem, transport)
        if folder and first:
            folder.open(experiment, resume)
        records: list[Record] = []
        if folder and resume:
            records = _restore(run, folder, first)
        try:
            for event in run.events():
                if isinstance(event, EpochDone):
                    if folder:
                        _save(run, folder, event, first)
                    if event.record:
                        records.append(event.record)
                if first:
                    watch(event)
        except ParleyError as error:
            raise _with_remedy(error, folder) from None
        x_ND = transport.gather(run.state.x_AD)
        if not first:
            return None
        summary = summarise(experiment, records[-1], out)
        if folder:
            folder.finish(summary)
        return Outcome(records, summary, x_ND, run)


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
        **{k: v for k, v in last.items() if k not in ("epoch", "accuracy_agents")},
        "out": str(out) if out else None,
    }


def _restore(run: Run, folder: RunFolder, first: bool) -> list[Record]:
    """Goes back to the newest checkpoint that every worker has."""
    present = checkpoint.epochs_present(folder.path)
    newest = torch.tensor(float(present[-1] if present else 0))
    epoch = int(run.transport.gather(newest.repeat(len(run.hood.agents))).min())
    if epoch:
        run.restore(*checkpoint.load(folder.path, epoch, run.state, run.transport))
    return folder.rewind(epoch) if first else []


def _save(run: Run, folder: RunFolder, event: EpochDone, first: bool) -> None:
    # The record goes first: resuming drops records newer than its checkpoint, but could not make
    # up for a record that is missing.
    if first and event.record:
        folder.append(event.record)
    checkpoint.save(folder.path, event.epoch, run.state, run.transport, run.about())
    run.transport.sum(torch.zeros(1))  # every worker has written
    if first:
        checkpoint.prune(folder.path)


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
def _group(start: Callable[[], None]) -> Iterator[None]:
    start()
    try:
        yield
    finally:
        dist.destroy_process_group()


def _with_local_workers(
    experiment: Experiment,
    load: Callable[[Experiment], Problem],
    out: Path | None,
    resume: bool,
    watch: Watcher,
) -> Outcome | None:
    """This process as worker 0, the others started here."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=SILENCE)
    context = multiprocessing.get_context("spawn")
    others: list[tuple[Any, Connection]] = []
    try:
        for rank in range(1, experiment.workers):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (experiment, load, out, resume, rank, store.port, theirs)
            process = context.Process(target=_other_worker, args=arguments, daemon=True)
            process.start()
            theirs.close()
            others.append((process, ours))
        with _group(
            lambda: dist.init_process_group(
                "gloo", store=store, rank=0, world_size=experiment.workers, timeout=SILENCE
            )
        ):
            return _work(experiment, load, out, resume, 0, watch)
    except RuntimeError as error:
        # A worker that fails closes its connections: its own words say more than ours.
        for rank, (process, pipe) in enumerate(others, start=1):
            process.join(timeout=5)
            if pipe.poll():
                kind, words = pipe.recv()
                raise (ParleyError(words) if kind == "parley" else RuntimeError(words)) from error
            if process.exitcode not in (0, None):
                raise ParleyError(
                    f"worker {rank} ended with code {process.exitcode}; --resume goes on from the "
                    "last checkpoint"
                ) from None
        raise
    finally:
        for process, _ in others:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()


def _other_worker(
    experiment: Experiment,
    load: Callable[[Experiment], Problem],
    out: Path | None,
    resume: bool,
    rank: int,
    port: int,
    parent: Connection,
) -> None:
    """A worker that this module started. Ctrl-C is for worker 0; the others follow it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=SILENCE)
        with _group(
            lambda: dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=experiment.workers, timeout=SILENCE
            )
        ):
            _work(experiment, load, out, resume, rank, lambda event: None)
    except ParleyError as error:
        parent.send(("parley", str(error)))
        raise SystemExit(2) from None
    except Exception:
        parent.send(("other", f"worker {rank} failed:\n{traceback.format_exc()}"))
        raise SystemExit(1) from None
