"""Taking part: from ``peers.toml`` and a key to a trained model, at every peer."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parley.cluster import handshake
from parley.cluster.host import Host
from parley.cluster.rank import started_by_launcher
from parley.cluster.worker import Assignment, Load, Outcome, Watcher, work
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.graphs import Topology
from parley.peers import keys
from parley.peers.file import Peers
from parley.peers.links import Links
from parley.peers.meeting import PeerMeeting, talking
from parley.training.problem import device_of, topology_of

log = logging.getLogger(__name__)

PROTOCOL = 1
"""Of what peers say to each other; those of another number are refused."""
SWITCHING = 0.001
"""Seconds after which Python lets the thread that moves bytes have its turn: it needs little time,
but often, and training waits for it."""


def checked(peers: Peers, experiment: Experiment, topology: Topology | None = None) -> Topology:
    """The graph of the experiment, if these peers can carry it out."""
    if started_by_launcher():
        raise BadValue("join", "torchrun", "parley join alone", "peers need no launcher")
    peers.check_agents(experiment.agents)
    if experiment.links:
        raise BadValue("links", experiment.links, "none", "the network between peers is real")
    if experiment.suspicious == "drop":
        because = "among peers, a majority decides who takes part"
        raise BadValue("suspicious", "drop", "warn or stop", because)
    device_of(experiment.device)
    graph = topology_of(experiment) if topology is None else topology
    peers.check_links(sorted(talking(peers.worker_of(), graph)))
    return graph


def part_of(host: Host, peers: Peers, me: str) -> Host:
    """This host's own part, if it fits what ``peers.toml`` says."""
    mine = peers.peer[peers.number(me)].agents
    for field, given in (("agents", host.agents), ("data", tuple(host.data) or None)):
        if given is not None and set(given) - set(mine):
            shown = ",".join(map(str, sorted(set(given) - set(mine))))
            because = f"peers.toml has other agents for {me}"
            raise BadValue(f"host.{field}", shown, f"of {', '.join(map(str, mine))}", because)
    return host


def greeting(experiment: Experiment, topology: Topology) -> dict[str, Any]:
    """What a peer says about itself to whoever it is linked with."""
    return {"protocol": PROTOCOL, "plan": handshake.plan(experiment, topology)}


def judge(mine: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], str]:
    """Says why another's greeting does not fit this one; empty if it does."""

    def judged(said: Mapping[str, Any]) -> str:
        if said.get("protocol") != mine["protocol"]:
            return f"it speaks version {said.get('protocol')} of the protocol, not {PROTOCOL}"
        theirs, ours = said.get("plan"), mine["plan"]
        if not isinstance(theirs, dict):
            return "it does not say what it wants to train"
        for key in {**ours, **theirs}:
            if theirs.get(key) != ours.get(key):
                what = "it runs another version" if key == "version" else "its experiment differs"
                there, here = _brief(theirs.get(key)), _brief(ours.get(key))
                return f"{what}: {key} is {there} there and {here} here"
        return ""

    return judged


def _brief(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def join(
    peers: Peers,
    experiment: Experiment,
    me: str,
    folder: Path,
    load: Load,
    out: Path | None,
    resume: bool,
    watch: Watcher,
    topology: Topology | None = None,
    listen: str | None = None,
) -> Outcome:
    """Trains to the end with the other peers; the same outcome at each of them.

    `folder` has this peer's key and certificate; `topology` is a graph that no file names.
    """
    number = peers.number(me)
    graph = checked(peers, experiment, topology)
    experiment = experiment.replace(workers=len(peers.names))
    hello = greeting(experiment, graph)
    identity = _own(peers, me, folder)
    with linked(identity, peers, hello, experiment.patience, listen) as links:
        meeting = PeerMeeting(
            rank=number,
            world=len(peers.names),
            patience=experiment.patience,
            heals=experiment.on_failure == "heal",
            links=links,
            peers=peers,
            topology=graph,
            out=out,
        )
        assignment = Assignment(
            experiment, load, out, resume, watch, sorted(peers.peer[number].agents)
        )
        outcome = work(assignment, meeting)
    assert outcome is not None
    return outcome


def _own(peers: Peers, me: str, folder: Path) -> keys.Identity:
    """This peer's key, if it is the one that the others know."""
    identity = keys.find(me, folder)
    holder = peers.holder(keys.read_certificate(identity.certificate))
    if holder != me:
        raise BadValue("keys", str(identity.certificate), f"that of {me}", f"it is {holder}'s")
    return identity


@contextmanager
def linked(
    identity: keys.Identity,
    peers: Peers,
    hello: Mapping[str, Any],
    patience: float,
    listen: str | None,
    checking: bool = False,
) -> Iterator[Links]:
    """Links to other peers while this is open."""
    links = Links(identity, peers, hello, judge(hello), patience, listen, checking)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCHING)
    try:
        yield links
    finally:
        sys.setswitchinterval(before)
        links.close()
