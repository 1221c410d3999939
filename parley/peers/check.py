"""Who is reachable, whose key fits, whose experiment differs: a look before training."""

import time
from pathlib import Path
from typing import NamedTuple

from parley.experiment import Experiment
from parley.peers.file import Peers
from parley.peers.join import checked, greeting, linked, own_key

PARTING = 1.0
"""Seconds in which others may still read what this peer has said to them."""


class Row(NamedTuple):
    """What was found out about one peer."""

    name: str
    address: str
    agents: tuple[int, ...]
    state: str
    fits: bool


def check(
    peers: Peers,
    experiment: Experiment,
    me: str,
    folder: Path,
    seconds: float,
    listen: str | None = None,
) -> list[Row]:
    """Dials every peer, and listens for those that dial, until all were met or time is over.

    Whoever trains already, or looks as well, answers.
    """
    peers.number(me)
    graph = checked(peers, experiment)
    identity = own_key(peers, me, folder)
    others = [peers.names[n] for n in peers.active if peers.names[n] != me]
    with linked(identity, peers, greeting(experiment, graph), seconds, listen, True) as links:
        links.want(others)
        links.until(lambda: all(name in links.verdicts for name in others), seconds)
        rows = []
        for peer in peers.peer:
            if peer.name == me:
                state, fits = "this peer", True
            elif peer.removed:
                state, fits = "removed", True
            elif peer.name in links.verdicts:
                trouble = links.verdicts[peer.name]
                state, fits = trouble or "ready: its key and its experiment fit", not trouble
            else:
                unheard = "it did not call" if peer.address is None else "no answer"
                state, fits = links.links[peer.name].trouble or unheard, False
            rows.append(Row(peer.name, peer.address or "dials only", peer.agents, state, fits))
        time.sleep(PARTING)
    return rows
