"""What links need of whatever makes connections, and what they tell those who read their events."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from parley.peers.connection import Connection
from parley.peers.file import Peers

if TYPE_CHECKING:
    from parley.peers.links import Links

SHAKING_HANDS = 10.0
"""Seconds in which a connection has to prove who it is."""


class Said(NamedTuple):
    """A peer has said something to everyone."""

    origin: str
    message: Any


class Behind(NamedTuple):
    """A peer has come with another revision of ``peers.toml``."""

    name: str


Event = Said | Behind


class Changed(Protocol):
    """Held while links are looked at or changed; notified whenever something has happened."""

    def __enter__(self) -> bool: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...

    def wait(self, timeout: float) -> bool:
        """Lets others have it until something has happened, for so many seconds at most."""
        ...

    def notify_all(self) -> None:
        """Something has happened."""
        ...


class Carrier(Protocol):
    """Makes connections to other peers, and tells the links of what comes over them: calls
    `encrypted` of each connection whose other end has proved who it is, `place` and `came` of every
    frame, `dropped`, `not_dialled`, `tick` now and then, and `fail`."""

    @property
    def changed(self) -> Changed:
        """Held while the owner is told of anything but a frame."""
        ...

    @property
    def connections(self) -> Iterable[Connection]:
        """All that are open."""
        ...

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def start(self, owner: "Links") -> None:
        """From now on bytes move."""
        ...

    def wake(self) -> None:
        """There is something to do."""
        ...

    def read_on(self, connection: Connection) -> None:
        """A connection that was paused goes on."""
        ...

    def drop(self, connection: Connection, why: str, quietly: bool = False) -> None:
        """Closes a connection and tells its owner; `quietly`: and nobody else."""
        ...

    def dials(self, name: str) -> bool:
        """Whether a connection to that peer is being made."""
        ...

    def dial(self, name: str, address: str) -> None:
        """Begins to make one."""
        ...

    def revise(self, peers: Peers) -> None:
        """From now on a newer ``peers.toml`` says who is let in."""
        ...

    def end(self) -> None:
        """Sends what waits, as far as it can be, and closes everything."""
        ...
