"""What peers tell each other at the start, kept and passed on to those that come later."""

import json
from collections.abc import Sequence
from typing import Any

from parley.errors import ParleyError
from parley.fabric.base import Fabric, Member, Part, Pending
from parley.fabric.board import Board
from parley.fabric.messages import understood

Words = list[tuple[str, list[Any]]]
"""What all peers said at the start, in order."""


class Recorder(Board):
    """Keeps what all have said, for peers that come later."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.said: Words = [("peers", [member.name for member in fabric.members])]

    def share(self, what: str, value: Any, kind: Any) -> list[Any]:
        """Every peer's value for something, in the order of their numbers."""
        answers = super().share(what, value, kind)
        self.said.append((what, answers))
        return answers


COMPARED = ("claims", "hold")
"""What a newcomer says about itself too. All else was settled at the start: how many steps an epoch
has must not change."""


class Past(Fabric):
    """Those who spoke at the start, who are not to be heard here."""

    called = "peers"

    def exchange(self, leaving: Sequence[Part], arriving: Sequence[Part]) -> Sequence[Pending]:
        """What was said is known, and nobody listens."""
        raise AssertionError("nothing is sent before a generation is agreed on")


class Replay(Board):
    """The words of the start, for a peer that comes while the others train."""

    def __init__(self, me: str, log: Words) -> None:
        """`log` begins with the names of those who spoke."""
        names = [str(name) for name in log[0][1]]
        self._came_later = me not in names
        names += [me] * self._came_later
        super().__init__(Past(names.index(me), list(map(Member, names)), 0.0, me))
        self._log = list(log[1:])

    def share(self, what: str, value: Any, kind: Any) -> list[Any]:
        """What everybody said about it then."""
        if not self._log or self._log[0][0] != what:
            raise ParleyError(
                f"peers: no peer has passed on what was agreed about {what} at the start"
            )
        answers = json.dumps(self._log.pop(0)[1])
        found: list[Any] = understood(answers, list[kind], "a peer", what)
        return [*found, value] if self._came_later and what in COMPARED else found
