"""Meeting: how the processes of a run find each other, connect, and end together."""

import hashlib
import logging
import os
import signal
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from parley.cluster import handshake
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.fabric.base import Fabric, WorkerLost
from parley.fabric.board import Board
from parley.fabric.failure import unexpected
from parley.fabric.gloo import PARTING, Gloo, StoreLost, ask, disconnect
from parley.process import variable

log = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds between checks that the launcher is still running."""
LAST_WORDS = 6.0
"""Seconds that a worker whose launcher is gone has to end on its own."""
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Names the network interface that gloo uses."""


class Roster(NamedTuple):
    """Who takes part in a generation: a group of workers that train together."""

    generation: int
    workers: tuple[int, ...]


class RejoinRequest(Exception):
    """A worker is waiting to rejoin: the generation ends to admit it."""


class Consensus(Protocol):
    """How the workers of a run that heals agree on who takes part in its next generation."""

    def begun(self) -> bool:
        """Whether there has been a generation already: then this worker comes back."""
        ...

    def next_roster(self, lost: Collection[int] | None) -> Roster:
        """Waits for the roster of the next generation that includes this worker. The one before has
        ended, since those who are `lost` could not be reached or because another waits to be let
        in; None: this worker was not in it."""
        ...

    def roster(self, generation: int) -> tuple[int, ...]:
        """Who took part in an earlier generation."""
        ...

    def waiting(self, generation: int) -> bool:
        """Whether a worker is waiting to join the generation after this one."""
        ...

    def drop(self, worker: int, why: str) -> None:
        """From now on, all continue without this worker."""
        ...

    def done(self) -> None:
        """Tells workers that come later that the run has ended."""
        ...


@dataclass(frozen=True)
class Gathering(ABC):
    """How the workers of a run come together; this one is number `rank`."""

    rank: int = 0
    world: int = 1
    patience: float = 600.0
    """How many seconds one worker waits for another."""
    heals: bool = False
    """Whether the others continue when one is lost."""
    apart: ClassVar[bool] = False
    """Whether every worker has its own user and its own folder, with all results."""

    @property
    def everyone(self) -> Roster:
        """All workers, as in a run's first generation."""
        return Roster(0, tuple(range(self.world)))

    def label(self, worker: int) -> int | str:
        """What a worker is called in a run's files."""
        return worker

    def seats(self, lobby: Board, agents: int, mine: Sequence[int] | None) -> tuple[int, ...]:
        """The worker of every agent, as all claim them in the lobby."""
        return handshake.seats(lobby, agents, mine)

    def reseated(self, roster: Roster) -> tuple[int, ...] | None:
        """The worker of every agent in a generation; None: as at the start."""
        return None

    def expect(self, agents: int, edges: int, size: int) -> None:  # noqa: B027
        """Called when the model is known: it takes this many bytes."""

    @abstractmethod
    def lobby(self) -> Board:
        """Where the workers communicate before they are connected."""

    @abstractmethod
    def connected(self, roster: Roster) -> AbstractContextManager[Board]:
        """Connects the workers of one generation; gives where they communicate."""

    def consensus(self) -> Consensus | None:
        """How the next generation is agreed on; None: there is one, and all end together."""
        return None

    def survives(self, error: BaseException, final: bool) -> bool:
        """Whether the others go on after this error; `final`: where none could."""
        return False

    @contextmanager
    def ending_together(self, board: Board, final: bool) -> Iterator[None]:
        """When one fails, all end, with the error of the first that failed."""
        fabric = board.fabric
        try:
            yield
        except KeyboardInterrupt as stop:
            if not self.survives(stop, final):
                fabric.fail(self._told(fabric, " was stopped", stop), waits=False)
            raise
        except Exception as error:
            if self.survives(error, final):
                raise
            if isinstance(error, ParleyError):
                first = fabric.fail(error)
                raise (error if first is error else first) from None
            words = f": {error!r}" if fabric.local else f" {unexpected(error)}"
            fabric.fail(self._told(fabric, words, error))
            raise

    def _told(self, fabric: Fabric, words: str, cause: BaseException) -> ParleyError:
        told = ParleyError(f"{fabric.called}: {fabric.own_name}{words}")
        told.__cause__ = cause
        return told


