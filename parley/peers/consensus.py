"""Going on without peers that are lost, and taking them back, with nobody in charge."""

import json
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from parley.cluster.join import Roster
from parley.errors import NotWritten, ParleyError
from parley.files import parse_json, read_text, write_atomically
from parley.peers.board import Words
from parley.peers.links import Links
from parley.peers.views import Message, View, Views
from parley.store.folder import MEMBERSHIP, SUMMARY

log = logging.getLogger(__name__)

LINGERING = 10.0
"""Seconds for which those who have ended still answer somebody who has not."""
PAUSE = 0.05
"""Seconds between two looks at what is due."""


class Paxos:
    """This peer's part in deciding who trains next: views over messages to everyone."""

    def __init__(
        self, links: Links, rank: int, attend: Callable[[], None], out: Path | None
    ) -> None:
        """`attend` reads what has happened, and hands what others say about views to `hear`."""
        self.links = links
        self.rank = rank
        self._attend = attend
        self.words: Words = []
        self._over = False
        """Whether the run has ended."""
        self._path = out / MEMBERSHIP if out else None
        """Where this peer keeps what it has promised, and what was said at the start."""
        kept = self._read()
        self.came_back = kept is not None
        """Whether this peer has taken part before."""
        self._may_vote = self.came_back
        """Before all have met, the folder is not yet this run's, so nothing could be kept."""
        self._ended = -1
        """The newest view of which others have said that it is over."""
        if kept is not None:
            self.words = read_words(kept["words"])
        first = View(links.peers.active, links.peers.revision)
        memory = secrets.token_hex(8)
        self.views = Views(rank, first, links.patience, memory, self._keep, kept)
        self.joined = self.views.number if kept else -1
        """The newest view in which this peer has trained, or may have before it was started."""

    def _read(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.is_file():
            return None
        try:
            found: dict[str, Any] = parse_json(read_text(self._path))
            read_words(found["words"])
            known = Views(0, View(()), 1.0, "0", kept=found).views
            if not known or not _peers_in(known) <= set(range(len(self.links.peers.names))):
                raise ValueError("views of others")
            return found
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
            raise ParleyError(
                f"peers: {self._path} is damaged; remove it if no other peer is still training"
            ) from None

    def _keep(self, state: Message) -> None:
        """Whoever cannot write down what it has voted must not vote, and ends."""
        if self._path is not None:
            try:
                write_atomically(self._path, json.dumps({**state, "words": self.words}) + "\n")
            except OSError as error:
                raise NotWritten(f"peers: {self._path} cannot be written ({error})") from None

    def begin(self, words: Words, memories: Sequence[str]) -> None:
        """All have met: what they say from now on is kept in `words`, for those that come later."""
        self.words = words
        self.views.meet(memories)

    def begun_elsewhere(self) -> None:
        """Others have begun already, and this peer does not know with whom."""
        self.came_back = True
        self.views.forget()

    def learn(self, words: Words) -> None:
        """Another peer has passed on what was said at the start."""
        self.words = self.words or words

    def end(self) -> None:
        """Another peer says that the run has ended."""
        self._over = True

    def hear(self, sender: int, said: Any) -> None:
        """Another peer has said something about views."""
        if not self._may_vote:
            return  # it will be said again
        if said["kind"] == "decided":
            named = _peers_in(said["views"])
            if not named <= set(range(len(self.links.peers.names))):
                raise ValueError("a view of peers that do not exist")
        answers = self.views.hear(self.links.now(), sender, said)
        leaves = said["kind"] == "enter" and said["left"] and said["next"] == self.joined + 1
        for answer in answers:
            self._say(answer)
        known = 0 <= self.joined <= self.views.number
        member = known and sender in self.views.views[self.joined].members
        if (leaves and member) or self.views.number > self.joined >= 0:
            self._ended = self.joined
        if self.views.views[-1].revision == self.links.peers.revision:
            self.links.let_go()

    def ended(self, generation: int) -> bool:
        """Whether others have said that a generation is over."""
        removed = self.rank not in self.links.peers.active  # then it only votes
        return generation <= self._ended or removed

    def _say(self, message: Message) -> None:
        self.links.flood({"kind": "view", "said": message})

    # --- what a worker asks for --------------------------------------------------------------

    def begun(self) -> bool:
        """Whether there has been a generation already: then this peer comes back."""
        return self.came_back

    def done(self) -> None:
        """Tells peers that are away that the run has ended, if they come back soon."""
        links = self.links
        links.announce(over=True)
        away = [n for n in links.peers.active if n not in self.views.members]
        names = [links.peers.names[n] for n in away]
        links.flood({"kind": "done"})
        with suppress(ParleyError):
            links.until(lambda: all(map(links.connected, names)), min(links.patience, LINGERING))

    def drop(self, worker: int, why: str) -> None:
        """The others go on without a peer that one of them has caught."""
        caught = f"{self.links.me} reports of {self.links.peers.names[worker]}: {why}"
        self.views.drop(worker, caught)

    def roster(self, generation: int) -> tuple[int, ...]:
        """Who took part in an earlier generation."""
        return self.views.views[generation].members

    def revision(self, generation: int) -> int:
        """By which revision of ``peers.toml`` a generation goes."""
        return self.views.views[generation].revision

    def waiting(self, generation: int) -> bool:
        """Whether a peer waits to be let in."""
        self._attend()
        return bool(self.views.outside(self.links.now()))

    def next_roster(self, lost: Collection[int] | None) -> Roster:
        """The next view that includes this peer; waits as long as it takes. `lost`: those without
        whom the one before has ended; None: this peer was not in it.

        Peers that are cut off from the majority wait here, with their models as they are.
        """
        links = self.links
        self._may_vote = True
        if self.joined < 0 and not self.came_back:
            self.joined = 0  # the first view is everyone
            self._keep(self.views.state())
            return Roster(0, self.views.members)
        links.want(list(links.links))
        before = self.views.inside and self.joined == self.views.number
        self.views.enter(links.now(), lost is not None or before, lost or ())
        began = tell_again = links.now()
        while True:
            self._attend()
            if self._over or any(said.get("over") for said in list(links.hellos.values())):
                raise ParleyError("peers: the run has ended without this peer")
            self._check_dropped()
            self._check_removed(links.now() - began)
            self._check_over(links.now() - began)
            if (roster := self._settled()) is not None:
                return roster
            for message in self.views.tick(links.now()):
                self._say(message)
            if links.now() >= tell_again:
                tell_again = links.now() + max(links.patience, 60.0)
                trouble = self.unreached() + self._forgotten()
                log.info("waiting for the peers that continue%s", trouble)
            links.wait(PAUSE)

    def _settled(self) -> Roster | None:
        """The newest view, if it is new and this peer is to train in it."""
        number = self.views.number
        if number <= self.joined or not self.views.inside:
            return None
        self.joined = number
        if unwelcome := self.views.unwelcome():
            self.views.enter(self.links.now(), True, unwelcome)
            return None
        self.views.settle()
        return Roster(number, self.views.members)

    def unreached(self) -> str:
        """Who cannot be reached just now, and why, as far as that is known."""
        peers = self.links.peers
        away = self.links.troubles(peers.names[n] for n in peers.active if n != self.rank)
        return "".join(f"; no link to {name}: {trouble}" for name, trouble in away.items())

    def _forgotten(self) -> str:
        """Who has no vote any more, and what to do if too few have one."""
        names = [self.links.peers.names[n] for n in self.views.forgetful()]
        said = f"; {', '.join(names)} came back without membership.json and cannot vote yet"
        remedy = "stop all peers, remove membership.json at each, and start all with --resume"
        said += f", too few can: {remedy}" if self.views.stuck() else ""
        return said if names else ""

    def _check_removed(self, waited: float) -> None:
        """Ends here if a revision removes this peer and its vote is no longer needed."""
        peers = self.links.peers
        decided = self.views.views[-1].revision >= peers.revision
        if self.rank not in peers.active and (decided or waited > self.links.patience):
            raise ParleyError(
                f"peers: revision {peers.revision} of peers.toml removes {self.links.me}"
            )

    def _check_over(self, waited: float) -> None:
        """Ends here if the run has been trained to its end and nobody is left to say so."""
        alone = not any(map(self.links.connected, self.links.links))
        if self._path is None or not alone or waited <= self.links.patience:
            return
        if (self._path.with_name(SUMMARY)).is_file():
            raise ParleyError(
                f"peers: the run in {self._path.parent} is complete: nothing is left to train"
            )

    def _check_dropped(self) -> None:
        """Ends here if the others continue without this peer, or if too few would be left."""
        dropped, members = self.views.dropped, self.views.members
        if self.rank in dropped:
            raise ParleyError(f"peers: the others continue without this peer: {dropped[self.rank]}")
        accused = [peer for peer in members if peer in dropped]
        if accused and 2 * (len(members) - len(accused)) <= len(members):
            why = "; ".join(dropped[peer] for peer in accused)
            raise ParleyError(f"peers: too few peers are left to continue: {why}")


def _peers_in(views: Sequence[Any]) -> set[int]:
    return {int(peer) for members, *_ in views for peer in members}


def read_words(said: Any) -> Words:
    """What was said at the start, as it was kept or passed on; the first are the peers' names.

    >>> read_words([["peers", ["ward-a", "ward-b"]], ["sizes", [1, 2]]])
    [('peers', ['ward-a', 'ward-b']), ('sizes', [1, 2])]
    """
    words = [(str(what), list(answers)) for what, answers in said]
    if words and not all(isinstance(name, str) for name in words[0][1]):
        raise ValueError("no names of peers")
    return words
