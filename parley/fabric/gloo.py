"""The processes of a `torch.distributed` group, all connected with all.

Values go directly from each member to every other. The collectives of gloo pass them on from member
to member, where each could change what is not its own; here a member can only speak for itself.

A member that fails says why in the common store before it closes its connections, from which the
others notice; one that did not say anything has died.
"""

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from parley.errors import ParleyError
from parley.fabric.base import Fabric, Member, Part, Silent, WorkerLost
from parley.fabric.failure import read_failure, written_failure
from parley.process import last_words, without_groups

log = logging.getLogger(__name__)

FAILURE = "parley/failure"
"""Where the first process to fail says why."""
ENDED = "parley/ended"
"""How many processes have seen it."""
LEFT = "parley/left"
"""Which processes left on purpose, before closing their connections."""
PARTING = 10.0
"""Seconds that processes on busy hosts have to end on their own once one has failed."""
ROLL_CALL = 30.0
"""Upper limit, in seconds, for a process on a busy host to notice that another was lost."""

T = TypeVar("T")


class StoreLost(ParleyError):
    """The process that keeps the store can no longer be reached."""

    def __init__(self, why: str) -> None:
        self.why = why
        where = ":".join(os.environ.get(k, "?") for k in ("MASTER_ADDR", "MASTER_PORT"))
        super().__init__(
            f"workers: the host that keeps the common store ({where}) is gone or does not answer "
            f"({why}); start all hosts again with the same command and --resume"
        )


def ask(question: Callable[[], T], seconds: float) -> T:
    """An answer from the store, or an error saying that the store was lost.

    A store whose process is stopped or whose host is cut off does not answer, and its client would
    wait forever, so it is queried in a thread that can be abandoned.

    >>> ask(lambda: 1, 10)
    1
    """
    answers: list[T] = []
    errors: list[Exception] = []

    def put() -> None:
        try:
            answers.append(question())
        except Exception as error:
            errors.append(error)

    asking = threading.Thread(target=put, daemon=True)
    asking.start()
    asking.join(seconds)
    if errors and not isinstance(errors[0], RuntimeError):
        raise errors[0]
    if not answers:
        raise StoreLost(_line(errors[0]) if errors else f"no answer for {seconds:g} seconds")
    return answers[0]


