"""How peers come together: links first, then the words of the start, then one generation."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from parley.cluster.heal import without
from parley.cluster.join import Consensus, Gathering, RejoinRequest, Roster
from parley.errors import NotWritten, ParleyError
from parley.fabric.base import Member, WorkerLost
from parley.fabric.board import Board
from parley.fabric.failure import read_failure
from parley.graphs import Topology
from parley.peers.board import Recorder, Replay
from parley.peers.carrier import Behind
from parley.peers.consensus import Paxos, read_words
from parley.peers.fabric import Linked
from parley.peers.file import Peers
from parley.peers.links import Links
from parley.peers.revisions import Revisions, Watched
from parley.peers.views import MEMORY
from parley.wire.guard import Suspicious
from parley.wire.transport import GATHERED_BYTES

log = logging.getLogger(__name__)

Memory = Annotated[str, Field(pattern=f"^{MEMORY.pattern}$")]
LOBBY = 0
"""The generation of links in which peers speak before they train; that of a roster is one more."""


def talking(worker_of: Sequence[int], topology: Topology) -> set[tuple[int, int]]:
    """The workers that talk with each other at some time, as pairs, the smaller number first.

    >>> from parley.graphs import ring
    >>> sorted(talking([0, 0, 1, 2], ring(4)))
    [(0, 1), (0, 2), (1, 2)]
    """
    graphs = topology.phases or (topology,)
    ends = {(worker_of[j], worker_of[i]) for graph in graphs for j, i in graph.edges}
    return {(min(pair), max(pair)) for pair in ends if pair[0] != pair[1]}


def grouped(
    peers: Peers, topology: Topology, workers: Sequence[int]
) -> tuple[list[str], set[tuple[int, int]]]:
    """The names of some peers, and which of them talk with each other, as positions among them."""
    worker_of = peers.worker_of()
    present = [agent for agent, worker in enumerate(worker_of) if worker in workers]
    graph, _ = without(topology, present)
    seats = [workers.index(worker_of[agent]) for agent in present]
    return [peers.names[worker] for worker in workers], talking(seats, graph)


@dataclass
class _Now:
    """What changes while peers train."""

    paxos: Paxos | None = None
    trains: bool = False
    """Whether this peer has trained with others."""
    alone: bool = False
    """Whether this peer has waited in vain for the links of the start."""
    failure: ParleyError | None = None
    """Why another peer has ended the run."""


@dataclass(frozen=True, kw_only=True)
class PeerMeeting(Gathering):
    """The peers of a run, as ``peers.toml`` lists them."""

    links: Links
    revisions: Revisions
    topology: Topology
    out: Path | None = None
    """The run's folder, where this peer keeps what it has promised."""
    file: Watched | None = None
    """Where newer revisions of ``peers.toml`` may appear."""
    now: _Now = field(default_factory=_Now)
    apart: ClassVar[bool] = True

    @property
    def peers(self) -> Peers:
        """The newest revision of ``peers.toml`` that is known here."""
        return self.revisions.newest

    @property
    def may_meet_again(self) -> bool:
        """Whether a peer that is lost now was there before, and nobody has trained yet."""
        return self.heals and not self.now.alone and not self.now.trains

    @property
    def everyone(self) -> Roster:
        """All peers that have not been removed."""
        return Roster(0, self.peers.active)

    def seats(self, lobby: Board, agents: int, mine: Sequence[int] | None) -> tuple[int, ...]:
        """As ``peers.toml`` has it, which is the same at all."""
        return self.peers.worker_of()

    def reseated(self, roster: Roster) -> tuple[int, ...]:
        """The peer of every agent, by the revision of that generation."""
        return self._peers_of(roster).worker_of()

    def _peers_of(self, roster: Roster) -> Peers:
        """What counted when a generation was agreed on."""
        if self.now.paxos is None:
            return self.peers
        revision = self.now.paxos.revision(roster.generation)
        found = self.revisions.at(revision)
        if found is None:
            raise ParleyError(f"peers: no peer has passed on revision {revision} of peers.toml")
        return found

    def label(self, worker: int) -> int | str:
        """A peer's name."""
        return self.peers.names[worker]

    def expect(self, agents: int, edges: int, size: int) -> None:
        """Bounds what a peer may send at once, now that the model is known."""
        rows = max(agents, edges)
        self.links.expect(max(GATHERED_BYTES, rows * (2 * size + 1024)) + (1 << 20))

    def consensus(self) -> Consensus | None:
        """A majority of the peers agrees on who goes on, if the run heals."""
        if self.heals and self.now.paxos is None:
            self.now.paxos = Paxos(self.links, self.rank, self.attend, self.out)
            self.links.announce(begun=self.now.paxos.came_back)
        return self.now.paxos

    # --- coming together -------------------------------------------------------------------------

    def lobby(self) -> Board:
        """Where all peers speak before they train; waits for the links that this one needs."""
        paxos = self.now.paxos
        if paxos is None:
            group = self._linked()
            self._await(group.partners)
            return Board(group)
        if not paxos.came_back:
            group = self._linked()
            self._await(group.partners, or_begun=True)
            if not self._others_have_begun():
                # Not among the words that are passed on: those that come later learn of views.
                memories = Board(group).share("memory", paxos.views.memory, Memory)
                board = Recorder(group)
                paxos.begin(board.said, memories)
                return board
            paxos.begun_elsewhere()
        self.links.want(list(self.links.links))
        if not paxos.words:
            self._ask_for_words(paxos)
        return Replay(self.links.me, paxos.words)

    def _linked(self) -> Linked:
        """All that take part, before they train; from now on this peer wants its links."""
        if self.rank not in self.peers.active:
            number = self.peers.revision
            raise ParleyError(f"peers: revision {number} of peers.toml removes {self.links.me}")
        group = self._group(self.peers, self.peers.active, LOBBY)
        self.links.want(group.partners)
        log.info("%s waits for %s", self.links.me, ", ".join(group.partners))
        return group

    def _others_have_begun(self) -> bool:
        return any(said.get("begun") for said in list(self.links.hellos.values()))

    def _await(self, names: Sequence[str], or_begun: bool = False) -> None:
        def ready() -> bool:
            everyone = all(map(self.links.connected, names))
            return everyone or (or_begun and self._others_have_begun())

        if self._until(ready, self.patience):
            return
        self.now.alone = True
        troubles = self.links.troubles(names)
        why = "; ".join(f"{name}: {trouble}" for name, trouble in troubles.items())
        raise WorkerLost(
            f"peers: no link to {', '.join(troubles)} within {self.patience:g} seconds "
            f"(patience): {why}",
            timed_out=True,
            names=list(troubles),
        )

    def _ask_for_words(self, paxos: Paxos) -> None:
        """Waits until another peer has passed on what was said at the start."""
        deadline = self.links.now() + self.patience
        while not paxos.words:
            if self.links.now() > deadline:
                raise ParleyError(
                    f"peers: no peer has passed on what was agreed at the start in "
                    f"{self.patience:g} s{paxos.unreached()}"
                )
            self.links.flood({"kind": "words?"})
            self._until(lambda: bool(paxos.words), 1.0)

    def _until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Waits until something holds, and reads what happens meanwhile; False if it does not."""
        deadline = self.links.now() + seconds
        while not ready():
            self.attend()
            if self.links.now() > deadline:
                return ready()
            self.links.wait(0.05)
        return True

    def _group(self, peers: Peers, workers: Sequence[int], generation: int) -> Linked:
        names, pairs = grouped(peers, self.topology, workers)
        members = [
            Member(name, "", peers.peer[n].agents) for n, name in zip(workers, names, strict=True)
        ]
        remedy = 'start all peers again with --resume, or set on_failure = "heal"'
        remedy = "training had not begun" if self.heals else remedy
        attend = partial(self._attend_in, generation)
        return Linked(self.links, members, pairs, generation, attend, remedy)

    @contextmanager
    def connected(self, roster: Roster) -> Iterator[Board]:
        """The peers of one generation, linked along the graph of those who are present."""
        generation = roster.generation + 1
        group = self._group(self._peers_of(roster), roster.workers, generation)
        self.links.begin(generation)
        self.links.want(group.partners)
        self.links.announce(begun=True)
        self.now.trains = True
        board = Board(group)
        with self.ending_together(board, final=not self.heals):
            yield board

    def survives(self, error: BaseException, final: bool) -> bool:
        """Whether the others go on: without a lost peer, one in question, one with a full disk."""
        if isinstance(error, KeyboardInterrupt):
            self.links.say_at_last("it was stopped")
        if final:
            return False
        if isinstance(error, WorkerLost) and error.names:
            log.warning("%s", error)
        if isinstance(error, NotWritten):
            self.links.say_at_last("it cannot write to its disk")
        dropped = isinstance(error, Suspicious) and error.drop
        return dropped or isinstance(
            error, RejoinRequest | WorkerLost | NotWritten | KeyboardInterrupt
        )

    # --- what happens meanwhile ------------------------------------------------------------------

    def attend(self) -> None:
        """Reads what has happened since this was called last; raises the error of another peer that
        has ended the run."""
        for event in self.links.events():
            if isinstance(event, Behind):
                self._tell_revisions()
                continue
            try:
                self._hear(event.origin, event.message)
            except NotWritten:
                raise
            except Exception:  # whatever it says, it ends no run
                # Whoever passed it on need not be the one who made it up: no link is cut for it.
                log.debug("what cannot be read", exc_info=True)
                log.warning("peers: %s sent a message that cannot be read", event.origin)
        if self.file is not None:
            self.file.look(self.links.now(), self.peers, self.revise)
        if self.now.failure is not None:
            raise self.now.failure

    def _attend_in(self, generation: int) -> None:
        """The same, by whoever waits for others in a generation of links."""
        self.attend()
        if generation > LOBBY and self.now.paxos and self.now.paxos.ended(generation - 1):
            raise WorkerLost("peers: others have ended this generation")

    def _hear(self, origin: str, said: Any) -> None:
        """Another peer has said something to everyone."""
        kind = said.get("kind") if isinstance(said, dict) else None
        paxos = self.now.paxos
        if kind == "failure":
            error = read_failure(str(said["note"]))
            if self.heals and self.now.trains and isinstance(error, WorkerLost):
                return  # whoever says so has never trained, and the others go on without it
            told = error.saying(f"{error} (reported by {origin})")
            self.now.failure = self.now.failure or told
        elif paxos is None:
            return
        elif kind == "revisions":
            self._take_revisions(origin, said.get("tables"))
        elif kind == "view" and origin in self.peers.names:
            paxos.hear(self.peers.number(origin), said.get("said"))
        elif kind == "words?" and (self.now.trains or paxos.came_back):
            self.links.flood({"kind": "words", "to": origin, "words": paxos.words})
        elif kind == "words" and said.get("to") == self.links.me:
            paxos.learn(read_words(said["words"]))
        elif kind == "done":
            paxos.end()

    def _tell_revisions(self) -> None:
        self.links.flood({"kind": "revisions", "tables": self.revisions.tables()})

    def _take_revisions(self, origin: str, tables: Any) -> None:
        try:
            for new in self.revisions.later(tables):
                self.revise(new)
        except ParleyError as error:
            log.warning("peers: ignoring a revision of peers.toml from %s: %s", origin, error)

    def revise(self, new: Peers) -> None:
        """From now on the next revision counts, if it is signed as it must be; tells the others."""
        before = self.peers
        self.revisions.add(new)
        self._tell_revisions()
        if self.now.paxos is not None:
            self.now.paxos.views.revise(new.revision, new.active)
        self.links.revise(new)
        came = [new.names[n] for n in new.active if n not in before.active]
        left = [new.names[n] for n in before.active if n not in new.active]
        words = [f"{', '.join(came)} may join"] * bool(came)
        words += [f"{', '.join(left)} is removed"] * bool(left)
        told = "; ".join(words) or "nobody comes or goes"
        log.info("revision %d of peers.toml counts from now on: %s", new.revision, told)
