"""Which of a run's processes this is, as a launcher such as torchrun says in the environment."""

import os
import socket


def started_by_launcher() -> bool:
    """Whether torchrun (or the like) has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process has the results to tell."""
    return int(os.environ.get("RANK", "0")) == 0


def speaks() -> bool:
    """Whether this process tells the user of this host what happens: one on each host does."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) == 0


def here() -> str:
    """This host's name."""
    return socket.gethostname()
