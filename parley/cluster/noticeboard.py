"""Notes that the processes of a run exchange through their common store.

Before the first message between agents, the processes announce who hosts which agents and what each
has loaded, and all compare (`handshake`). A process that fails says why, so that every host can
report it. Notes are JSON, never code.
"""

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from torch._C._distributed_c10d import Store

from parley.cluster import messages
from parley.cluster.rank import here
from parley.errors import Diverged, ParleyError
from parley.wire.transport import WorkerLost

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


class Silent(WorkerLost):
    """Some process has not provided what every process has to."""


class Member(NamedTuple):
    """A process of the run, as it introduced itself."""

    host: str
    agents: tuple[int, ...]


class Board(ABC):
    """Where the processes of a run exchange information; this process is number `rank`."""

    def __init__(
        self, rank: int, world: int, patience: float, members: Mapping[int, Member] | None = None
    ) -> None:
        self.rank = rank
        self.world = world
        self.patience = patience
        """How many seconds one process waits for another."""
        self.members = dict(members or {})
        """The processes that have introduced themselves."""
        self.host = here()
        """The name under which this process introduces itself."""

    def wait_at_least(self, seconds: float) -> None:
        """Raises the patience to at least this many seconds."""
        self.patience = max(seconds, self.patience)

    @abstractmethod
    def name(self, rank: int) -> str:
        """A process as text."""

    @abstractmethod
    def share(self, what: str, value: Any, kind: Any) -> list[Any]:
        """Every process's value for something, in the order of their numbers.

        `kind` is the type that it has, as pydantic understands it: anything else is refused.
        """