@dataclass(frozen=True, kw_only=True)
class Meeting(Gathering):
    """Where and how the workers of a cluster meet."""

    store: Store
    """Where they find each other, and where one that fails says why."""
    backend: str = "gloo"
    local: bool = False
    """Whether all are on this machine: then nothing is opened to other machines."""

    @cached_property
    def fabric(self) -> Fabric:
        """All workers, connected with each other."""
        self._connect(PrefixStore("connect", self.store))
        return Gloo(self.patience, self.store, self.local)

    def lobby(self) -> Board:
        """Where the workers communicate before they train."""
        return Board(self.fabric)

    @contextmanager
    def connected(self, roster: Roster) -> Iterator[Board]:
        """The same workers as in the lobby."""
        self.fabric.be_patient(self.patience)
        board = Board(self.fabric)
        with closing(self.fabric), self.ending_together(board, final=True):
            yield board

    def _connect(self, store: Store) -> None:
        timeout = timedelta(seconds=self.patience)
        try:
            with _loopback() if self.local else nullcontext():
                ask(
                    lambda: dist.init_process_group(
                        self.backend,
                        store=store,
                        rank=self.rank,
                        world_size=self.world,
                        timeout=timeout,
                    ),
                    3 * self.patience,
                )
        except StoreLost as error:
            disconnect()
            log.debug("not all connected: %s", error.why)
            raise WorkerLost(
                f"workers: the {self.world} processes could not all be connected within "
                f"{self.patience:g} seconds (--patience)"
            ) from None


@contextmanager
def _loopback() -> Iterator[None]:
    """While this is open, new connections are open to this machine only."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if INTERFACE in os.environ or not names:
        yield
        return
    with variable(INTERFACE, names[0]):
        yield


def local_store(patience: float) -> TCPStore:
    """A store for the processes of this machine, which no other can reach."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        # Given no socket, it would listen at every address of this machine.
        return TCPStore(
            "127.0.0.1",
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=patience),
            master_listen_fd=listener.detach(),
        )


def end_with_launcher() -> None:
    """Ends this process when torchrun, which has started it, is gone: even if that was killed."""
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(BEAT)
        try:
            log.error("torchrun is gone, so this worker stops; --resume continues the run")
        finally:  # whatever becomes of the message: a caller's handler may fail
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(LAST_WORDS)
            os._exit(1)  # it may be waiting for others and not hear signals

    threading.Thread(target=watch, daemon=True).start()


def as_launched(experiment: Experiment) -> Meeting:
    """This process as one of those started by torchrun or a similar launcher."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    patience = experiment.patience
    where = ":".join(os.environ.get(key, "?") for key in ("MASTER_ADDR", "MASTER_PORT"))
    log.info("worker %d of %d: waiting for the others at %s", rank, world, where)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_launcher()
    try:
        # Another program may be listening at that address and never answer.
        store = ask(lambda: _store(patience), patience + PARTING)
    except (StoreLost, KeyError, ValueError) as error:
        raise _not_all_came(error, world, patience) from None
    store = _of_this_start(store, rank, world, patience)
    return Meeting(rank, world, patience, store=store, backend=_backend(experiment.device))


def _store(patience: float) -> Store:
    found: Store = next(rendezvous("env://", timeout=timedelta(seconds=patience)))[0]
    return found


def _of_this_start(store: Store, rank: int, world: int, patience: float) -> Store:
    """The part of the launcher's store that belongs to the current processes.

    The store outlives the processes when torchrun restarts them, and what earlier ones left in it
    is stale. Each draws a number, and all publish which numbers they see until all see the same:
    earlier processes cannot have seen the numbers of later ones.
    """
    own = uuid.uuid4().hex
    keys = [f"parley/{what}/{r}" for what in ("start", "seen") for r in range(world)]
    deadline, seen = time.monotonic() + patience, ""

    def look() -> list[bytes]:
        """What all have drawn and seen, if all have; publishes what this one sees."""
        nonlocal seen
        if not store.check(keys[:world]):
            return []
        sight = hashlib.sha256(b",".join(store.multi_get(keys[:world]))).hexdigest()[:16]
        if sight != seen:
            seen = sight
            store.set(f"parley/seen/{rank}", sight)
        return store.multi_get(keys[world:]) if store.check(keys) else []

    try:
        ask(lambda: store.set(keys[rank], own), patience)
        while time.monotonic() < deadline:
            if set(ask(look, patience)) == {seen.encode()}:
                return PrefixStore(seen, store)
            time.sleep(0.02)
        came = ask(lambda: [store.check([key]) for key in keys[:world]], patience)
    except StoreLost as error:
        raise _not_all_came(error, world, patience) from None
    missing = ", ".join(str(r) for r, is_there in enumerate(came) if not is_there)
    who = f"worker {missing} is missing" if missing else "some are restarting"
    raise _not_all_came(ParleyError(who), world, patience)


def _not_all_came(error: Exception, world: int, patience: float) -> ParleyError:
    words = error.why if isinstance(error, StoreLost) else str(error).splitlines()[0]
    port = os.environ.get("MASTER_PORT", "")
    if "EADDRINUSE" in words or "address already in use" in words:
        valid = "a free port for MASTER_PORT or --rdzv-endpoint, the same on all hosts"
        return BadValue("port", port, valid, "another program on this host uses it")
    return ParleyError(
        f"workers: the launcher announced {world} processes, which did not all join within "
        f"{patience:g} seconds (--patience): {words}"
    )


def _backend(device: str) -> str:
    """NCCL if every process on this host has its own GPU, otherwise gloo."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if device != "cuda" or not dist.is_nccl_available() or torch.cuda.device_count() < here:
        return "gloo"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    return "nccl"
