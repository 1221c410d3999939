"""Peers in one process, on links without sockets, under a clock that is only simulated.

Everything above the bytes is what runs on real hosts: links, floods, the fabric, the board, views,
revisions, and a worker's generations. Each peer is a thread that runs only while the world lets it,
so that the same seed tells the same story; where a peer would wait, the world goes on.
"""

import heapq
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from parley.cluster.heal import without
from parley.cluster.join import Roster
from parley.cluster.worker import Worker
from parley.errors import ParleyError
from parley.fabric.board import Board
from parley.graphs import full
from parley.peers.connection import Refused
from parley.peers.file import Peers
from parley.peers.frames import DATA, BadFrame, Buffer, Frame
from parley.peers.join import judge, met
from parley.peers.links import Links
from parley.peers.mailbox import ENVELOPE
from parley.peers.meeting import PeerMeeting
from parley.peers.revisions import Revisions
from parley.training.events import EpochDone
from parley.wire.codec import Dense
from parley.wire.placement import Placement
from parley.wire.spread import over

TICK = 0.25
PATIENCE = 3.0
STEP = 0.5
"""Seconds that a step takes."""
EPOCH = 4
"""Steps of an epoch."""
STEPS = 48


VAIN = ("peers: no link to ", "peers: no peer has passed on ")
"""How a start ends that comes too early."""


class Killed(BaseException):
    """A peer's process has been killed: nothing of it may go on."""


class World:
    """Everything that happens, in one order, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.carriers: dict[str, Memory] = {}
        self.cuts: set[frozenset[str]] = set()
        """Pairs of peers between which nothing arrives."""
        self.story: list[str] = []
        self.turn = threading.Semaphore(0)
        self.task: Task | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, what))

    def run(self, until: float, over: Callable[[], bool] = lambda: False) -> None:
        while self._events and self._events[0][0] <= until and not over():
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = max(self.now, min(until, self.now if over() else until))

    def tell(self, what: str) -> None:
        self.story.append(f"{self.now:8.3f} {what}")

    def apart(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cuts


class Task:
    """A thread that runs only when the world lets it."""

    def __init__(self, world: World, work: Callable[[], None]) -> None:
        self.world = world
        self.ended = self.killed = False
        self.stalled_until = 0.0
        self._ticket = 0
        self._turn = threading.Semaphore(0)
        self._work = work
        threading.Thread(target=self._run, daemon=True).start()
        world.at(world.now, partial(self._wake, 0))

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.killed:
                self._work()
        except Killed:
            pass
        finally:
            self.ended = True
            self.world.turn.release()

    def wait(self, seconds: float) -> None:
        """Called by the task itself: until it is woken, or so many seconds have passed."""
        if not self.killed:
            self.world.at(self.world.now + seconds, partial(self._wake, self._ticket))
            self.world.turn.release()
            self._turn.acquire()
        if self.killed:
            raise Killed

    def notify(self) -> None:
        self.world.at(self.world.now, partial(self._wake, self._ticket))

    def kill(self) -> None:
        self.killed = True
        self._wake(self._ticket)

    def _wake(self, ticket: int) -> None:
        if self.ended or ticket != self._ticket or self.world.task is self:
            return
        if self.world.now < self.stalled_until and not self.killed:
            self.world.at(self.stalled_until, partial(self._wake, ticket))
            return
        self._ticket += 1
        before, self.world.task = self.world.task, self
        self._turn.release()
        self.world.turn.acquire()
        self.world.task = before


class Changed:
    """What links hold while they are looked at; here only one thread runs at a time anyway."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: Task | None = None

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *error: Any) -> None: ...

    def wait(self, timeout: float) -> bool:
        task = self.world.task
        assert task is not None
        self.waiting = task
        task.wait(timeout)
        self.waiting = None
        return True

    def notify_all(self) -> None:
        if self.waiting is not None:
            self.waiting.notify()
            self.waiting = None


