"""Ports for tests, which nobody else is given between the moment they are chosen and their use.

A port that the system chooses for us may be chosen again for any outgoing connection as soon as it
is closed. Those below are never chosen by the system, and never twice by one process.
"""

import os
import socket

FIRST, END = 12_000, 32_000
"""Below the range from which Linux takes ports for outgoing connections."""
_tried = os.getpid() * 97
"""Where this process continues; others begin elsewhere."""


def free_ports(count: int) -> list[int]:
    """Ports of this machine at which nobody listens."""
    global _tried
    found: list[int] = []
    while len(found) < count:
        _tried += 1
        port = FIRST + _tried % (END - FIRST)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found
