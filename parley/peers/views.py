"""Numbered views: who takes part, agreed on by a majority of those who took part before.

Nothing here opens a socket or asks for the time: messages and the time come in, messages go out,
and what must not be forgotten is handed to `keep` before anything that depends on it is said. View
0 is everyone in ``peers.toml``. Each later view is one decision of Paxos among the members of the
view before it, so there are never two different views of one number, whoever dies or is cut off. A
view also says which revision of ``peers.toml`` it goes by. Revisions never change who decides on
the next view, or two majorities that have nobody in common might.

A peer that has lost its disk may have voted and not know it. Its memory therefore has a name, which
is new when the memory is, and a view says whose memory it counts on: nobody else's votes on the
next one. A view with the new name is decided after the old memory was lost, so that what the peer
has forgotten can only be about that view or earlier ones, on which it does not vote again.

    outside ──enters──▶ waiting ──view──▶ training ──end──▶ done
                           ▲                  │
                           └──somebody is lost, or somebody waits outside
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from parley.fabric.messages import printable

Message = dict[str, Any]
Ballot = tuple[int, int]
"""A round, and who began it."""

BEAT = 0.5
"""Seconds after which whoever wants to be in the next view says so again."""
FRESH = 6 * BEAT
"""Seconds for which that counts, at least; half the patience, if that is more."""
TURN = 1.0
"""Seconds after which another may propose, if the first has not succeeded."""
NONE: Ballot = (0, -1)
MOST_ROUNDS = 1 << 62
"""Beyond any number that is reached; one of thousands of digits could not be written."""
MEMORY = re.compile("[0-9a-f]{1,32}")
"""The name of a memory."""


class View(NamedTuple):
    """Who takes part, and by which revision of ``peers.toml``."""

    members: tuple[int, ...]
    revision: int = 1
    memories: tuple[str, ...] = ()
    """The name of each member's memory."""


class Heard(NamedTuple):
    """What a peer that wants to be in the next view has said last."""

    when: float
    lost: frozenset[int]
    """Whom it misses."""
    memory: str


