"""Taking part: from ``peers.toml`` and a key to a trained model, at every peer."""

import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from parley.cluster import handshake
from parley.cluster.host import Host
from parley.cluster.rank import started_by_launcher
from parley.cluster.run import Assignment, Load, Outcome, Watcher
from parley.cluster.worker import work
from parley.compute import precision
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.fabric.base import WorkerLost
from parley.graphs import Topology
from parley.peers import keys
from parley.peers.connection import Refused, Security, rehearse
from parley.peers.file import Peers
from parley.peers.links import Links
from parley.peers.meeting import PeerMeeting, grouped
from parley.peers.revisions import Revisions, Watched
from parley.peers.switchboard import in_words, over_tls
from parley.process import switching
from parley.training.problem import device_of, topology_of

log = logging.getLogger(__name__)

T = TypeVar("T")

PROTOCOL = 2
"""Of what peers say to each other; those of another number are refused."""
MEETINGS = 10
"""How often peers that heal meet anew if one is lost before any of them has trained."""
BETWEEN = 2.0
"""Seconds before they do: all have noticed by then."""
SWITCHING = 0.001
"""Seconds after which the thread that moves bytes has its turn."""


def checked(peers: Peers, experiment: Experiment, topology: Topology | None = None) -> Topology:
    """The graph of the experiment, if these peers can carry it out."""
    if started_by_launcher():
        raise BadValue("join", "torchrun", "parley join alone", "peers need no launcher")
    peers.check_agents(experiment.agents)
    if peers.vacant and experiment.on_failure != "heal":
        because = "without healing, every agent takes part from the start"
        raise BadValue("vacant", list(peers.vacant), 'none, or on_failure = "heal"', because)
    if experiment.links:
        raise BadValue("links", experiment.links, "none", "the network between peers is real")
    precision.check_device(experiment.precision, device_of(experiment.device))
    graph = topology_of(experiment) if topology is None else topology
    _, pairs = grouped(peers, graph, peers.active)
    peers.check_links([(peers.active[i], peers.active[j]) for i, j in sorted(pairs)])
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
            return (
                f"it speaks version {_brief(said.get('protocol'))} of the protocol, not {PROTOCOL}"
            )
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
    file: Path | None = None,
) -> Outcome:
    """Trains to the end with the other peers; the same outcome at each of them.

    `folder` has this peer's key and certificate; `topology` is a graph that no file names. `file`
    is where newer revisions of ``peers.toml`` may appear.
    """
    graph = checked(peers, experiment, topology)
    heals = experiment.on_failure == "heal"
    revisions = Revisions(peers, out if heals else None)
    peers = revisions.newest
    number = peers.number(me)
    experiment = experiment.replace(workers=len(peers.active))
    hello = greeting(experiment, graph)
    identity = own_key(peers, me, folder)
    assignment = Assignment(experiment, load, out, resume, watch, sorted(peers.peer[number].agents))
    links = partial(linked, identity, peers, hello, experiment.patience, listen, grows=heals)

    def meeting(links: Links) -> PeerMeeting:
        return PeerMeeting(
            rank=number,
            world=len(peers.names),
            patience=experiment.patience,
            heals=heals,
            links=links,
            revisions=revisions,
            topology=graph,
            out=out,
            file=Watched(file) if file and heals else None,
        )

    outcome = met(links, meeting, partial(work, assignment))
    assert outcome is not None
    return outcome


def met(
    linked: Callable[[], AbstractContextManager[Links]],
    meeting_over: Callable[[Links], PeerMeeting],
    work: Callable[[PeerMeeting], T],
    pause: Callable[[float], None] = time.sleep,
) -> T:
    """What comes of a meeting; peers that heal meet anew if one is lost before they train."""
    for attempt in range(MEETINGS):
        with linked() as links:
            meeting = meeting_over(links)
            try:
                return work(meeting)
            except WorkerLost as lost:
                if not meeting.may_meet_again or attempt == MEETINGS - 1:
                    raise
                log.warning("%s; waiting for all peers again", lost)
        pause(BETWEEN)
    raise AssertionError("it has returned or raised")


def own_key(peers: Peers, me: str, folder: Path) -> keys.Identity:
    """This peer's key, if it is the one that the others know, and valid at the moment."""
    identity = keys.find(me, folder)
    keys.check_current(identity.certificate)
    holder = peers.holder(keys.read_certificate(identity.certificate))
    if holder != me:
        raise BadValue("keys", str(identity.certificate), f"that of {me}", f"it is {holder}'s")
    try:
        rehearse(Security(identity, peers, keys.read_certificate(identity.certificate)))
    except (ssl.SSLError, Refused) as error:
        valid = "one for TLS 1.3 as client and server, as parley keys makes it"
        raise BadValue("keys", str(identity.certificate), valid, in_words(error)) from None
    return identity


@contextmanager
def linked(
    identity: keys.Identity,
    peers: Peers,
    hello: Mapping[str, Any],
    patience: float,
    listen: str | None,
    checking: bool = False,
    grows: bool = False,
) -> Iterator[Links]:
    """Links to other peers while this is open."""
    links = over_tls(
        identity, peers, listen, checking, hello=hello, judge=judge(hello), patience=patience,
        grows=grows,
    )  # fmt: skip
    try:
        with switching(SWITCHING):
            yield links
    finally:
        links.close()
