"""How peers come together: links first, then the words of the start, then one generation."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from parley.cluster.heal import without
from parley.cluster.join import Gathering, RejoinRequest, Roster, Rosters
from parley.errors import NotWritten, ParleyError
from parley.fabric.base import Member, WorkerLost
from parley.fabric.board import Board
from parley.fabric.failure import read_failure
from parley.graphs import Topology
from parley.peers.board import Recorder, Replay
from parley.peers.fabric import Linked
from parley.peers.file import Peers
from parley.peers.links import Links
from parley.peers.membership import PeerMembership, asked_words, read_words
from parley.peers.revisions import Revisions
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

    group: Linked | None = None
    membership: PeerMembership | None = None
    alone: bool = False
    """Whether this peer has waited in vain for the links of the start."""


@dataclass(frozen=True, kw_only=True)
class PeerMeeting(Gathering):
    """The peers of a run, as ``peers.toml`` lists them."""

    links: Links
    revisions: Revisions
    topology: Topology
    out: Path | None = None
    """The run's folder, where this peer keeps what it has promised."""
    now: _Now = field(default_factory=_Now)
    apart: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.links.listeners.append(self._hear)
        if self.heals:
            self.links.behind = self._tell_revisions

    @property
    def peers(self) -> Peers:
        """The newest revision of ``peers.toml`` that is known here."""
        return self.revisions.newest

    @property
    def may_meet_again(self) -> bool:
        """Whether a peer that is lost now was there before, and nobody has trained yet."""
        return self.heals and not self.now.alone and self.now.group is None

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
        membership = self.now.membership
        if membership is None:
            return self.peers
        with self.links.changed:
            revision = membership.views.views[roster.generation].revision
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

    def lobby(self) -> Board:
        """Where all peers speak before they train; waits for the links that this one needs."""
        group = self._group(self.peers, self.peers.active, LOBBY)
        self.links.want(group.partners)
        log.info("%s waits for %s", self.links.me, ", ".join(group.partners))
        membership = self.now.membership
        if membership is None:
            self._await(group.partners)
            return Board(group)
        if not membership.came_back:
            self._await(group.partners, or_begun=True)
            membership.came_back = self._others_have_begun()
            if membership.came_back:
                membership.views.forget()
        if not membership.came_back:
            # Not among the words that are passed on: whoever comes later learns of views instead.
            memories = Board(group).share("memory", membership.views.memory, Memory)
            membership.views.meet(memories)
            board = Recorder(group)
            membership.words = board.said
            return board
        self.links.want(list(self.links.links))
        words = membership.words or asked_words(self.links, membership, self.patience)
        return Replay(self.links.me, words)

    def _others_have_begun(self) -> bool:
        return any(said.get("begun") for said in self.links.hellos.values())

    def _await(self, names: Sequence[str], or_begun: bool = False) -> None:
        links = self.links

        def ready() -> bool:
            return all(map(links.connected, names)) or (or_begun and self._others_have_begun())

        if links.until(ready, self.patience):
            return
        self.now.alone = True
        missing = [name for name in names if not links.connected(name)]
        troubles = {name: links.links[name].trouble or "it did not call" for name in missing}
        why = "; ".join(f"{name}: {trouble}" for name, trouble in troubles.items())
        raise WorkerLost(
            f"peers: no link to {', '.join(missing)} within {self.patience:g} seconds "
            f"(patience): {why}",
            timed_out=True,
            names=missing,
        )

    def _group(self, peers: Peers, workers: Sequence[int], generation: int) -> Linked:
        names, pairs = grouped(peers, self.topology, workers)
        members = [
            Member(name, "", peers.peer[n].agents) for n, name in zip(workers, names, strict=True)
        ]
        remedy = 'start all peers again with --resume, or set on_failure = "heal"'
        remedy = "training had not begun" if self.heals else remedy
        return Linked(self.links, members, pairs, generation, remedy)

    @contextmanager
    def connected(self, roster: Roster) -> Iterator[Board]:
        """The peers of one generation, linked along the graph of those who are present."""
        generation = roster.generation + 1
        group = self._group(self._peers_of(roster), roster.workers, generation)
        self.links.begin(generation)
        self.links.want(group.partners)
        self.links.hello["begun"] = True
        self.now.group = group
        board = Board(group)
        with self.ending_together(board, final=not self.heals):
            yield board

    def membership(self) -> Rosters | None:
        """Agreed on by a majority of the peers."""
        if self.heals and self.now.membership is None:
            self.now.membership = PeerMembership(
                self.links, self.rank, self.peers, self.patience, self.out
            )
            self.links.hello["begun"] = self.now.membership.came_back
        return self.now.membership

    def _hear(self, origin: str, said: Any) -> None:
        """Another peer has said something to everyone; called by the thread of the links."""
        try:
            self._on_said(origin, said)
        except NotWritten as error:
            self.links.fail(error)
        except Exception:  # whatever it says, it ends no run
            # Whoever passed it on need not be the one who made it up: no link is cut for it.
            log.debug("what cannot be read", exc_info=True)
            log.warning("peers: %s sent a message that cannot be read", origin)

    def _on_said(self, origin: str, said: Any) -> None:
        kind = said.get("kind") if isinstance(said, dict) else None
        membership = self.now.membership
        if kind == "failure":
            error = read_failure(str(said["note"]))
            if self.heals and self.now.group is not None and isinstance(error, WorkerLost):
                return  # whoever says so has never trained, and the others go on without it
            self.links.fail(error.saying(f"{error} (reported by {origin})"))
        elif membership is None:
            return
        elif kind == "revisions":
            self._take_revisions(origin, said.get("tables"))
        elif kind == "view" and origin in self.peers.names:
            membership.hear(self.peers.number(origin), said.get("said"))
        elif kind == "words?" and (self.now.group is not None or membership.came_back):
            self.links.flood({"kind": "words", "to": origin, "words": membership.words})
        elif kind == "words" and said.get("to") == self.links.me and not membership.words:
            membership.words = read_words(said["words"])
        elif kind == "done":
            membership.over = True

    # --- newer revisions of peers.toml -----------------------------------------------------------

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
        with self.links.changed:
            before = self.peers
            self.revisions.add(new)
            self._tell_revisions()
            if self.now.membership is not None:
                self.now.membership.views.revise(new.revision, new.active)
            self.links.revise(new)
        came = [new.names[n] for n in new.active if n not in before.active]
        left = [new.names[n] for n in before.active if n not in new.active]
        words = [f"{', '.join(came)} may join"] * bool(came)
        words += [f"{', '.join(left)} is removed"] * bool(left)
        told = "; ".join(words) or "nobody comes or goes"
        log.info("revision %d of peers.toml counts from now on: %s", new.revision, told)
        if self.rank not in new.active and self.now.group is not None:
            self.links.end(self.now.group.generation)  # it only votes from now on

    def survives(self, error: BaseException, final: bool) -> bool:
        """Whether the others go on: without a lost peer, one in question, one with a full disk."""
        if isinstance(error, KeyboardInterrupt):
            self.links.last_words = "it was stopped"
        if final:
            return False
        if isinstance(error, WorkerLost) and error.names:
            log.info("%s", error)
        if isinstance(error, NotWritten):
            self.links.last_words = "it cannot write to its disk"
        dropped = isinstance(error, Suspicious) and error.drop
        return dropped or isinstance(
            error, RejoinRequest | WorkerLost | NotWritten | KeyboardInterrupt
        )
