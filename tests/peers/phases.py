"""Moments in a peer's life at which a test may kill or stop it, from before it listens to its
last words: the process does it to itself, so that the moment is exact."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parley.cluster import handshake, heal
from parley.peers import consensus, links, switchboard
from parley.peers.connection import Connection
from parley.store import checkpoint, journal, outputs
from parley.training import metrics

PHASES: dict[str, tuple[Any, str]] = {
    "listening": (switchboard, "listening_socket"),
    "TLS": (Connection, "_shake_hands"),
    "hello": (links.Links, "_on_hello"),
    "agreement": (handshake, "agree"),
    "start": (consensus.Paxos, "next_roster"),
    "folder": (journal.Journal, "open"),
    "equal start": (heal.Recovery, "take_up"),
    "account": (journal.Journal, "note"),
    "evaluation": (metrics.TestSet, "scores"),
    "checkpoint": (checkpoint, "save"),
    "outputs": (outputs, "write"),
    "summary": (journal.Journal, "finish"),
    "goodbye": (consensus.Paxos, "done"),
    "close": (switchboard.Switchboard, "end"),
}
"""What a peer is about to call then."""
BEFORE_TRAINING = ("listening", "TLS", "hello", "agreement")


def halt_at(phase: str, number: signal.Signals, times: int = 1) -> None:
    """Sends this process a signal when it is about to enter a phase for the n-th time."""
    where, name = PHASES[phase]
    original: Callable[..., Any] = getattr(where, name)
    left = [times]

    def changed(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), number)
        return original(*given, **named)

    setattr(where, name, changed)


def stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