class Gloo(Fabric):
    """The processes of the group that is there, by gloo, or by NCCL between GPUs."""

    def __init__(
        self, patience: float = 600.0, store: Store | None = None, local: bool = False
    ) -> None:
        """`store` is where a process that fails says why; `local`: all are on this machine."""
        members = [Member(f"worker {rank}") for rank in range(dist.get_world_size())]
        super().__init__(dist.get_rank(), members, patience)
        self.store = store
        self.local = local
        # Gloo moves memory of the CPU; NCCL that of the GPU.
        self.device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        self._under_way: WeakSet[_Work] = WeakSet()
        self._requested: list[int] = []
        """Members from which something is being requested just now."""
        self._ends = ExitStack()
        self._ends.enter_context(last_words(self._given_up))

    def exchange(self, leaving: Sequence[Part], arriving: Sequence[Part]) -> Sequence["_Work"]:
        """Begins to send some bytes, and to receive others in the places given for them."""
        # Gloo tells a sender that its message is awaited on the connection that also carries this
        # member's message, behind which it would queue: the directions would take turns.
        receipts = [dist.P2POp(dist.irecv, place, source) for source, place in arriving]
        messages = receipts + [dist.P2POp(dist.isend, bytes_, to) for to, bytes_ in leaving]
        if not messages:
            return []
        peers = [message.peer for message in messages]
        sources = [source for source, _ in arriving]
        # A message may arrive, and be found wrong, before its request has been returned.
        self._requested = sources
        with _reaching(*dict.fromkeys(peers)):
            works = dist.batch_isend_irecv(messages)
        if len(works) == len(messages):
            each = zip(messages, works, strict=True)
            made = [_Work(self, [m.peer], [m.peer] * (m.op is dist.irecv), w, m) for m, w in each]
        else:  # NCCL makes one of all
            made = [_Work(self, peers, sources, work, messages) for work in works]
        self._under_way.update(made)
        self._requested = []
        return made

    def fail(self, error: ParleyError, waits: bool = True) -> ParleyError:
        """Tells the others why this member ends, unless another was first; returns the error of the
        first. `waits`: until they have heard it."""
        if isinstance(error, StoreLost) or self.store is None:
            return error
        if isinstance(error, WorkerLost):
            self._leave(self.store)
            self.close(error)
            first = self._explained(self.store, error)
        else:
            first = self._reported(self.store, error)
            self.close(error)
        with suppress(StoreLost):
            self._part(self.store, first, waits)
        return first

    def told(self) -> ParleyError | None:
        """The error of the first process that failed, if any."""
        store = self.store
        if store is not None:
            with suppress(StoreLost):  # it may be lost as well
                if self._ask(lambda: store.check([FAILURE])):
                    said = self._ask(lambda: store.get(FAILURE))
                    return read_failure(said.decode("utf-8", "replace"))
        return None

    def close(self, failure: BaseException | None = None) -> None:
        """Closes all connections, which tells the others that this process leaves.

        Gloo keeps a connection open for as long as a request on it exists, and the frames that a
        `failure` went through hold requests: the others would wait for this process until it ends.
        """
        self._ends.close()
        seen: set[int] = set()
        while failure is not None and id(failure) not in seen:
            seen.add(id(failure))
            traceback.clear_frames(failure.__traceback__)
            failure = failure.__cause__ or failure.__context__
        disconnect()

    def _given_up(self) -> str:
        late = {source for work in list(self._under_way) for source in work.awaited}
        names = [str(self.members[rank]) for rank in sorted(late.union(self._requested))]
        who = " or ".join(names) or "another worker"
        error = ParleyError(f"workers: {who} sent a message that is too long")
        return str(error if self.store is None else self._reported(self.store, error))

    def _reported(self, store: Store, error: ParleyError) -> ParleyError:
        """Says why this process ends, unless another was first; returns the first report."""
        line = str(error)
        if len(self.members) > int(os.environ.get("LOCAL_WORLD_SIZE", len(self.members))):
            line = f"{line} (reported by worker {self.me} on {self.host})"
        note = first = written_failure(error.saying(line))
        with suppress(StoreLost):
            said = self._ask(lambda: store.compare_set(FAILURE, "", note))
            first = said.decode("utf-8", "replace")
        return error if first == note else read_failure(first)

    def _leave(self, store: Store) -> None:
        """Announces that this process closes its connections, so that it does not count as dead."""
        with suppress(StoreLost):
            self._ask(lambda: store.set(f"{LEFT}/{self.me}", "1"))

    def _explained(self, store: Store, lost: WorkerLost) -> ParleyError:
        """Which member was lost, or why all end, given that one could not be reached.

        A process that ends because of another announces that before it closes its connections. One
        that did not has died; the process that was waiting for it names it to the others.
        """
        if isinstance(lost, Silent):
            return self.told() or self._reported(store, lost)
        began = time.monotonic()
        everyone = lost.workers or range(len(self.members))
        others = [rank for rank in everyone if rank != self.me]
        try:
            while True:
                if (error := self.told()) is not None:
                    return error
                keys = {rank: f"{LEFT}/{rank}" for rank in others}
                gone = [r for r, key in keys.items() if not self._ask(lambda: store.check([key]))]  # noqa: B023
                # Messages name their senders, sums do not: there, others may still show up.
                certain = gone and (lost.workers or len(gone) == 1 == len(others))
                # If several are suspects, the living ones among them are only slow to notice.
                patience = PARTING if len(gone) < 2 else min(ROLL_CALL, self.patience)
                if certain or time.monotonic() > began + patience:
                    break
                time.sleep(0.02)
        except StoreLost as error:
            return error
        if not gone:
            return lost
        who = " or ".join(str(self.members[rank]) for rank in gone)
        how = "no answer in time" if lost.timed_out else "its connection was closed"
        then = "start all again with --resume, or let torchrun --max-restarts do so"
        words = f"workers: lost {who} ({how}); {then}"
        return self._reported(store, WorkerLost(words, gone, lost.timed_out))

    def _part(self, store: Store, error: ParleyError, waits: bool) -> None:
        """After a failure: gives the others a moment to read about it, since the store may end
        with this process. Members that were lost are not waited for."""
        deadline = time.monotonic() + PARTING
        living = len(self.members) - (len(error.workers) if isinstance(error, WorkerLost) else 0)
        heard = self._ask(lambda: store.add(ENDED, 1))
        while waits and heard < living and time.monotonic() < deadline:
            time.sleep(0.05)
            heard = self._ask(lambda: store.add(ENDED, 0))

    def _ask(self, question: Callable[[], T]) -> T:
        return ask(question, self.patience)


class _Work:
    """Something that `torch.distributed` does with some members."""

    def __init__(
        self,
        fabric: Gloo,
        peers: Sequence[int],
        sources: Sequence[int],
        work: dist.Work,
        messages: object,
    ) -> None:
        self._fabric = fabric
        self._peers = peers
        self._sources = sources
        self._work = work
        self._messages = messages  # whose bytes have to stay until they are sent

    @property
    def awaited(self) -> Sequence[int]:
        """Members whose bytes have not arrived."""
        return () if self._work.is_completed() else self._sources

    def wait(self) -> None:
        """Returns once it is done; otherwise says which member was lost."""
        with _reaching(*self._peers):
            self._work.wait(timedelta(seconds=self._fabric.patience))


@contextmanager
def _reaching(*peers: int) -> Iterator[None]:
    """Turns a connection error into one saying that a member (one of these) was lost."""
    try:
        yield
    except RuntimeError as error:
        # Gloo's message is for its developers: file, line, and debugging settings.
        timed_out = "imed out" in str(error) or "imeout" in str(error)
        why = "it did not answer in time" if timed_out else "it closed its connection"
        who = " or ".join(map(str, peers))
        raise WorkerLost(f"workers: lost worker {who} ({why})", peers, timed_out) from None


def disconnect() -> None:
    """Ends the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
    without_groups()


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
