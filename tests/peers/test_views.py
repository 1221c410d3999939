"""The protocols of peers under a simulated network and clock: a failing seed is a reproduction."""

import os
import random
from collections import deque

import pytest

from parley.peers.frames import BadFrame, Session
from parley.peers.views import View, Views
from tests.peers.simulation import PATIENCE, World

SEEDS = int(os.environ.get("PARLEY_SEEDS", "60"))
"""Stories that are told; thousands take minutes."""
FORGETFUL = {3: (105, 169), 4: (17, 33, 111), 5: (67, 155)}
"""Those with two views of one number if a peer votes again after it has lost its disk."""


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7])
def test_never_two_views_of_one_number_and_training_goes_on(size: int) -> None:
    """In every other story disks are lost too, perhaps too many for anybody to go on."""
    for seed in (*range(SEEDS // 4), *FORGETFUL.get(size, ())):
        world = World(seed, size, wipes=seed % 2 == 1)
        for _ in range(20):
            world.run(world.now + world.random.uniform(0.1, 2 * PATIENCE))
            world.harm()
        world.mend()
        world.run(world.now + 30 * PATIENCE)
        for node in world.nodes:
            world.begun(node)  # what it knows is what all know
        where = f"seed {seed}, size {size}"
        if not world.majority_left():
            assert world.wipes, where
            assert all(node.training == -1 for node in world.nodes), where
            continue
        newest = world.nodes[0].views.number
        assert [node.training for node in world.nodes] == [newest] * size, where
        before = [node.step for node in world.nodes]
        world.run(world.now + PATIENCE)
        assert all(n.step > b for n, b in zip(world.nodes, before, strict=True)), where


@pytest.mark.parametrize("first", range(3))
def test_any_one_of_three_may_die_and_the_others_go_on(first: int) -> None:
    world = World(first, 3)
    world.loss = 0.0
    world.run(2.0)
    world.nodes[first].crash()
    world.run(world.now + 4 * PATIENCE)
    alive = [node for node in world.nodes if node.alive]
    assert {node.training for node in alive} == {1}
    assert alive[0].views.members == tuple(node.number for node in alive)
    world.nodes[first].start()
    world.run(world.now + 4 * PATIENCE)
    assert {node.training for node in world.nodes} == {2}
    told = [view.members for view in world.nodes[0].views.views]
    assert told == [(0, 1, 2), alive[0].views.views[1].members, (0, 1, 2)]


def test_of_a_split_the_larger_part_goes_on_and_the_smaller_waits() -> None:
    world = World(3, 5)
    world.loss = 0.0
    world.run(1.0)
    world.side = [0, 1, 0, 1, 0]
    world.run(world.now + 6 * PATIENCE)
    assert [node.training for node in world.nodes] == [1, -1, 1, -1, 1]
    assert world.nodes[0].views.members == (0, 2, 4)
    steps = [node.step for node in world.nodes]
    world.side = [0] * 5
    world.run(world.now + 6 * PATIENCE)
    assert {node.training for node in world.nodes} == {world.nodes[0].views.number}
    assert world.nodes[0].views.members == (0, 1, 2, 3, 4)  # one after the other, perhaps
    assert all(node.step > step for node, step in zip(world.nodes, steps, strict=True))


@pytest.mark.parametrize("size", [3, 5])
def test_newcomers_join_and_whoever_is_removed_is_out_whatever_else_happens(size: int) -> None:
    waited = 0
    for seed in range(SEEDS // 4):
        world = World(seed, size, wipes=seed % 2 == 1)
        removed = world.random.randrange(size)
        for turn in range(20):
            world.run(world.now + world.random.uniform(0.1, 2 * PATIENCE))
            world.harm()
            if turn == 5:
                world.publish(world.revisions[-1] | {size})
            elif turn == 12:
                world.publish(world.revisions[-1] - {removed})
        world.mend()
        world.run(world.now + 40 * PATIENCE)
        where = f"seed {seed}, size {size}"
        inside = [node for node in world.nodes if node.number != removed]
        for node in world.nodes:
            world.begun(node)
        assert world.nodes[removed].training == -1, where
        if not world.majority_left():
            waited += 1  # with the removed node the last majority was lost: the others wait
            continue
        newest = inside[0].views.number
        assert [node.training for node in inside] == [newest] * size, where
        assert inside[0].views.members == tuple(node.number for node in inside), where
    assert waited <= SEEDS // 8


def test_whoever_is_accused_is_out_and_the_others_go_on() -> None:
    for seed in range(SEEDS // 4):
        world = World(seed, 5)
        accused, accuser = world.random.sample(range(5), 2)
        world.run(1.0)
        world.nodes[accuser].accuse(accused)
        for _ in range(10):
            world.run(world.now + world.random.uniform(0.1, 2 * PATIENCE))
            world.harm()
        world.mend()
        world.run(world.now + 40 * PATIENCE)
        inside = [node for node in world.nodes if node.number != accused]
        assert world.nodes[accused].expelled, f"seed {seed}"
        assert {node.training for node in inside} == {inside[0].views.number}, f"seed {seed}"
        assert inside[0].views.members == tuple(node.number for node in inside)


def test_half_of_the_peers_is_no_majority() -> None:
    world = World(4, 4)
    world.loss = 0.0
    world.run(1.0)
    world.side = [0, 0, 1, 1]
    world.run(world.now + 6 * PATIENCE)
    assert [node.training for node in world.nodes] == [-1] * 4
    world.side = [0] * 4
    world.run(world.now + 6 * PATIENCE)
    assert len({node.training for node in world.nodes} - {-1}) == 1
    assert world.nodes[0].views.members == (0, 1, 2, 3)


EVERYONE = View((0, 1, 2), 1, ("a", "b", "c"))


@pytest.mark.parametrize(("size", "lost", "stuck"), [(2, 1, False), (3, 1, False), (3, 2, True)])
def test_too_many_lost_disks_are_noticed(size: int, lost: int, stuck: bool) -> None:
    world = World(0, size)
    world.loss = 0.0
    world.run(1.0)
    for node in world.nodes[:lost]:
        node.wipe()
        node.start()
    survivor = world.nodes[-1]
    noticed = []
    for _ in range(60):
        world.run(world.now + 0.25 * PATIENCE)
        noticed.append(survivor.views.stuck())
    assert any(noticed) == stuck
    assert (survivor.training == survivor.views.number) != stuck


def test_a_promise_outlives_a_restart() -> None:
    kept: list[dict[str, object]] = []
    views = Views(1, EVERYONE, PATIENCE, "b", kept.append)
    said = views.hear(0.0, 0, {"kind": "prepare", "next": 1, "ballot": [5, 0]})
    assert [message["kind"] for message in said] == ["promise"]
    agreed = [[0, 1], 1, ["a", "b"]]
    views.hear(0.0, 0, {"kind": "accept", "next": 1, "ballot": [5, 0], "view": agreed})
    again = Views(1, EVERYONE, PATIENCE, "d", kept.append, kept[-1])
    assert again.memory == "b" and again.inside
    assert again.hear(0.0, 2, {"kind": "prepare", "next": 1, "ballot": [4, 2]}) == []
    [promise] = again.hear(0.0, 2, {"kind": "prepare", "next": 1, "ballot": [6, 2]})
    assert promise["accepted"] == ((5, 0), View((0, 1), 1, ("a", "b")))
    minority = {"kind": "accept", "next": 1, "ballot": [9, 2], "view": [[2], 1, ["c"]]}
    assert again.hear(0.0, 2, minority) == []


def test_whoever_has_lost_its_disk_votes_only_after_a_view_that_knows_it() -> None:
    """It may have voted on the next one already, and those who did not would never learn of it."""
    wiped = Views(1, EVERYONE, PATIENCE, "d")
    wiped.forget()
    second = View((0, 1, 2), 1, ("a", "b", "c"))
    wiped.hear(0.0, 0, {"kind": "decided", "next": 1, "views": [EVERYONE, second]})
    assert wiped.number == 1 and not wiped.inside
    wiped.enter(0.0, True)
    assert {message["kind"] for message in wiped.tick(10 * PATIENCE)} == {"enter"}
    prepare = {"kind": "prepare", "next": 2, "ballot": [5, 0]}
    accept = {"kind": "accept", "next": 2, "ballot": [5, 0], "view": second}
    assert wiped.hear(0.0, 0, prepare) == wiped.hear(0.0, 0, accept) == []
    third = second._replace(memories=("a", "d", "c"))
    wiped.hear(0.0, 0, {"kind": "decided", "next": 2, "views": [EVERYONE, second, third]})
    assert wiped.inside
    assert wiped.hear(0.0, 0, {**prepare, "next": 3})[0]["kind"] == "promise"


class Wire:
    """One direction between two sessions, on which frames are lost, doubled and delayed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.here, self.there = Session(), Session()
        self.frames: deque[tuple[int, bytes]] = deque()
        self.posted: list[bytes] = []
        self.taken: list[bytes] = []

    def connect(self) -> None:
        again = self.here.resume(self.there.received)
        self.frames = deque((kept.number, bytes(kept.parts[0])) for kept in again)

    def post(self) -> None:
        self.posted.append(self.random.randbytes(4))
        self.frames.append((self.here.post([self.posted[-1]]).number, self.posted[-1]))

    def deliver(self) -> None:
        if not self.frames:
            self.there.caught_up(self.here.sent)
            return
        number, body = self.frames.popleft()
        if self.random.random() < 0.1:
            return  # lost
        if self.random.random() < 0.1:
            self.frames.append((number, body))  # comes again, later
        if self.there.take(number):
            self.taken.append(body)

    def step(self) -> None:
        what = self.random.random()
        try:
            if what < 0.4:
                self.post()
            elif what < 0.85:
                self.deliver()
            elif what < 0.95:
                self.here.acknowledge(self.there.received)
            else:
                self.connect()
        except BadFrame:
            self.connect()


def test_sessions_over_a_bad_network_lose_nothing_and_take_nothing_twice() -> None:
    for seed in range(SEEDS):
        wire = Wire(seed)
        for _ in range(300):
            wire.step()
        wire.connect()
        wire.taken += [body for number, body in wire.frames if wire.there.take(number)]
        assert wire.taken == wire.posted, f"seed {seed}"
