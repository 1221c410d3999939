"""Why a member ends, as it is told to the others and read by them."""

import json
from typing import Any

from parley.errors import Diverged, ParleyError
from parley.fabric.base import WorkerLost
from parley.fabric.messages import Failure, understood


def written_failure(error: ParleyError) -> str:
    """An error as it is reported to others: its message, and its type where that matters."""
    said: dict[str, Any] = {"words": str(error)}
    if isinstance(error, Diverged):
        said |= {"step": error.step, "epoch": error.epoch}
    if isinstance(error, WorkerLost):
        said |= {"lost": list(error.workers)}
    return json.dumps(said)


def read_failure(note: str) -> ParleyError:
    """An error that another process reported.

    >>> read_failure(written_failure(Diverged("loss: nan", step=7, epoch=2))).step
    7
    """
    try:
        said = understood(note, Failure, "another process", "failure")
    except ParleyError as error:
        return error
    if "step" in said:
        return Diverged(said["words"], said["step"], said.get("epoch", 0))
    if "lost" in said:
        return WorkerLost(said["words"], said["lost"])
    return ParleyError(said["words"])


def unexpected(error: Exception) -> str:
    """An error that is a mistake in some code, as it is reported to other hosts.

    Its message may quote data of this host, so only its kind is passed on.

    >>> unexpected(ValueError("could not convert string to float: 'Jane Doe'"))
    'failed with a ValueError; its own output says more'
    """
    kind = type(error).__name__
    article = "an" if kind[0] in "AEIOU" else "a"
    return f"failed with {article} {kind}; its own output says more"
