"""What the processes of a run tell each other in words, through their common store.

Before the first message between agents the processes say who hosts whom and what each has loaded,
and all compare (`handshake`). Whoever fails says why, so that every host can say it too. What is
told is JSON, never code.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store

from parley.errors import ParleyError
from parley.wire.transport import WorkerLost

FAILURE = "parley/failure"
"""Where the first process that fails says why."""
ENDED = "parley/ended"
"""How many processes have heard of it."""
PARTING = 3.0
"""Seconds that processes have to end by themselves once one has failed."""

T = TypeVar("T")


class StoreLost(ParleyError):
    """The process that keeps the store can no longer be reached."""

    def __init__(self, why: str) -> None:
        self.why = why
        where = ":".join(os.environ.get(k, "?") for k in ("MASTER_ADDR", "MASTER_PORT"))
        super().__init__(
            f"workers: the host that keeps the common store ({where}) has gone or does not answer "
            f"({why}); start all hosts again with the same command and --resume"
        )


def ask(question: Callable[[], T], seconds: float) -> T:
    """An answer of the store, or the error that says that it has gone.

    A store whose process is stopped or whose host is cut off does not answer, and its client would
    wait for ever: it is asked in a thread that can be left behind.

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


class Peers:
    """The processes of a run, of which this is number `rank`; without a store it is alone.

    >>> Peers().share("agents", [0, 1])
    [[0, 1]]
    """

    def __init__(
        self,
        store: Store | None = None,
        rank: int = 0,
        world: int = 1,
        patience: timedelta = timedelta(minutes=10),
        root: Store | None = None,
        once: bool = False,
    ) -> None:
        self.store = store
        self.root = root or store
        """Where failures are told, if not in the store itself."""
        self.rank = rank
        self.world = world
        self.patience = patience.total_seconds()
        """How many seconds one waits for another."""
        self.once = once
        """Whether what was said once stays said, by whoever comes back with the same number."""
        self._shared = 0

    def share(self, what: str, value: Any) -> list[Any]:
        """What every process has to say about something, in the order of their numbers."""
        text, store = json.dumps(value), self.store
        if store is None:
            return [json.loads(text)]
        self._shared += 1  # all ask the same questions in the same order
        keys = [f"parley/{self._shared}/{what}/{rank}" for rank in range(self.world)]
        own = keys[self.rank]
        self._ask(lambda: store.compare_set(own, "", text) if self.once else store.set(own, text))
        deadline, pause = time.monotonic() + self.patience, 0.005
        while not self._ask(lambda: store.check(keys)):
            self.raise_told()
            if time.monotonic() > deadline:
                silent = [r for r, k in enumerate(keys) if not self._ask(lambda: store.check([k]))]  # noqa: B023
                raise WorkerLost(
                    f"workers: worker {', '.join(map(str, silent))} said nothing about its {what} "
                    f"for {self.patience:g} seconds (--patience)"
                )
            time.sleep(pause)
            pause = min(1.5 * pause, 0.1)
        return [json.loads(said) for said in self._ask(lambda: store.multi_get(keys))]

    def fail(self, error: Exception) -> ParleyError:
        """Says why this process ends, unless another has before; returns what was said first."""
        words, store = str(error), self.root
        if store is None:
            return ParleyError(words)
        elsewhere = self.world > int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        said = f"{words} (said by worker {self.rank} on {here()})" if elsewhere else words
        first = said
        with suppress(StoreLost):
            first = self._ask(lambda: store.compare_set(FAILURE, "", said)).decode()
        return ParleyError(words if first == said else first)

    def told(self) -> ParleyError | None:
        """What the first that failed said, if one has."""
        store = self.root
        if store is not None:
            with suppress(StoreLost):  # it may have gone as well
                if self._ask(lambda: store.check([FAILURE])):
                    return ParleyError(self._ask(lambda: store.get(FAILURE)).decode())
        return None

    def raise_told(self) -> None:
        """Ends this process too if another has failed."""
        if (error := self.told()) is not None:
            raise error

    def part(self) -> None:
        """After a failure: gives the others a moment to hear of it, as the store may end with
        this process."""
        store, deadline = self.root, time.monotonic() + PARTING
        if store is None:
            return
        with suppress(StoreLost):
            heard = self._ask(lambda: store.add(ENDED, 1))
            while heard < self.world and time.monotonic() < deadline:
                time.sleep(0.05)
                heard = self._ask(lambda: store.add(ENDED, 0))

    def _ask(self, question: Callable[[], T]) -> T:
        return ask(question, self.patience)


def speaks() -> bool:
    """Whether this process tells the user of this host what happens: one on each host does."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) == 0


def here() -> str:
    """This host's name."""
    return socket.gethostname()


def listed(numbers: Sequence[int]) -> str:
    """Agents in words.

    >>> listed([3]), listed([0, 1])
    ('agent 3', 'agents 0, 1')
    """
    return f"agent{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
