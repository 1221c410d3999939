"""Which of a run's processes this is, according to the environment set by a launcher."""

import os
import socket


def started_by_launcher() -> bool:
    """Whether torchrun or a similar launcher started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process reports the results."""
    return int(os.environ.get("RANK", "0")) == 0


def speaks() -> bool:
    """Whether this process prints what happens: one per host does."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) == 0


def here() -> str:
    """This host's name."""
    return socket.gethostname()
