"""Contestants: groups of child processes that wait for commands, so that one works at a time.

The parent holds a pipe to every process of a `Contestant`. All processes of a group get the same
command, and the time of a command is from the first one's start to the last one's end.
"""

import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from benchmarks.cases import Case

PATIENCE = timedelta(minutes=30)


class Player(Protocol):
    """What every implementation offers: this process's share of a case."""

    def step(self) -> None: ...

    def models(self) -> Tensor: ...


class Parley:
    """Parley's own training loop, one step at a time."""

    def __init__(self, case: Case, rank: int = 0, workers: int = 1, threads: int = 1) -> None:
        from parley.data_sizes import Sizes
        from parley.fabric.gloo import Gloo
        from parley.training.events import Started
        from parley.training.trainer import Trainer
        from parley.wire.local import Local
        from parley.wire.placement import spread
        from parley.wire.spread import Spread

        placement = spread(case.topology(), workers, rank)
        problem = case.problem(placement.agents)
        transport = Local(placement) if workers == 1 else Spread(placement, Gloo())
        # One epoch without end: nothing is evaluated between the steps.
        endless = Sizes(steps_per_epoch=sys.maxsize, mean=1.0)
        self.run = Trainer(case.experiment(workers, threads), problem, transport, sizes=endless)
        self._events = self.run.events()
        assert isinstance(next(self._events), Started)

    def step(self) -> None:
        next(self._events)

    def models(self) -> Tensor:
        """The hosted agents' parameters, [A, D]."""
        x_AD: Tensor = self.run.state.x_AD
        return x_AD


def player(kind: str, case: Case, threads: int = 1) -> Player:
    """This process's share of a case, as this kind of contestant."""
    from benchmarks.one_process_each import OneProcessEach
    from benchmarks.textbook import Textbook

    together = dist.is_initialized()
    if kind == "parley":
        rank, workers = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        return Parley(case, rank, workers, threads)
    return OneProcessEach(case) if together else Textbook(case)


def _serve(pipe: Connection, kind: str, threads: int, rank: int, processes: int, port: int) -> None:
    """A child process: obeys commands until it is told to stop or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    if processes > 1:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=processes, timeout=PATIENCE
        )
    child = _Child(kind, threads)
    try:
        pipe.send((True, time.perf_counter()))
        while True:
            name, arguments = pipe.recv()
            if name == "stop":
                break
            try:
                pipe.send((True, getattr(child, name)(*arguments)))
            except Exception:
                pipe.send((False, f"{kind}, process {rank}:\n{traceback.format_exc()}"))
    except (EOFError, BrokenPipeError):
        pass
    if processes > 1:
        dist.destroy_process_group()


class _Child:
    """The commands."""

    def __init__(self, kind: str, threads: int) -> None:
        self.kind = kind
        self.threads = threads
        self.player: Player | None = None

    def load(self, case: Case) -> tuple[float, float]:
        """Sets up a case; returns start and end time."""
        self.player = None
        gc.collect()
        torch.set_num_threads(self.threads)  # a run with compiled kernels has left one
        made = partial(player, self.kind, case, self.threads)
        return self._timed(lambda: setattr(self, "player", made()))

    def steps(self, n: int) -> tuple[float, float]:
        """Takes n steps; returns start and end time."""
        step = self._loaded().step

        def make() -> None:
            for _ in range(n):
                step()

        return self._timed(make)

    def processor(self) -> float:
        """Seconds of processor time that this process has used."""
        return time.process_time()

    def models(self) -> np.ndarray:
        return self._loaded().models().numpy()

    def engine(self) -> str:
        """The gradient engine that Parley chose."""
        loaded = self._loaded()
        return type(loaded.run.engine).__name__ if isinstance(loaded, Parley) else ""

    def shares(self, n: int) -> dict[str, float]:
        """How much of Parley's time goes into codec and projection, over n steps.

        In processor time, which excludes time spent on other programs.
        """
        with _stopwatches() as seconds:
            started = time.process_time()
            self.steps(n)
            total = time.process_time() - started
        return {name: spent / total for name, spent in seconds.items()}

    def growth(self, n: int) -> int:
        """Bytes by which n steps raise the process's peak above what it holds now."""
        gc.collect()
        before = _resident()
        _forget_peak()
        self.steps(n)
        return _peak() - before

    def _loaded(self) -> Player:
        assert self.player is not None, "no case has been loaded"
        return self.player

    def _timed(self, work: Callable[[], None]) -> tuple[float, float]:
        # The clock is the machine's: its values can be compared between processes.
        if dist.is_initialized():
            dist.barrier()
        started = time.perf_counter()
        work()
        return started, time.perf_counter()


