"""A network and a clock that are only simulated: the same seed, the same story.

Nodes decide on views over messages that are delayed, lost, doubled and reordered, while nodes
crash, restart, stall and are cut off from each other, come with a newer revision of peers.toml, are
removed by one, or are accused of something. Training itself is a counter that moves on while
everybody of a view is there.
"""

import heapq
import json
import random
from collections.abc import Callable
from typing import Any

from parley.peers.views import View, Views

TICK = 0.1
PATIENCE = 5.0


class Node:
    """A peer: its views, its disk, and whether it trains."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.disk: str | None = None
        self.revision = 0
        """The newest revision that it knows; it writes it down at once."""
        self.file = 0
        """The one of its own peers.toml."""
        self.expelled = False
        """Whether it knows that the others go on without it."""
        self.parted = 0.0
        """Until when it still tells them so, as links do that close."""
        self.alive = False
        self.stalled_until = 0.0
        self.step = 0
        self.training = 0
        """The view in which it trains; -1: it waits."""
        self.start(first=number in world.revisions[0])

    def start(self, first: bool = False) -> None:
        kept = json.loads(self.disk) if self.disk else None
        everyone = tuple(sorted(self.world.revisions[0]))
        view = View(everyone, 0, tuple(f"{n}" for n in everyone))
        memory = f"{self.number}" if first else f"{self.world.random.getrandbits(32):x}"
        self.views = Views(self.number, view, PATIENCE, memory, self._keep, kept)
        if kept is None and not first:
            self.views.forget()  # others have begun
        self.views.revise(self.revision, self.world.revisions[self.revision])
        self.alive = True
        self.alone_since: float | None = None
        self.training = 0 if first else -1
        if not first:
            self.joined = self.views.number
            self.views.enter(self.world.now, self.views.inside)
        else:
            self.joined = 0
            self._keep(self.views.state())

    @property
    def may_start(self) -> bool:
        """Whoever knows that it is removed, or was dropped, is not started again."""
        return not self.expelled and self.number in self.world.revisions[self.revision]

    def _keep(self, state: Any) -> None:
        self.disk = json.dumps(state)
        # A slow disk delays whatever this node says next.
        self.stalled_until = self.world.now + self.world.random.choice([0, 0, 0, 0.01, 0.5])

    def crash(self) -> None:
        self.alive = False
        self.training = -1

    def wipe(self) -> None:
        """Its folder is lost, with all that it has promised; its peers.toml is not."""
        self.crash()
        self.disk, self.revision = None, self.file

    def hear(self, sender: int, said: Any) -> None:
        if not self.alive or self.expelled:
            self._tell_parting()
            return
        if said["kind"] == "revision":
            self.revise(said["revision"])
            return
        for answer in self.views.hear(self.world.now, sender, said):
            self.world.send(self.number, answer)
        leaves = said["kind"] == "enter" and said.get("left") and said["next"] == self.joined + 1
        known = self.joined <= self.views.number
        member = known and sender in self.views.views[self.joined].members
        if self.training >= 0 and ((leaves and member) or self.views.number > self.joined):
            self._leave([])
        self._look()

    def revise(self, revision: int) -> None:
        """A newer revision of peers.toml is known here, and passed on."""
        if revision <= self.revision:
            return
        self.revision = revision
        self.views.revise(revision, self.world.revisions[revision])
        if self.alive:
            self.world.send(self.number, {"kind": "revision", "revision": revision})
            if self.training >= 0 and self.number not in self.world.revisions[revision]:
                self._leave([])  # and votes until the others go on

    def accuse(self, other: int) -> None:
        """It has received something from another that no honest node would have sent."""
        if self.training >= 0 and other != self.number:
            self.views.drop(other, f"{self.number} accuses {other}")
            self._leave([])

    def _leave(self, lost: list[int]) -> None:
        self.training = -1
        self.views.enter(self.world.now, True, lost)

    def _look(self) -> None:
        removed = self.number not in self.world.revisions[self.revision]
        decided = self.views.views[-1].revision >= self.revision
        if self.number in self.views.dropped or (removed and decided):
            self.expelled, self.training = True, -1
            self.parted = self.world.now + PATIENCE
            return
        if self.training < 0 and self.views.number > self.joined:
            self.joined = self.views.number
            if unwelcome := self.views.unwelcome():
                self.views.enter(self.world.now, self.views.inside, unwelcome)
            elif self.views.inside:
                self.views.settle()
                self.training, self.alone_since = self.views.number, None
                self.world.begun(self)

    def _tell_parting(self) -> None:
        """Whoever is removed ends once its last vote has counted and the others know it."""
        if self.alive and self.world.now < self.parted:
            self.world.send(self.number, self.views._decided())

    def tick(self) -> None:
        """Every now and then: what is due, and a step if everyone is there."""
        world = self.world
        if not self.alive or self.expelled or world.now < self.stalled_until:
            return
        if world.random.random() < 0.05:  # as often as links are made anew
            world.send(self.number, {"kind": "revision", "revision": self.revision})
        if self.training < 0:
            for message in self.views.tick(world.now):
                world.send(self.number, message)
            self._look()
            return
        others = [n for n in self.views.members if n != self.number]
        absent = [
            n for n in others
            if world.apart(self.number, n) or world.nodes[n].training != self.training
        ]  # fmt: skip
        if any(n not in world.revisions[self.revision] for n in absent):
            self._leave(absent)  # links say so at once
            return
        if not absent:
            self.step, self.alone_since = self.step + 1, None
            if self.views.outside(world.now) and world.random.random() < 0.1:
                self._leave([])  # an epoch has ended, and somebody waits outside
        elif self.alone_since is None:
            self.alone_since = world.now
        elif world.now - self.alone_since > PATIENCE:
            self._leave(absent)


class World:
    """Everything that happens, in one order, from one seed."""

    def __init__(self, seed: int, size: int, wipes: bool = False) -> None:
        """`wipes`: disks may be lost."""
        self.wipes = wipes
        self.random = random.Random(seed)
        self.size = size
        self.revisions = [frozenset(range(size))]
        """Who takes part, by each revision of peers.toml."""
        self.now = 0.0
        self.side = [0] * size
        """Nodes hear only those on the same side of a cut."""
        self.loss = self.random.choice([0.0, 0.05, 0.3])
        self.decided: dict[int, View] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.nodes = [Node(self, number) for number in range(size)]
        for number in range(size):
            self._every(number)

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def _every(self, number: int) -> None:
        self.nodes[number].tick()
        self.at(self.now + TICK * self.random.uniform(0.5, 1.5), lambda: self._every(number))

    def apart(self, one: int, other: int) -> bool:
        return self.side[one] != self.side[other] or not self.nodes[other].alive

    def send(self, sender: int, message: Any) -> None:
        """To everyone else, who may hear it late, twice, or not at all."""
        text = json.dumps(message)
        begun = max(self.now, self.nodes[sender].stalled_until)
        for other in range(self.size):
            if other == sender:
                continue
            for _ in range(2 if self.random.random() < 0.05 else 1):
                if self.random.random() < self.loss:
                    continue
                delay = self.random.expovariate(20)

                def arrive(other: int = other) -> None:
                    if self.side[sender] == self.side[other]:
                        self.nodes[other].hear(sender, json.loads(text))

                self.at(begun + delay, arrive)

    def begun(self, node: Node) -> None:
        """A node has begun to train in a view: nobody may have seen another of that number."""
        if not node.views.members:
            return  # it has not heard of any
        for number, view in enumerate(node.views.views):
            known = self.decided.setdefault(number, view)
            assert known == view, f"two views of number {number}: {known} and {view}"
            assert set(view.members) <= self.revisions[view.revision], "somebody who is not listed"
            if number:
                before = set(self.decided[number - 1].members) & self.revisions[view.revision]
                assert 2 * len(before & set(view.members)) > len(before), "too few go on"

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until

    def harm(self) -> None:
        """Something bad, or something good again."""
        what = self.random.choice(["crash", "restart", "restart", "split", "mend", "stall", "wipe"])
        node = self.random.choice(self.nodes)
        if what == "crash":
            node.crash()
        elif what == "wipe" and self.wipes:
            node.wipe()
        elif what == "restart" and not node.alive and node.may_start:
            node.start()
        elif what == "split":
            self.side = [self.random.randrange(2) for _ in range(self.size)]
        elif what == "mend":
            self.side = [0] * self.size
        elif what == "stall":
            node.stalled_until = self.now + self.random.uniform(0, 2 * PATIENCE)

    def publish(self, members: frozenset[int]) -> None:
        """A newer revision, which one node of the one before gets first; newcomers have it."""
        self.revisions.append(members)
        newest = len(self.revisions) - 1
        for number in range(self.size, max(members) + 1):
            self.size += 1
            self.side.append(0)
            node = Node(self, number)
            self.nodes.append(node)
            node.file = newest
            node.revise(newest)
            node.start()
            self._every(number)
        first = self.random.choice(sorted(members & self.revisions[newest - 1]))
        self.nodes[first].file = newest
        self.nodes[first].revise(newest)

    def mend(self) -> None:
        """Everybody is there again, and can talk with everybody."""
        self.side = [0] * self.size
        self.loss = min(self.loss, 0.05)
        for node in self.nodes:
            node.stalled_until = 0.0
            if not node.alive and node.may_start:
                node.start()

    def majority_left(self) -> bool:
        """Whether enough of the newest view that somebody knows are left, with what they voted."""
        newest = max((n.views for n in self.nodes if n.may_start), key=lambda views: views.number)
        there = [self.nodes[n] for n in newest.members if self.nodes[n].alive]
        left = [node for node in there if not node.expelled]
        voters = [n for n in left if newest._remembers(n.number, n.views.memory)]
        size = len(newest.members)
        return 2 * len(voters) > size or (2 * len(voters) == size and len(left) > len(voters))
