"""What peers tell each other in words: JSON, gathered along the tree."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parley.cluster.messages import understood
from parley.cluster.noticeboard import Board, Member
from parley.errors import ParleyError
from parley.peers.group import Group


class PeerBoard(Board):
    """Where the peers of a generation tell each other something."""

    def __init__(
        self,
        group: Group,
        patience: float,
        members: Mapping[int, Member] | None = None,
        note: Callable[[str, list[Any]], None] | None = None,
    ) -> None:
        """`note` is told of everything that was said here."""
        self.group = group
        super().__init__(group.here, len(group.names), patience, members)
        self.host = group.names[group.here]
        self._note = note

    def name(self, rank: int) -> str:
        """A peer's own name."""
        return self.group.names[rank]

    def share(self, what: str, value: Any, kind: Any) -> list[Any]:
        """Every peer's value for something, in the order of their numbers."""
        said = self.group.gather(json.dumps([what, value]).encode())
        answers = [self._read(rank, what, bytes(text), kind) for rank, text in enumerate(said)]
        if self._note is not None:
            self._note(what, answers)
        return answers

    def _read(self, rank: int, what: str, text: bytes, kind: Any) -> Any:
        who = self.name(rank)
        about, value = understood(text.decode("utf-8", "replace"), tuple[str, kind], who, what)
        if about != what:
            raise ParleyError(f"peers: {who} sent its {about} instead of its {what}")
        return value


COMPARED = ("claims", "hold")
"""What a newcomer says about itself too. All else was settled at the start: how many steps an epoch
has must not change."""


class Replay(Board):
    """The words of the start, for a peer that comes while the others train."""

    def __init__(
        self,
        me: str,
        patience: float,
        log: Sequence[tuple[str, list[Any]]],
    ) -> None:
        """`log` begins with the names of those who spoke."""
        names = [str(name) for name in log[0][1]]
        self._names = names if me in names else [*names, me]
        super().__init__(self._names.index(me), len(self._names), patience)
        self.host = me
        self._came_later = me not in names
        self._log = list(log[1:])

    def name(self, rank: int) -> str:
        """A peer's own name."""
        return self._names[rank]

    def share(self, what: str, value: Any, kind: Any) -> list[Any]:
        """What everybody said about it then."""
        if not self._log or self._log[0][0] != what:
            raise ParleyError(
                f"peers: no peer has passed on what was agreed about {what} at the start"
            )
        answers = json.dumps(self._log.pop(0)[1])
        found: list[Any] = understood(answers, list[kind], "a peer", what)
        return [*found, value] if self._came_later and what in COMPARED else found