class End:
    """One end of a connection."""

    def __init__(self, carrier: "Memory", name: str, dialled: str | None) -> None:
        self.carrier, self.name, self.dialled = carrier, name, dialled
        self.where = f"{name}:0"
        self.begun = self.heard = carrier.world.now
        self.ready = self.paused = self.broken = False
        self.limit = 1 << 18
        self.envelope = memoryview(bytearray(ENVELOPE.size))
        self.other: End
        self._latest = 0.0
        self._held: list[tuple[Frame, bytes]] = []

    def put(self, frame: Frame, parts: Any = ()) -> None:
        world, body = self.carrier.world, b"".join(map(_bytes, parts))
        self._latest = max(self._latest, world.now + world.random.expovariate(50))
        world.at(self._latest, lambda: self.other.arrive(frame, body))

    def arrive(self, frame: Frame, body: bytes) -> None:
        """A frame has come, unless the connection is gone, or nothing comes through just now: then
        whatever comes later cannot come either."""
        carrier = self.carrier
        self.broken |= carrier.world.apart(carrier.name, self.name)
        if self not in carrier.connections or self.broken or not carrier.alive:
            return
        if carrier.stalled:
            carrier.world.at(carrier.stalled, lambda: self.arrive(frame, body))
        elif self.paused or self._held:
            self._held.append((frame, body))
        else:
            self._take(frame, body)

    def _take(self, frame: Frame, body: bytes) -> None:
        owner, self.heard = self.carrier.owner, self.carrier.world.now
        try:
            Frame.read(frame.packed(), self.limit)
            place = memoryview(bytearray(body))
            if frame.kind == DATA:
                self.envelope[:] = body[: ENVELOPE.size]
                place = owner.place(self, len(body) - ENVELOPE.size)  # type: ignore[arg-type]
                place[:] = body[ENVELOPE.size :]
            owner.came(self, frame, place)  # type: ignore[arg-type]
        except (Refused, BadFrame, ParleyError) as error:
            self.carrier.drop(self, str(error))

    def read_on(self) -> None:
        held, self._held = self._held, []
        for frame, body in held:
            self.arrive(frame, body)


def _bytes(part: Buffer) -> bytes:
    return bytes(memoryview(part).cast("B"))


class Memory:
    """A carrier whose connections are in memory: see `parley.peers.carrier.Carrier`."""

    def __init__(self, world: World, name: str, peers: Peers) -> None:
        self.world, self.name, self.peers = world, name, peers
        self.changed = Changed(world)
        self.connections: dict[End, None] = {}
        self.alive = True
        self.task: Task | None = world.task
        self.owner: Links
        self._dialling: set[str] = set()

    @property
    def stalled(self) -> float:
        """Until when this process is stopped; 0 if it is not."""
        until = self.task.stalled_until if self.task else 0.0
        return until if until > self.world.now else 0.0

    def now(self) -> float:
        return self.world.now

    def start(self, owner: Any) -> None:
        self.owner = owner
        self.world.carriers[self.name] = self
        self._tick()

    def _tick(self) -> None:
        if self.alive:
            if not self.stalled:
                self.owner.tick(self.world.now)
            self.world.at(self.world.now + TICK * self.world.random.uniform(0.9, 1.1), self._tick)

    def wake(self) -> None: ...

    def read_on(self, connection: Any) -> None:
        connection.read_on()

    def revise(self, peers: Peers) -> None:
        self.peers = peers

    def dials(self, name: str) -> bool:
        return name in self._dialling or any(end.dialled == name for end in self.connections)

    def dial(self, name: str, address: str) -> None:
        self._dialling.add(name)
        self.world.at(self.world.now + self.world.random.expovariate(20), partial(self._met, name))

    def _met(self, name: str) -> None:
        self._dialling.discard(name)
        other = self.world.carriers.get(name)
        if not self.alive:
            return
        if other is None or not other.alive or self.world.apart(self.name, name):
            self.owner.not_dialled(name, "no answer")
            return
        if any(p.removed for p in other.peers.peer if p.name == self.name):
            self.owner.not_dialled(name, "it has turned this peer away")
            return
        if self.name not in other.peers.names or name not in self.peers.names:
            self.owner.not_dialled(name, "nobody knows it there")
            return
        near, far = End(self, name, name), End(other, self.name, None)
        near.other, far.other = far, near
        for end in (near, far):
            end.carrier.connections[end] = None
            end.carrier.owner.encrypted(end)  # type: ignore[arg-type]

    def drop(self, connection: Any, why: str, quietly: bool = False) -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        if self.alive:
            self.owner.dropped(connection, why)
        later = self.world.now + self.world.random.expovariate(50)
        far = connection.other
        self.world.at(later, lambda: far.carrier.drop(far, "it closed the connection"))

    def end(self) -> None:
        """Closes all connections, once what waits has arrived."""
        for connection in list(self.connections):
            connection.put(Frame(4, 2, 0, 0), [b"{}"])
        self.world.at(self.world.now + 1.0, self.die)

    def die(self, silently: bool = False) -> None:
        """The process is gone; the others notice at once, or when they hear nothing any more."""
        self.alive = False
        for connection in list(self.connections):
            if silently:
                connection.other.broken = True
                del self.connections[connection]
            else:
                self.drop(connection, "")