class Noticeboard(Board):
    """Where the processes of a run exchange information; this process is number `rank`.

    Without a store this process is alone.

    >>> Noticeboard().share("agents", [0, 1], list[int])
    [[0, 1]]
    """

    def __init__(
        self,
        store: Store | None = None,
        rank: int = 0,
        world: int = 1,
        patience: timedelta = timedelta(minutes=10),
        root: Store | None = None,
        members: Mapping[int, Member] | None = None,
    ) -> None:
        self.store = store
        self.root = root or store
        """Where failures are reported, if not in the store itself."""
        super().__init__(rank, world, patience.total_seconds(), members)
        self._shared = 0

    def name(self, rank: int) -> str:
        """A process as text: its number, host and agents."""
        if (member := self.members.get(rank)) is None:
            return f"worker {rank}"
        return f"worker {rank} ({member.host}, {listed(member.agents)})"

    def share(self, what: str, value: Any, kind: Any) -> list[Any]:
        """Every process's value for something, in the order of their numbers.

        `kind` is the type that it has, as pydantic understands it: anything else is refused.
        """
        text, store = json.dumps(value), self.store
        if store is None:
            return [messages.understood(text, kind, "this process", what)]
        self._shared += 1  # all share the same things in the same order
        keys = [f"parley/{self._shared}/{what}/{rank}" for rank in range(self.world)]
        self._say(store, keys[self.rank], text)
        deadline, pause = time.monotonic() + self.patience, 0.005
        while not self._ask(lambda: store.check(keys)):
            self.raise_told()
            if time.monotonic() > deadline:
                silent = [r for r, k in enumerate(keys) if not self._ask(lambda: store.check([k]))]  # noqa: B023
                who = ", ".join(self.name(rank) for rank in silent)
                raise Silent(
                    f"workers: {who} did not report its {what} "
                    f"within {self.patience:g} seconds (--patience)",
                    silent,
                )
            time.sleep(pause)
            pause = min(1.5 * pause, 0.1)
        heads = self._ask(lambda: store.multi_get(keys))
        return [
            messages.understood(
                self._heard(store, key, head.decode("utf-8", "replace")), kind, who, what
            )
            for key, head, who in zip(keys, heads, map(self.name, range(self.world)), strict=True)
        ]

    def _say(self, store: Store, key: str, text: str) -> None:
        """Puts a text under a key: the text behind =, or behind # the number of its parts."""
        parts = messages.parts(text)
        for number, part in enumerate(parts if len(parts) > 1 else ()):
            self._ask(partial(store.set, f"{key}/{number}", part))
        head = f"={text}" if len(parts) == 1 else f"#{len(parts)}"
        self._ask(partial(store.set, key, head))

    def _heard(self, store: Store, key: str, head: str) -> str:
        """The text under a key; empty, which no reader accepts, if it is too long."""
        if head.startswith("="):
            return head[1:]
        count = head.removeprefix("#")
        if not count.isdecimal() or len(count) > 6 or int(count) * messages.PART > messages.LIMIT:
            return ""
        keys = [f"{key}/{number}" for number in range(int(count))]
        if not self._ask(lambda: store.check(keys)):
            return ""
        found = [self._ask(partial(store.get, key)) for key in keys]
        return b"".join(found).decode("utf-8", "replace")

    def fail(self, said: ParleyError) -> ParleyError:
        """Reports why this process ends, unless another was first; returns the first report."""
        store = self.root
        if store is None:
            return said
        line = str(said)
        if self.world > int(os.environ.get("LOCAL_WORLD_SIZE", self.world)):
            line = f"{line} (reported by worker {self.rank} on {here()})"
        note = written_failure(said.saying(line))
        first = note
        with suppress(StoreLost):
            first = self._ask(lambda: store.compare_set(FAILURE, "", note)).decode(
                "utf-8", "replace"
            )
        return said if first == note else read_failure(first)

    def told(self) -> ParleyError | None:
        """The error of the first process that failed, if any."""
        store = self.root
        if store is not None:
            with suppress(StoreLost):  # it may be lost as well
                if self._ask(lambda: store.check([FAILURE])):
                    said = self._ask(lambda: store.get(FAILURE))
                    return read_failure(said.decode("utf-8", "replace"))
        return None

    def raise_told(self) -> None:
        """Ends this process too if another has failed."""
        if (error := self.told()) is not None:
            raise error

    def leave(self) -> None:
        """Announces that this process closes its connections, so that it does not count as dead."""
        store = self.store
        if store is not None:
            with suppress(StoreLost):
                self._ask(lambda: store.set(f"{LEFT}/{self.rank}", "1"))

    def explain(self, lost: WorkerLost) -> ParleyError:
        """Which worker was lost, or why all end, given that one could not be reached.

        A process that ends because of another announces that before it closes its connections. One
        that did not has died; the process that was waiting for it names it to the others.
        """
        store, began = self.store, time.monotonic()
        if store is None or isinstance(lost, Silent):
            return self.told() or self.fail(lost)
        others = [rank for rank in lost.workers or range(self.world) if rank != self.rank]
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
        who = " or ".join(self.name(rank) for rank in gone)
        how = "no answer in time" if lost.timed_out else "its connection was closed"
        then = "start all again with --resume, or let torchrun --max-restarts do so"
        return self.fail(WorkerLost(f"workers: lost {who} ({how}); {then}", gone, lost.timed_out))

    def part(self, error: ParleyError) -> None:
        """After a failure: gives the others a moment to read about it, since the store may end
        with this process. Workers that were lost are not waited for."""
        store, deadline = self.root, time.monotonic() + PARTING
        living = self.world - (len(error.workers) if isinstance(error, WorkerLost) else 0)
        if store is None:
            return
        with suppress(StoreLost):
            heard = self.end()
            while heard < living and time.monotonic() < deadline:
                time.sleep(0.05)
                heard = self._ask(lambda: store.add(ENDED, 0))

    def end(self) -> int:
        """Says that this process ends, and is to be waited for no longer; how many have said so."""
        store = self.root
        return self._ask(lambda: store.add(ENDED, 1)) if store is not None else 1

    def _ask(self, question: Callable[[], T]) -> T:
        return ask(question, self.patience)


def written_failure(error: ParleyError) -> str:
    """An error as it is reported to others: its message, and its type where that matters."""
    said: dict[str, Any] = {"words": str(error)}
    if isinstance(error, Diverged):
        said |= {"step": error.step, "epoch": error.epoch}
    if isinstance(error, WorkerLost):
        said |= {"lost": list(error.workers)}
    return json.dumps(said)


def unexpected(error: Exception) -> str:
    """An error that is a mistake in some code, as it is reported to other hosts.

    Its message may quote data of this host, so only its kind is passed on.

    >>> unexpected(ValueError("could not convert string to float: 'Jane Doe'"))
    'failed with a ValueError; its own output says more'
    """
    kind = type(error).__name__
    article = "an" if kind[0] in "AEIOU" else "a"
    return f"failed with {article} {kind}; its own output says more"


def read_failure(note: str) -> ParleyError:
    """An error that another process reported.

    >>> read_failure(written_failure(Diverged("loss: nan", step=7, epoch=2))).step
    7
    """
    try:
        said = messages.understood(note, messages.Failure, "another process", "failure")
    except ParleyError as error:
        return error
    if "step" in said:
        return Diverged(said["words"], said["step"], said.get("epoch", 0))
    if "lost" in said:
        return WorkerLost(said["words"], said["lost"])
    return ParleyError(said["words"])


def listed(numbers: Sequence[int]) -> str:
    """Agents as text.

    >>> listed([3]), listed([0, 1])
    ('agent 3', 'agents 0, 1')
    """
    return f"agent{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
