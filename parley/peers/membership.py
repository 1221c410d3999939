"""Going on without peers that are lost, and taking them back, with nobody in charge."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parley.cluster.join import Roster
from parley.errors import ParleyError
from parley.files import write_atomically
from parley.peers.file import Peers
from parley.peers.links import PARTING, Links
from parley.peers.views import Message, View, Views
from parley.store.folder import EXPERIMENT

log = logging.getLogger(__name__)

KEPT = "membership.json"
"""In the run's folder: what this peer has promised, and what was said at the start."""
PAUSE = 0.05
"""Seconds between two looks at what is due."""

Words = list[tuple[str, list[Any]]]
"""What all peers said at the start, in order."""


class PeerMembership:
    """This peer's part in deciding who trains next."""

    def __init__(
        self, links: Links, rank: int, peers: Peers, patience: float, out: Path | None
    ) -> None:
        """`peers` is the newest revision that this peer knows."""
        self.links = links
        self.rank = rank
        self.words: Words = []
        self.over = False
        """Whether the run has ended."""
        self._path = out / KEPT if out else None
        kept = self._read()
        self.came_back = kept is not None
        """Whether this peer has taken part before."""
        if kept is not None:
            self.words = [(what, answers) for what, answers in kept["words"]]
        first = View(peers.active, peers.revision)
        self.views = Views(rank, first, patience, self._keep, kept)
        self.joined = self.views.number if kept else -1
        """The newest view in which this peer has trained, or may have before it was started."""

    def _read(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.is_file():
            return None
        try:
            found: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            Views(0, View(()), 1.0, kept=found)
            return found
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ParleyError(
                f"peers: {self._path} is damaged; remove it if no other peer trains any more"
            ) from None

    def _keep(self, state: Message) -> None:
        # A folder without an experiment is not yet a run's, and nobody can have promised anything.
        if self._path is not None and (self._path.parent / EXPERIMENT).is_file():
            write_atomically(self._path, json.dumps({**state, "words": self.words}) + "\n")

    def hear(self, sender: int, said: Any) -> None:
        """Another peer has said something about views; called by the thread of the links."""
        try:
            answers = self.views.hear(time.monotonic(), sender, said)
            leaves = said["kind"] == "enter" and said["left"] and said["next"] == self.joined + 1
        except (KeyError, TypeError, ValueError, AttributeError):
            log.debug("a message about views that cannot be understood: %r", said)
            return
        for answer in answers:
            self._say(answer)
        known = 0 <= self.joined <= self.views.number
        member = known and sender in self.views.views[self.joined].members
        if (leaves and member) or self.views.number > self.joined >= 0:
            self.links.end(self.joined + 1)
        if self.views.views[-1].revision == self.links.peers.revision:
            self.links.parting = PARTING  # whoever is removed has voted for the last time

    def _say(self, message: Message) -> None:
        self.links.flood({"kind": "view", "said": message})

    # --- what a worker asks for --------------------------------------------------------------

    def begun(self) -> bool:
        """Whether there has been a generation already: then this peer comes back."""
        return self.came_back

    def done(self) -> None:
        """Tells peers that come later that the run has ended."""
        self.links.flood({"kind": "done"})

    def drop(self, worker: int, why: str) -> None:
        """The others go on without a peer that one of them has caught."""
        caught = f"{self.links.me} reports of {self.links.peers.names[worker]}: {why}"
        with self.links.changed:
            self.views.drop(worker, caught)

    def beat(self) -> None:
        """Links show by themselves that this peer is there."""

    def roster(self, generation: int) -> tuple[int, ...]:
        """Who took part in an earlier generation."""
        with self.links.changed:
            return self.views.views[generation].members

    def waiting(self, generation: int) -> bool:
        """Whether a peer waits to be let in."""
        with self.links.changed:
            return bool(self.views.outside(time.monotonic()))

    def next_roster(self, left: bool) -> Roster:
        """The next view that includes this peer; waits as long as it takes.

        Peers that are cut off from the majority wait here, with their models as they are.
        """
        if self.joined < 0 and not self.came_back:
            self.joined = 0  # the first view is everyone
            self._keep(self.views.state())
            return Roster(0, self.views.members)
        links = self.links
        links.want(list(links.links))
        lost = [links.peers.number(link.name) for link in links.links.values() if link.given_up]
        with links.changed:
            before = self.rank in self.views.members and self.joined == self.views.number
            self.views.enter(time.monotonic(), left or before, lost)
        told, began = False, time.monotonic()
        while True:
            with links.changed:
                if links.failure is not None:
                    raise links.failure
                if self.over:
                    raise ParleyError("peers: the run has ended without this peer")
                self._check_dropped()
                self._check_removed(time.monotonic() - began)
                number, members = self.views.number, self.views.members
                if number > self.joined and self.rank in members:
                    self.joined = number
                    unwelcome = self.views.unwelcome()
                    if not unwelcome:
                        self.views.settle()
                        return Roster(number, members)
                    self.views.enter(time.monotonic(), True, unwelcome)
                messages = self.views.tick(time.monotonic())
            for message in messages:
                self._say(message)
            if not told:
                told = True
                log.info("waiting for the peers that go on together")
            time.sleep(PAUSE)

    def _check_removed(self, waited: float) -> None:
        """Ends here if a revision removes this peer and its vote is no longer needed."""
        peers = self.links.peers
        decided = self.views.views[-1].revision >= peers.revision
        if self.rank not in peers.active and (decided or waited > self.links.patience):
            raise ParleyError(
                f"peers: revision {peers.revision} of peers.toml removes {self.links.me}"
            )

    def _check_dropped(self) -> None:
        """Ends here if the others go on without this peer, or if too few would be left."""
        dropped, members = self.views.dropped, self.views.members
        if self.rank in dropped:
            raise ParleyError(f"peers: the others go on without this peer: {dropped[self.rank]}")
        accused = [peer for peer in members if peer in dropped]
        if accused and 2 * (len(members) - len(accused)) <= len(members):
            why = "; ".join(dropped[peer] for peer in accused)
            raise ParleyError(f"peers: too few are left to go on: {why}")


def asked_words(links: Links, membership: PeerMembership, seconds: float) -> Words:
    """What was said at the start, from whoever knows."""
    deadline = time.monotonic() + seconds
    while not membership.words:
        if time.monotonic() > deadline:
            raise ParleyError(
                f"peers: nobody has told within {seconds:g} seconds what was said at the start"
            )
        links.flood({"kind": "words?"})
        heard: Callable[[], bool] = lambda: bool(membership.words)  # noqa: E731
        links.until(heard, 1.0)
    return membership.words
