"""What the members of a generation tell each other in words: typed values, as JSON, never code."""

import json
from collections.abc import Mapping
from typing import Any

from parley.errors import ParleyError
from parley.fabric.base import Fabric, Member, Silent, WorkerLost
from parley.fabric.messages import understood


class Board:
    """Where the members of a generation exchange information; this one is number `rank`."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank = fabric.me
        self.world = len(fabric.members)
        self.host = fabric.host
        """Where this member says that it runs."""

    def wait_at_least(self, seconds: float) -> None:
        """Raises the patience to at least this many seconds."""
        self.fabric.be_patient(max(seconds, self.fabric.patience))

    def introduce(self, members: Mapping[int, Member]) -> None:
        """From now on these members are called so."""
        self.fabric.introduce(members)

    def name(self, rank: int) -> str:
        """A member as text."""
        return str(self.fabric.members[rank])

    def share(self, what: str, value: Any, kind: Any) -> list[Any]:
        """Every member's value for something, in the order of their numbers.

        `kind` is the type that it has, as pydantic understands it: anything else is refused.
        """
        try:
            said = self.fabric.gather(json.dumps([what, value]).encode())
        except WorkerLost as lost:
            if lost.names or not (lost.timed_out and lost.workers):
                raise
            who, patience = ", ".join(map(self.name, lost.workers)), self.fabric.patience
            words = f"{who} did not report its {what} within {patience:g} seconds (--patience)"
            raise Silent(f"{self.fabric.called}: {words}", lost.workers, True) from None
        return [self._read(rank, what, bytes(text), kind) for rank, text in enumerate(said)]

    def _read(self, rank: int, what: str, text: bytes, kind: Any) -> Any:
        who = self.name(rank)
        about, value = understood(text.decode("utf-8", "replace"), tuple[str, kind], who, what)
        if about != what:
            raise ParleyError(f"{self.fabric.called}: {who} sent its {about} instead of its {what}")
        return value