class Node:
    """A peer's machine: its disk and file, and its process, if it runs."""

    def __init__(self, story: "Story", name: str, file: Peers) -> None:
        self.story, self.name, self.file = story, name, file
        self.folder = story.folder / name
        self.step = self.saved = 0
        self.ends: list[str] = []
        """What has come of each start."""
        self.task: Task | None = None
        self.meeting: PeerMeeting | None = None

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.ended

    def start(self) -> None:
        self.story.world.tell(f"{self.name} starts")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step = self.saved
        self.task = Task(self.story.world, self._live)

    def kill(self, silently: bool) -> None:
        self.story.world.tell(f"{self.name} is killed{' silently' * silently}")
        assert self.task is not None
        self.story.world.carriers[self.name].die(silently)
        self.task.kill()

    def wipe(self) -> None:
        """Its disk is lost, but not the folder with its file."""
        self.story.world.tell(f"{self.name} loses its disk")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.saved = 0

    def look(self, now: float, known: Peers, take: Callable[[Peers], None]) -> None:
        """As `parley.peers.revisions.Watched` does for a file."""
        if self.file.revision > known.revision:
            take(self.file)

    def _live(self) -> None:
        world, revisions = self.story.world, Revisions(self.file, self.folder)
        hello = {"protocol": 2, "plan": {"of": "all"}}

        @contextmanager
        def linked() -> Iterator[Links]:
            peers = revisions.newest
            carrier: Any = Memory(world, self.name, peers)
            links = Links(
                self.name, peers, carrier, hello, judge(hello), patience=PATIENCE, grows=True
            )
            try:
                yield links
            finally:
                links.close()

        def meeting(links: Links) -> PeerMeeting:
            found: Any = self
            peers = revisions.newest
            self.meeting = PeerMeeting(
                rank=peers.number(self.name), world=len(peers.names), patience=PATIENCE,
                heals=True, links=links, revisions=revisions, topology=self.story.topology,
                out=self.folder, file=found,
            )  # fmt: skip
            return self.meeting

        try:
            assert self.task is not None
            revisions.newest._present(self.name)  # as its own key is checked
            met(linked, meeting, lambda m: Toy(self, m).work(), self.task.wait)
            self.ends.append("done")
        except ParleyError as error:
            self.ends.append(str(error))
        except Exception as error:
            self.ends.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            if not (self.task and self.task.killed):
                world.tell(f"{self.name}: {self.ends[-1]}")
                if self.ends[-1].startswith(VAIN):
                    self.ends.pop()
                    world.at(world.now + 1.0, self.start_again)

    def start_again(self) -> None:
        """Whoever has waited in vain at the start is started again."""
        if not self.running and not self.story.stopped:
            self.start()


