"""What a peer knows of another: the session with it, and how its connection fares."""

from dataclasses import dataclass, field

from parley.peers.connection import Connection
from parley.peers.frames import Session


@dataclass
class Link:
    """What is known of one other peer."""

    name: str
    session: Session = field(default_factory=Session)
    life: str = ""
    """Which start of the other peer the session is with."""
    connection: Connection | None = None
    since: float = 0.0
    """When the connection was made or lost."""
    told: int = 0
    """The last number that was acknowledged to it."""
    unsaid: int = 0
    """Bytes that have come since."""
    flooded: int = 0
    """Bytes for everyone that have come from it within a second."""
    flooded_at: float = 0.0
    """When that second began."""
    spoke: float = 0.0
    """When something was last sent to it."""
    wanted: bool = False
    next_dial: float = 0.0
    failures: int = 0
    trouble: str = ""
    """Why there is no connection, if that is known."""
    left: str | None = None
    """Its last words, if it has left of its own accord."""
    removed: str = ""
    """Why it no longer takes part, if it does not."""
    removed_at: float = 0.0
    restarted: bool = False
    """Whether it has been started anew since the generation began."""

    def lost(self, now: float, began: float, patience: float) -> str | None:
        """Why the peer counts as gone for somebody who has waited since `began`, if it does."""
        if self.removed:
            return self.removed
        if self.restarted:
            return "it was started again"
        if self.left is not None:
            return self.left or "it has left"
        if self.connection is None and now - max(self.since, began) > patience:
            why = f"no connection for {patience:g} seconds"
            return f"{why}: {self.trouble}" if self.trouble else why
        # Whoever waits for another itself is given the time to say so.
        if now - began > 1.5 * patience:
            return f"no answer for {1.5 * patience:g} seconds"
        return None