@contextmanager
def _stopwatches() -> Iterator[dict[str, float]]:
    """Processor seconds spent inside some of Parley's functions while the context is open."""
    from parley.algorithms import cga
    from parley.wire.codec import ScaledSign

    seconds: dict[str, float] = {}
    restore: list[Callable[[], None]] = []

    def watch(owner: Any, name: str, label: str, depth: list[int]) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            started = time.process_time()
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1
                if not depth[0]:  # one that calls another is counted once
                    seconds[label] += time.process_time() - started

        setattr(owner, name, timed)
        restore.append(partial(setattr, owner, name, original))

    methods = [name for name, value in vars(ScaledSign).items() if _is_public(name, value)]
    inherited = [name for name in ("round_trip",) if name not in methods]
    for label, owner, names in (
        ("codec", ScaledSign, methods + inherited),
        ("projection", cga.CGA, ["project"]),
        ("qp", cga, ["multipliers"]),
    ):
        seconds[label] = 0.0
        depth = [0]
        for name in names:
            if hasattr(owner, name):
                watch(owner, name, label, depth)
    try:
        yield seconds
    finally:
        for undo in reversed(restore):
            undo()


def _is_public(name: str, value: Any) -> bool:
    return not name.startswith("_") and callable(value)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


class Contestant:
    """One way of doing it: a group of child processes, started together."""

    def __init__(
        self,
        kind: str,
        processes: int = 1,
        threads: int = 1,
        environment: dict[str, str] | None = None,
        start: Literal["spawn", "forkserver"] = "spawn",
    ) -> None:
        context: Any = multiprocessing.get_context(start)
        store = port = None
        if processes > 1:
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            port = store.port
        self._store = store  # lives as long as the group
        self._members: list[tuple[Any, Connection]] = []
        started = time.perf_counter()
        with _environment({"OMP_NUM_THREADS": str(threads), **(environment or {})}):
            for rank in range(processes):
                ours, theirs = context.Pipe()
                arguments = (theirs, kind, threads, rank, processes, port or 0)
                process = context.Process(target=_serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._members.append((process, ours))
        self.start_up = max(self._answers()) - started
        """Seconds until all processes had their imports and knew each other."""

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        """Sends a command to all processes; returns their answers."""
        for _, pipe in self._members:
            pipe.send((command, arguments))
        return self._answers()

    def seconds(self, command: str, *arguments: Any) -> float:
        """The duration of a command that returns its start and end time."""
        starts, ends = zip(*self.ask(command, *arguments), strict=True)
        return float(max(ends) - min(starts))

    def models(self) -> np.ndarray:
        """Every agent's parameters, [agents, D]."""
        return np.concatenate(self.ask("models"))

    def close(self) -> None:
        """Ends the processes."""
        for _, pipe in self._members:
            try:
                pipe.send(("stop", ()))
            except OSError:
                continue
        for process, _ in self._members:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()

    def _answers(self) -> list[Any]:
        answers = []
        for process, pipe in self._members:
            try:
                fine, answer = pipe.recv()
            except EOFError:
                process.join(timeout=5)
                raise RuntimeError(f"a contestant died, code {process.exitcode}") from None
            if not fine:
                self.close()
                raise RuntimeError(answer)
            answers.append(answer)
        return answers


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(frozen=True)
class Entry:
    """A row of the table of contestants."""

    name: str
    kind: str
    processes: Callable[[int], int]
    """How many, for a number of agents."""
    threads: int = 1
    most_agents: int = sys.maxsize

    def start(self, agents: int) -> Contestant:
        return Contestant(self.kind, self.processes(agents), self.threads)


ENTRIES: Sequence[Entry] = (
    Entry("textbook, 1 thread", "textbook", lambda agents: 1, most_agents=1_000),
    Entry("textbook, 2 threads", "textbook", lambda agents: 1, threads=2, most_agents=1_000),
    Entry("one process each", "one process each", lambda agents: agents, most_agents=20),
    Entry("parley, 1 worker", "parley", lambda agents: 1),
    Entry("parley, 2 threads", "parley", lambda agents: 1, threads=2),
    Entry("parley, 2 workers", "parley", lambda agents: 2),
)
