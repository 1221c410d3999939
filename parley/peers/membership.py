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
from parley.peers.links import Links
from parley.peers.views import Message, Views
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

    def __init__(self, links: Links, rank: int, world: int, patience: float, out: Path | None):
        self.links = links
        self.rank = rank
        self.words: Words = []
        self.over = False
        """Whether the run has ended."""
        self._path = out / KEPT if out else None
        self._state: Message = {}
        kept = self._read()
        self.came_back = kept is not None
        """Whether this peer has taken part before."""
        if kept is not None:
            self.words = [(what, answers) for what, answers in kept["words"]]
        self.views = Views(rank, world, patience, self._keep, kept)
        self.joined = self.views.number if kept else -1
        """The newest view in which this peer has trained, or may have before it was started."""

    def _read(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.is_file():
            return None
        try:
            found: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            Views(0, 1, 1.0, kept=found)
            return found
        except (ValueError, KeyError, TypeError):
            raise ParleyError(
                f"peers: {self._path} is damaged; remove it if no other peer trains any more"
            ) from None

    def _keep(self, state: Message) -> None:
        self._state = state
        # A folder without an experiment is not yet a run's, and nobody can have promised anything.
        if self._path is not None and (self._path.parent / EXPERIMENT).is_file():
            write_atomically(self._path, json.dumps({**state, "words": self.words}) + "\n")

    def hear(self, sender: int, said: Any) -> None:
        """Another peer has said something about views; called by the thread of the links."""
        try:
            answers = self.views.hear(time.monotonic(), sender, said)
            leaves = said["kind"] == "enter" and said["left"] and said["next"] == self.joined + 1
        except (KeyError, TypeError, ValueError):
            log.debug("a message about views that cannot be understood: %r", said)
            return
        for answer in answers:
            self._say(answer)
        member = 0 <= self.joined <= self.views.number and sender in self.views.views[self.joined]
        if (leaves and member) or self.views.number > self.joined >= 0:
            self.links.end(self.joined + 1)

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
        """Refused at the start: a majority decides who takes part, not one peer's suspicion."""
        raise ParleyError(why)

    def beat(self) -> None:
        """Links show by themselves that this peer is there."""

    def roster(self, generation: int) -> tuple[int, ...]:
        """Who took part in an earlier generation."""
        with self.links.changed:
            return self.views.views[generation]

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
            self._keep({"views": self.views.views, "promised": (0, -1), "accepted": None})
            return Roster(0, self.views.members)
        links = self.links
        links.want(list(links.links))
        lost = [links.peers.number(link.name) for link in links.links.values() if link.given_up]
        with links.changed:
            before = self.rank in self.views.members and self.joined == self.views.number
            self.views.enter(time.monotonic(), left or before, lost)
        told = False
        while True:
            with links.changed:
                if links.failure is not None:
                    raise links.failure
                if self.over:
                    raise ParleyError("peers: the run has ended without this peer")
                number, members = self.views.number, self.views.members
                if number > self.joined and self.rank in members:
                    self.views.settle()
                    self.joined = number
                    return Roster(number, members)
                messages = self.views.tick(time.monotonic())
            for message in messages:
                self._say(message)
            if not told:
                told = True
                log.info("waiting for the peers that go on together")
            time.sleep(PAUSE)


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