class Toy(Worker):
    """A worker whose model is the number of steps that it has made."""

    def __init__(self, node: Node, meeting: PeerMeeting) -> None:
        self.node = node
        experiment: Any = SimpleNamespace(agents=node.story.topology.agents)
        assignment: Any = SimpleNamespace(
            experiment=experiment, everywhere=True, mine=None, watch=lambda event: None
        )
        holding: Any = None
        super().__init__(assignment, meeting, holding)

    def _prepare(self, lobby: Board, back: bool) -> None:
        self.worker_of = self.meeting.seats(lobby, self.experiment.agents, None)
        lobby.share("claims", {"said": 1}, dict[str, int])
        lobby.share("sizes", [1], list[int])

    def _train(self, roster: Roster, board: Board) -> Any:
        node, meeting = self.node, self.meeting
        assert isinstance(meeting, PeerMeeting)
        topology = node.story.topology
        present = [a for a in range(topology.agents) if self.worker_of[a] in roster.workers]
        graph, _ = without(topology, present)
        seats = tuple(roster.workers.index(self.worker_of[agent]) for agent in present)
        placement = Placement(graph, seats, board.rank, tuple(present))
        transport, codec = over(board.fabric, placement), Dense(2)
        node.step = max(board.share("position", node.step, int))
        node.story.begun(node, meeting, roster)
        assert self.consensus is not None and node.task is not None
        while node.step < STEPS:
            own_AD = torch.tensor([[node.step, agent] for agent in placement.hosted]).float()
            arrivals = transport.forward(codec.encode(own_AD), "models", codec, node.step)
            node.task.wait(STEP * node.story.world.random.uniform(0.8, 1.2))
            for edges in transport.edges.incoming_of:
                came_ED = codec.decode(arrivals.of(edges), torch.float32)
                said = [[node.step, placement.number(graph.edges[e][0])] for e in edges]
                assert came_ED.tolist() == said, "a neighbour is elsewhere"
            node.step += 1
            if node.step % EPOCH == 0:
                node.saved = node.step
                run: Any = SimpleNamespace(transport=transport)
                event = EpochDone(node.step // EPOCH, None, node.step == STEPS)
                self._each(self.consensus, roster, run, board.rank, event)
        return "done"


class Story:
    """Some peers, what befalls them, and what must hold of it."""

    def __init__(self, seed: int, folder: Path, revisions: list[Peers]) -> None:
        """`revisions` are those that come into force, one after the other."""
        self.world = World(seed)
        self.folder = folder
        self.revisions = revisions
        first = revisions[0]
        self.topology = full(len(first.agents))
        self.nodes = {first.names[n]: Node(self, first.names[n], first) for n in first.active}
        self.views: dict[int, Any] = {}
        self.starts: dict[int, int] = {}
        self.lost: int | None = None
        """A generation that has begun behind an earlier one."""
        self.stopped = False

    def begun(self, node: Node, meeting: PeerMeeting, roster: Roster) -> None:
        """A peer begins to train: nobody may have seen another view of that number, nor another
        step at which it begins, and nothing that was reached before it is lost."""
        assert meeting.now.paxos is not None
        for number, view in enumerate(meeting.now.paxos.views.views):
            if number:  # the memories of the first are told apart from the view
                known = self.views.setdefault(number, view)
                assert known == view, f"two views of number {number}: {known} and {view}"
        self.world.tell(f"{node.name} trains in {roster} from step {node.step}")
        assert self.starts.setdefault(roster.generation, node.step) == node.step
        earlier = [step for n, step in self.starts.items() if n < roster.generation]
        if node.step < max(earlier, default=0):
            self.lost = roster.generation

    @property
    def over(self) -> bool:
        return not any(node.running for node in self.nodes.values())

    def harm(self) -> None:
        """Something bad, or something good again."""
        world, chance = self.world, self.world.random
        what = chance.choice(["kill", "start", "start", "cut", "mend", "stall", "wipe", "break"])
        node = chance.choice(list(self.nodes.values()))
        if what == "kill" and node.running:
            node.kill(chance.random() < 0.5)
        elif what == "wipe" and not node.running and chance.random() < 0.3:
            node.wipe()
        elif what == "start" and not node.running:
            node.start()
        elif what == "cut":
            alone = node.name
            others = [other for other in self.nodes if other != alone]
            some = chance.sample(others, chance.randint(1, len(others)))
            world.tell(f"{alone} is cut off from {some}")
            world.cuts |= {frozenset((alone, other)) for other in some}
        elif what == "mend":
            world.cuts.clear()
        elif what == "stall" and node.running and node.task:
            node.task.stalled_until = world.now + chance.uniform(0, 2 * PATIENCE)
            world.tell(f"{node.name} stalls until {node.task.stalled_until:.3f}")
        elif what == "break" and node.running and (found := world.carriers.get(node.name)):
            for connection in list(found.connections):
                found.drop(connection, "broken")

    def publish(self) -> None:
        """The next revision appears at one of the peers that train; newcomers have it."""
        number = 1 + max(self.revisions.index(node.file) for node in self.nodes.values())
        training = [
            node for node in self.nodes.values()
            if node.running and node.meeting and node.meeting.now.trains
        ]  # fmt: skip
        if number == len(self.revisions) or not training:
            return
        new = self.revisions[number]
        self.world.random.choice(training).file = new
        for name in (new.names[n] for n in new.active):
            if name not in self.nodes:
                self.nodes[name] = Node(self, name, new)
                self.nodes[name].start()
        self.world.tell(f"revision {new.revision} is published")

    def mend(self) -> None:
        """All is well from now on, and all that may take part run."""
        self.world.cuts.clear()
        self.world.tell("all is well")
        newest = max((node.file for node in self.nodes.values()), key=lambda peers: peers.revision)
        for node in self.nodes.values():
            if node.task:
                node.task.stalled_until = 0.0
            if not node.running and node.name in (newest.names[n] for n in newest.active):
                node.start()

    def may_end(self) -> bool:
        """Whether enough of the newest view are left: those who vote must be reachable, and a peer
        that is removed opens no new connection."""
        known = [node.meeting.now.paxos for node in self.nodes.values() if node.meeting]
        newest = max((p.views for p in known if p), key=lambda views: views.number)
        newest_file = max((n.file for n in self.nodes.values()), key=lambda peers: peers.revision)
        names, view = newest_file.names, newest.views[-1]
        memories = dict(zip(view.members, view.memories, strict=False))
        voters = [
            n for n in view.members
            if n in newest_file.active and (meeting := self.nodes[names[n]].meeting)
            and meeting.now.paxos and memories.get(n) in (None, meeting.now.paxos.views.memory)
        ]  # fmt: skip
        return 2 * len(voters) > len(view.members)

    def stop(self) -> None:
        self.stopped = True
        for node in self.nodes.values():
            if node.running:
                node.kill(True)
