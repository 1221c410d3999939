"""How long messages would take on a given network, with all agents in one process.

Axes: N all agents.

A network is written as ``delay=0.05,bandwidth=10M,drop=0.01``, or as ``file:links.toml`` with the
same keys and, where edges differ, a table for each of them:

    delay = 0.02
    bandwidth = "10M"
    [edges."0-1"]
    delay = 0.2

| key         | for each edge j -> i                                                           |
|-------------|--------------------------------------------------------------------------------|
| `delay`     | seconds that a message, or the notice that it is awaited, is in transit        |
| `bandwidth` | bits per second; k, M and G stand for thousand, million and billion            |
| `drop`      | probability that a message is lost and has to be sent again                    |
| `resend`    | seconds after which a loss is noticed (0.2, TCP's minimum)                     |
| `spread`    | how much delay and bandwidth differ between edges: σ of a log-normal factor    |
| `uplink`    | bits per second that one agent can send in total                               |

Every agent has a clock. A message leaves when its sender has computed it, the receiver's notice
that it is awaited has arrived (gloo requires it, and it takes the delay too), and the sender's
uplink is free. A receiver waits for it when it needs it; replies of several rounds are in transit
at the same time. Losses do not change what is learned: messages arrive eventually, as with TCP.
Everything random follows from (seed, edge, step).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.errors import BadValue, unknown_name
from parley.files import SMALL, Unreadable, parse_toml, read_text
from parley.graphs import Topology

# Streams of random numbers: default_rng([seed, stream, ...]).
_EDGES, _LOSSES = 21, 22
# From and to: seconds, bits a second, shares; far beyond any network.
_LIMITS = {
    "delay": (0.0, 1e6),
    "bandwidth": (1.0, 1e15),
    "drop": (0.0, 1.0),
    "resend": (0.0, 1e6),
    "spread": (0.0, 10.0),
    "uplink": (1.0, 1e15),
}
_TRIES = 100  # attempts after which a message counts as arrived, however bad the link


@dataclass(frozen=True)
class Link:
    """The properties of one edge."""

    delay: float = 0.0
    bandwidth: float = float("inf")
    drop: float = 0.0
    resend: float = 0.2
    spread: float = 0.0
    uplink: float = float("inf")

    @classmethod
    def of(cls, values: Mapping[str, Any], base: "Link | None" = None) -> "Link":
        """From a table of names and values, validated.

        >>> Link.of({"delay": "0.05", "bandwidth": "10M"}).bandwidth
        10000000.0
        """
        names = list(cls.__dataclass_fields__)
        made: dict[str, float] = {}
        for name, value in values.items():
            if name not in names:
                raise unknown_name("links", name, names)
            made[name] = number = _number(name, value)
            least, most = _LIMITS[name]
            if not least <= number <= most or (name == "drop" and number == 1):
                valid = f"a number from {least:g} to {most:g}"
                valid = "from 0 to below 1" if name == "drop" else valid
                raise BadValue(f"links.{name}", value, valid)
        return replace(base or cls(), **made)


def _number(name: str, value: Any) -> float:
    text = str(value)
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:], 1.0)
    try:
        return float(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        raise BadValue(f"links.{name}", value, "a number, for example 0.05 or 10M") from None


class Clock:
    """The time at every agent of a graph on a network.

    >>> from parley.graphs import ring
    >>> clock = parse("uplink=8k,delay=2", ring(3), seed=0)
    >>> clock.send([(0, 1), (0, 2)], size=500, step=0)  # half a second each, one after the other
    >>> clock.time_N.tolist()
    [0.0, 4.5, 5.0]
    """

    def __init__(
        self, common: Link, edges: Mapping[tuple[int, int], Link], agents: int, seed: int
    ) -> None:
        self.common = common
        self.edges = edges
        self.seed = seed
        self.time_N: NDArray[np.float64] = np.zeros(agents)
        """Seconds since the start at each agent."""
        self._free_N: NDArray[np.float64] = np.zeros(agents)  # when each agent's uplink is
        self._due_N: NDArray[np.float64] = np.zeros(
            agents
        )  # when everything in transit will have arrived
        self._messages = 0

    def send(
        self, edges: Sequence[tuple[int, int]], size: int, step: int, later: bool = False
    ) -> None:
        """A message of this many bytes along each of these edges (sender, receiver), all at once.

        `later`: receivers do something else until `settle`.
        """
        if not later:
            self.settle()
        bits = 8.0 * size

        def ready(number: int) -> float:
            sender, receiver = edges[number]
            awaited = self.time_N[receiver] + self.link(receiver, sender).delay
            return float(max(self.time_N[sender], awaited))

        for number in sorted(range(len(edges)), key=ready):
            sender, receiver = edges[number]
            link = self.link(sender, receiver)
            begun = max(ready(number), self._free_N[sender])
            self._free_N[sender] = begun + bits / self.common.uplink
            sending = max(bits / self.common.uplink, bits / link.bandwidth)
            lost = self._losses(link, sender, receiver, step, number)
            arrival = begun + sending + link.delay + lost * (link.resend + bits / link.bandwidth)
            self._due_N[receiver] = max(self._due_N[receiver], arrival)
        self._messages += 1
        if not later:
            self.settle()

    def settle(self) -> None:
        """Every agent waits for what is in transit to it."""
        self.time_N = np.maximum(self.time_N, self._due_N)

    def compute(self, seconds: float) -> None:
        """Every agent computes for this long."""
        self.settle()
        self.time_N = self.time_N + seconds

    def link(self, sender: int, receiver: int) -> Link:
        """The properties of an edge."""
        return self.edges.get((sender, receiver), self.common)

    def seconds(self) -> float:
        """The time at the agent furthest behind."""
        return float(max(self.time_N.max(), self._due_N.max()))

    def state(self) -> dict[str, Any]:
        """What resuming needs."""
        self.settle()
        return {
            "time": self.time_N.tolist(),
            "free": self._free_N.tolist(),
            "messages": self._messages,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state."""
        self.time_N, self._free_N = np.array(state["time"]), np.array(state["free"])
        self._messages = state["messages"]

    def _losses(self, link: Link, sender: int, receiver: int, step: int, number: int) -> int:
        """How often a message is lost before it arrives."""
        if not link.drop:
            return 0
        key = [self.seed, _LOSSES, sender, receiver, step, self._messages, number]
        return int(min(np.random.default_rng(key).geometric(1 - link.drop) - 1, _TRIES))


