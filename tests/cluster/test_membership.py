"""Who takes part in the next generation, whatever happens while that is decided."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from parley.cluster.heal import Membership
from parley.cluster.join import Meeting, RejoinRequest, Roster
from parley.cluster.worker import Worker
from parley.errors import ParleyError
from parley.training.events import EpochDone

WORLD, PATIENCE = 3, 60.0
SHORT = 1.0
"""Where somebody is waited for in vain."""


def member(store: dist.HashStore, rank: int, patience: float = PATIENCE) -> Membership:
    return Membership(Meeting(rank, WORLD, patience, heals=True, store=store))


def together(members: dict[int, Membership], left: bool) -> dict[int, Roster | str]:
    """What each of them comes to, all at the same time."""
    found: dict[int, Roster | str] = {}

    def one(rank: int, membership: Membership) -> None:
        try:
            found[rank] = membership.next_roster(left)
        except ParleyError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=one, args=item) for item in members.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_one_that_dies_right_after_settling_a_roster() -> None:
    """The others know from the roster itself that its generation has been."""
    store = dist.HashStore()
    store.set("roster/0", "[0, 1, 2]")  # its last act
    living = {rank: member(store, rank, 5 * SHORT) for rank in (0, 1)}
    for membership in living.values():
        membership._last = 0
    assert together(living, left=True) == dict.fromkeys((0, 1), Roster(1, (0, 1)))


def test_everyone_comes() -> None:
    store = dist.HashStore()
    everyone = {rank: member(store, rank) for rank in range(WORLD)}
    assert not everyone[0].begun()
    for generation in range(3):
        expected = Roster(generation, (0, 1, 2))
        assert set(together(everyone, left=generation > 0).values()) == {expected}
    assert member(store, 1).begun()


@contextmanager
def at_work(store: dist.HashStore) -> Iterator[None]:
    """A generation that shows signs of life."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            store.add("beat", 1)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_one_that_was_left_behind_does_not_go_on_alone() -> None:
    """It was in generation 0; the others have begun generation 1 without it."""
    store = dist.HashStore()
    store.set("roster/0", "[0, 1, 2]")
    store.set("roster/1", "[0, 1]")
    late = member(store, 2, SHORT)
    late._last = 0
    found: list[Roster] = []
    thread = threading.Thread(target=lambda: found.append(late.next_roster(left=True)))
    with at_work(store):
        thread.start()
        time.sleep(3 * SHORT)
        assert not store.check(["roster/2"]), "it knocks, and waits to be let in"
        store.set("roster/2", "[0, 1, 2]")
        thread.join()
    assert found == [Roster(2, (0, 1, 2))]


def test_a_dropped_worker_is_told_and_nobody_waits_for_it() -> None:
    store = dist.HashStore()
    everyone = {rank: member(store, rank) for rank in range(WORLD)}
    together(everyone, left=False)
    everyone[0].drop(1, "suspicious: \x1b[31magent 1 sent noise")
    found = together(everyone, left=True)
    assert found[0] == found[2] == Roster(1, (0, 2))
    assert found[1] == (
        "workers: the others continue without this host: suspicious: [31magent 1 sent noise"
    )


@pytest.mark.parametrize("said", ["nonsense", "[7]", "[0, 0]", '{"a": 1}'])
def test_a_roster_that_nobody_honest_wrote(said: str) -> None:
    store = dist.HashStore()
    store.set("roster/0", said)
    with pytest.raises(ParleyError, match="roster"):
        member(store, 0)._settle(0, left=False)


@pytest.mark.parametrize("last", [False, True])
def test_nobody_is_let_in_once_the_run_has_ended(last: bool) -> None:
    """A callback or a condition can end it before its last epoch: it must not go on for a worker
    that waits just then."""
    seen: list[Any] = []
    worker: Any = SimpleNamespace(
        meeting=SimpleNamespace(apart=False), assignment=SimpleNamespace(watch=seen.append)
    )
    membership: Any = SimpleNamespace(beat=lambda: None, waiting=lambda generation: True)
    run: Any = SimpleNamespace(transport=SimpleNamespace(each=lambda value: value[None]))
    event = EpochDone(3, None, last)
    with nullcontext() if last else pytest.raises(RejoinRequest):
        Worker._each(worker, membership, Roster(0, (0, 1)), run, 0, event)
    assert seen == [event]