class Views:
    """What one peer knows of the views, and its part in deciding the next."""

    def __init__(
        self,
        me: int,
        first: View,
        patience: float,
        memory: str,
        keep: Callable[[Message], None] = lambda state: None,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        """`first` is everyone; `memory` names what is remembered here, and is new where nothing is;
        `kept` is what was last handed to `keep`, where this peer has been here before."""
        self.me = me
        self.memory = memory
        self.patience = patience
        self.fresh = max(FRESH, patience / 2)
        self.views: list[View] = [first]
        self.revision = first.revision
        """The newest revision that is known here."""
        self.allowed = frozenset(first.members)
        """Those who take part according to it."""
        self.dropped: dict[int, str] = {}
        """Those whom somebody has accused, and why: the others go on without them."""
        self._keep = keep
        self._promised: Ballot = NONE
        self._accepted: tuple[Ballot, View] | None = None
        self._entered_at: float | None = None
        self._left = False
        self._lost: set[int] = set()
        self._heard: dict[int, Heard] = {}
        """Who wants to be in the next view."""
        self._said = self._proposed = float("-inf")
        self._ballot: Ballot = NONE
        self._promises: dict[int, tuple[Ballot, View] | None] = {}
        self._wish = View(())
        self._value: View | None = None
        self._acceptances: set[int] = set()
        self._needed = 0
        """How many have to vote for the view that is proposed here."""
        if kept is not None:
            self.memory = _memory(kept["memory"])
            self.views = [_view(view) for view in kept["views"]]
            self.dropped = {int(peer): str(why) for peer, why in kept["dropped"].items()}
            self._promised = _ballot(kept["promised"])
            if kept["accepted"] is not None:
                ballot, view = kept["accepted"]
                self._accepted = _ballot(ballot), _view(view)

    @property
    def number(self) -> int:
        """Of the newest view."""
        return len(self.views) - 1

    @property
    def members(self) -> tuple[int, ...]:
        """Those of the newest view."""
        return self.views[-1].members

    @property
    def inside(self) -> bool:
        """Whether this peer is in the newest view, which counts on its memory."""
        return self.me in self.members and self._remembers(self.me, self.memory)

    def _remembers(self, member: int, memory: str) -> bool:
        view = self.views[-1]
        return dict(zip(view.members, view.memories, strict=False)).get(member) == memory

    def meet(self, memories: Sequence[str]) -> None:
        """Everyone has come together: the first view counts on these memories."""
        [first] = self.views
        self.views = [first._replace(memories=tuple(memories))]

    def forget(self) -> None:
        """Others have begun already, and this peer does not know with whom."""
        self.views = [View((), 0)]

    def revise(self, revision: int, allowed: Collection[int]) -> None:
        """A newer revision is known here, and who takes part according to it."""
        self.revision, self.allowed = revision, frozenset(allowed)

    def drop(self, peer: int, why: str) -> None:
        """This peer goes on without another, and tells everyone."""
        self.dropped.setdefault(peer, why)
        self._remember()

    def unwelcome(self) -> list[int]:
        """Members of the newest view with whom nobody is to train."""
        return [peer for peer in self.members if not self._welcome(peer)]

    def _welcome(self, peer: int) -> bool:
        return peer in self.allowed and peer not in self.dropped

    def enter(self, now: float, left: bool, lost: Collection[int] = ()) -> None:
        """This peer wants to be in the next view. `left`: it was in the newest, and has ended its
        part, since it could not reach those who are `lost` or because somebody waits outside."""
        if self._entered_at is None or left != self._left:
            self._entered_at = now
        self._left = left
        self._lost = set(lost)
        self._said = float("-inf")

    def settle(self) -> None:
        """This peer has got what it wanted, and trains."""
        self._entered_at = None

    def outside(self, now: float) -> list[int]:
        """Who waits to be let in, for the first time or with a new memory."""
        wanting = self._wanting(now)
        return [peer for peer in wanting if not self._remembers(peer, self._heard[peer].memory)]

    def tick(self, now: float) -> list[Message]:
        """What is due: to be called every now and then while this peer waits."""
        if self._entered_at is None:
            return []
        said: list[Message] = []
        if now - self._said >= BEAT:
            self._said = now
            self._heard[self.me] = Heard(now, frozenset(self._lost), self.memory)
            wish = {"left": self._left, "lost": sorted(self._lost), "memory": self.memory}
            said.append(self._message("enter", **wish))
            said += [self._dropped()] if self.dropped else []
        if (wanted := self._due(now)) is not None:
            place = wanted.members.index(self.me) if self.me in wanted.members else 0
            if now - self._proposed >= TURN * (1 + place) and self._patient(now, place):
                self._proposed = now
                said += self._prepare(wanted)
        return said

    def _patient(self, now: float, place: int) -> bool:
        """Whether those with smaller numbers have had their turn."""
        assert self._entered_at is not None
        return now - self._entered_at >= TURN * place / 2

    def _wanting(self, now: float) -> list[int]:
        fresh = (peer for peer, said in self._heard.items() if now - said.when <= self.fresh)
        return sorted(peer for peer in fresh if self._welcome(peer))

    def _due(self, now: float) -> View | None:
        """Whom the next view should have, if it is time to propose it."""
        assert self._entered_at is not None
        if not self._left or not self.inside:
            return None
        wanted = self._wanting(now)
        missing = set(self.members) - set(wanted) - set(self.unwelcome())
        given_up = set().union(*(self._heard[peer].lost for peer in wanted))
        waited = now - self._entered_at > self.patience
        memories = tuple(self._heard[peer].memory for peer in wanted)
        view = View(tuple(wanted), self.revision, memories)
        return None if (missing - given_up and not waited) or not self._large(view) else view

    def _large(self, view: View) -> bool:
        """Whether most of the members go on who may, by the revision of that view."""
        may = set(self.members)
        if view.revision == self.revision:
            may &= self.allowed
        return 2 * len(may & set(view.members)) > len(may)

    def _majority(self) -> int:
        """How many members are enough: more than half.

        Where somebody has forgotten its votes, and so has none, half of an even number are: those
        who vote from now on are fewer than all, so that two halves of them still have somebody in
        common. Of two peers, one can go on with the other that has lost its disk.
        """
        return (len(self.members) + (1 if self.forgetful() else 2)) // 2

    def forgetful(self) -> list[int]:
        """Members that have come back without their memory, and cannot vote on the next view."""
        heard = [(peer, self._heard[peer].memory) for peer in self.members if peer in self._heard]
        return [peer for peer, memory in heard if not self._remembers(peer, memory)]

    def stuck(self) -> bool:
        """Whether too few members are left that can vote."""
        return len(self.members) - len(self.forgetful()) < self._majority()

    # --- Paxos, once for every number --------------------------------------------------------

    def hear(self, now: float, sender: int, said: Mapping[str, Any]) -> list[Message]:
        """What another peer (or this one) has said; gives the answers, which everyone may hear."""
        number = said["next"]
        if said["kind"] == "decided":
            self._learn([_view(view) for view in said["views"]])
            return []
        if said["kind"] == "dropped":
            if self._welcome(sender):
                for peer, why in said["dropped"].items():
                    self.dropped.setdefault(int(peer), printable(str(why)))
                self._remember()
            return []
        if sender in self.dropped:
            return [self._dropped()] if said["kind"] == "enter" else []
        if number <= self.number:  # whoever asks has missed something
            return [self._decided()] if said["kind"] in ("enter", "prepare", "accept") else []
        if number > self.number + 1:
            return []  # something is missing here; it will come when this peer speaks
        if said["kind"] == "enter":
            self._heard[sender] = Heard(now, frozenset(said["lost"]), _memory(said["memory"]))
            return []
        if not self.inside or sender not in self.members:
            return []
        answer = {
            "prepare": self._on_prepare,
            "promise": self._on_promise,
            "accept": self._on_accept,
            "accepted": self._on_accepted,
        }[said["kind"]]
        return answer(sender, said)

    def _prepare(self, wanted: View) -> list[Message]:
        self._ballot = max(self._promised, self._ballot)[0] + 1, self.me
        self._promises, self._acceptances, self._value = {}, set(), None
        self._wish, self._needed = wanted, self._majority()
        asked = self._message("prepare", ballot=self._ballot)
        return [asked, *self.hear(0.0, self.me, asked)]

    def _on_prepare(self, sender: int, said: Mapping[str, Any]) -> list[Message]:
        ballot = _ballot(said["ballot"])
        if ballot <= self._promised:
            return []
        self._promised = ballot
        self._remember()
        promise = self._message("promise", ballot=ballot, to=sender, accepted=self._accepted)
        return [promise, *(self.hear(0.0, self.me, promise) if sender == self.me else [])]

    def _on_promise(self, sender: int, said: Mapping[str, Any]) -> list[Message]:
        if said["to"] != self.me or _ballot(said["ballot"]) != self._ballot:
            return []
        before = said["accepted"]
        self._promises[sender] = None if before is None else (_ballot(before[0]), _view(before[1]))
        if self._value is not None or len(self._promises) < self._needed:
            return []
        # What may have been decided already stays decided.
        older = [found for found in self._promises.values() if found is not None]
        self._value = max(older)[1] if older else self._wish
        asked = self._message("accept", ballot=self._ballot, view=self._value)
        return [asked, *self.hear(0.0, self.me, asked)]

    def _on_accept(self, sender: int, said: Mapping[str, Any]) -> list[Message]:
        ballot, view = _ballot(said["ballot"]), _view(said["view"])
        # An older revision is accepted, since it may have been decided on already; a newer one
        # has to become known here first.
        known = self.views[-1].revision <= view.revision <= self.revision
        if ballot < self._promised or not self._large(view) or not known:
            return []
        self._promised, self._accepted = ballot, (ballot, view)
        self._remember()
        accepted = self._message("accepted", ballot=ballot, to=sender)
        return [accepted, *(self.hear(0.0, self.me, accepted) if sender == self.me else [])]

    def _on_accepted(self, sender: int, said: Mapping[str, Any]) -> list[Message]:
        if said["to"] != self.me or _ballot(said["ballot"]) != self._ballot:
            return []
        self._acceptances.add(sender)
        if self._value is None or len(self._acceptances) < self._needed:
            return []
        self._learn([*self.views, self._value])
        return [self._decided()]

    def _learn(self, views: list[View]) -> None:
        """Views that were decided, from the first on; not if they contradict what is known."""
        known = len(self.views) if self.members else 0
        newest = max((view.revision for view in views), default=0)
        if len(views) <= len(self.views) or views[:known] != self.views[:known]:
            return
        if newest > self.revision or not all(view.members for view in views):
            return  # a revision has to become known here first; this will be said again
        self.views = views
        self._promised, self._accepted = NONE, None
        self._ballot, self._promises, self._value = NONE, {}, None
        self._acceptances = set()
        self._heard = {}
        self._left = False
        self._said = float("-inf")
        self._remember()

    def _remember(self) -> None:
        self._keep(self.state())

    def state(self) -> Message:
        """What must not be forgotten."""
        return {
            "memory": self.memory,
            "views": self.views,
            "promised": self._promised,
            "accepted": self._accepted,
            "dropped": {str(peer): why for peer, why in self.dropped.items()},
        }

    def _decided(self) -> Message:
        return {"kind": "decided", "next": self.number, "views": self.views}

    def _dropped(self) -> Message:
        said = {str(peer): why for peer, why in self.dropped.items()}
        return self._message("dropped", dropped=said)

    def _message(self, kind: str, **said: Any) -> Message:
        return {"kind": kind, "next": self.number + 1, **said}


def _view(said: Any) -> View:
    members, revision, memories = said
    if len(memories) != len(members):
        raise ValueError("a member without a memory")
    return View(tuple(int(peer) for peer in members), int(revision), tuple(map(_memory, memories)))


def _memory(said: Any) -> str:
    if not MEMORY.fullmatch(str(said)):
        raise ValueError("no name of a memory")
    return str(said)


def _ballot(said: Any) -> Ballot:
    round_, peer = said
    if not 0 <= int(round_) < MOST_ROUNDS:
        raise ValueError("no number of a round")
    return int(round_), int(peer)