def parse(spec: str, topology: Topology, seed: int) -> Clock:
    """The clocks of a graph's agents on the network given by a spec."""
    own: Mapping[str, Any] = {}
    if spec.startswith("file:"):
        values, own = _read(Path(spec.removeprefix("file:")))
    else:
        values = {}
        for pair in spec.split(","):
            name, equals, value = pair.partition("=")
            if not (name and equals and value):
                raise BadValue("links", spec, "delay=0.05,bandwidth=10M,drop=0.01 or file:PATH")
            values[name.strip()] = value.strip()
    common = _link(values, spec)
    graphs = topology.phases or (topology,)
    known = {edge for graph in graphs for edge in graph.edges}
    known |= {(i, j) for j, i in known}  # replies go back along the same edges
    edges: dict[tuple[int, int], Link] = {}
    if common.spread:
        for j, i in known:
            rng = np.random.default_rng([seed, _EDGES, *sorted((j, i))])
            slow, narrow = np.exp(common.spread * rng.standard_normal(2))
            edges[j, i] = replace(
                common, delay=common.delay * slow, bandwidth=common.bandwidth / narrow
            )
    for name, table in own.items():
        ends = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", name)
        if ends is None:
            raise BadValue("links", spec, 'edges named as "0-1"', "one of its edges is not")
        edge = int(ends[1]), int(ends[2])
        if edge not in known:
            because = f"{topology.name} has no edge {name}"
            raise BadValue("links", spec, "edges of the graph", because)
        edges[edge] = _link(table, spec, edges.get(edge, common))
    return Clock(common, edges, topology.agents, seed)


def _link(values: Mapping[str, Any], spec: str, base: Link | None = None) -> Link:
    """As `Link.of`; what is wrong with a file is said without quoting it."""
    try:
        return Link.of(values, base)
    except BadValue as error:
        if not spec.startswith("file:"):
            raise
        name = error.field.partition(".")[2]
        because = f"a {name} in it is out of range or no number" if name else "it has another name"
        raise BadValue("links", spec, f"{', '.join(_LIMITS)} and edges", because) from None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        table = parse_toml(read_text(path, SMALL))
    except Unreadable as error:
        raise BadValue("links", f"file:{path}", "a TOML file", str(error)) from None
    edges = table.pop("edges", {})
    if not isinstance(edges, dict) or not all(isinstance(of, dict) for of in edges.values()):
        valid = 'a table of tables for edges, as in [edges."0-1"]'
        raise BadValue("links", f"file:{path}", valid, "its edges have a different form")
    return table, edges
