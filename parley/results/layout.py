"""The graph of a recorded run, and the layout: each kind of graph in its familiar shape."""

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from parley.charts.network import nearest as nearest
from parley.errors import BadValue, ParleyError
from parley.graphs import Topology, from_graph, parse, torus_shape
from parley.graphs.checks import check_agents

Positions = npt.NDArray[np.float64]  # [N, 2]

# More agents than this are drawn on a circle: springs between all pairs take too long.
SPRINGS = 400


def recorded_graph(options: Mapping[str, Any], agents: Mapping[str, Any] | None) -> Topology:
    """The graph that a run recorded (``agents.json``), or else the one its options name.

    Raises `ParleyError` with the reason if neither is known.
    """
    if agents is not None:
        try:
            check_agents(int(options["agents"]))
            made: nx.DiGraph[int] = nx.DiGraph()
            made.add_nodes_from(range(int(options["agents"])))
            made.add_weighted_edges_from((int(j), int(i), float(w)) for j, i, w in agents["edges"])
            if len(made) == options["agents"]:
                return from_graph(made, name=str(agents["topology"]))
        except (ArithmeticError, LookupError, TypeError, ValueError, ParleyError):
            pass  # damaged: treated as missing
    spec, count = options.get("topology"), options.get("agents")
    if not isinstance(spec, str) or not isinstance(count, int):
        raise ParleyError("its experiment cannot be read")
    if "file:" in spec or "schedule:" in spec:
        # A run may come from elsewhere and name any file on this machine.
        because = "graph files named in a run are not opened"
        raise BadValue("topology", spec, "a graph by name", because)
    seed = options.get("seed", 0)
    if not isinstance(seed, int) or seed < 0:
        raise ParleyError("its seed cannot be read")
    return parse(spec, count, str(options.get("weights", "auto")), seed)


def layout(topology: Topology) -> Positions:
    """Where each agent is drawn, [N, 2].

    >>> from parley.graphs import chain
    >>> layout(chain(3)).tolist()
    [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    """
    n = topology.agents
    try:
        found = _by_name(topology, n)
    except (ArithmeticError, ValueError, ParleyError):
        return circle(n)  # a recorded name that does not fit the graph
    return found if found.shape == (n, 2) else circle(n)


def _by_name(topology: Topology, n: int) -> Positions:
    match topology.name.partition(":")[0]:
        case "ring" | "directed-ring" | "circulant" | "exponential" | "full" | "dyck":
            return circle(n)
        case "directed-exponential" | "one-peer-exponential" | "base" | "matchings":
            return circle(n)
        case "tree":
            return _tree(n, int(topology.name.partition(":")[2]))
        case "star":
            return np.vstack([np.zeros((1, 2)), circle(n - 1)])
        case "petersen":
            return np.vstack([2 * circle(5), circle(5)])
        case "chain":
            return _snake(n)
        case "torus":
            rows, columns = _torus_shape(topology)
            return np.array([(c, -r) for r in range(rows) for c in range(columns)], dtype=float)
        case "hypercube":
            return _cube(n)
        case _ if n > SPRINGS or topology.phases:
            return circle(n)
        case _:
            return _any(topology)


def circle(n: int) -> Positions:
    """Clockwise from the top, at distance 1 from each other."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / max(n, 1)
    radius = 0.5 / np.sin(np.pi / max(n, 3)) if n > 1 else 0.0
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _snake(n: int) -> Positions:
    """A line that turns at the margin if it is long."""
    width = n if n <= 10 else int(np.ceil(np.sqrt(2 * n)))
    row, step = np.divmod(np.arange(n), width)
    column = np.where(row % 2, width - 1 - step, step)
    return np.stack([column, 0.0 - row], axis=1)


def _tree(n: int, children: int) -> Positions:
    """One level below another, with each agent centred above its children."""
    places = np.zeros((n, 2))
    leaves = 0
    below: list[list[int]] = [[] for _ in range(n)]
    for agent in range(1, n):
        parent = (agent - 1) // children
        below[parent].append(agent)
        places[agent, 1] = places[parent, 1] - 1
    stack = [0]  # leaves from left to right
    while stack:
        agent = stack.pop()
        if not below[agent]:
            places[agent, 0], leaves = leaves, leaves + 1
        stack += reversed(below[agent])
    for agent in reversed(range(n)):
        if below[agent]:
            places[agent, 0] = places[below[agent], 0].mean()
    return places


def _cube(n: int) -> Positions:
    """One direction per bit; after three, copies of the cube side by side."""
    directions = [(1.0, 0.0), (0.0, 1.0), (0.42, 0.36), (2.1, -0.55), (-0.55, 2.6)]
    while 2 ** len(directions) < n:
        directions.append((2.2 * directions[-2][0], 2.2 * directions[-2][1]))
    digits = (np.arange(n)[:, None] >> np.arange(len(directions))) & 1
    positions: Positions = digits @ np.array(directions)
    return positions


def _any(topology: Topology) -> Positions:
    """Springs between all pairs, starting from a circle: short paths become short distances."""
    graph = nx.Graph(topology.graph)
    places = nx.kamada_kawai_layout(graph, weight=None)
    positions = np.array([places[i] for i in range(topology.agents)])
    if topology.agents < 2:
        return positions
    return _apart(positions / np.ptp(positions, axis=0).max() * np.sqrt(topology.agents) * 1.3)


def _apart(positions: Positions) -> Positions:
    """Moves overlapping agents apart, to a distance of about 0.8."""
    for _ in range(200):
        delta = positions[:, None] - positions[None]
        distance = np.hypot(delta[..., 0], delta[..., 1]) + np.eye(len(positions)) * 9
        push = np.maximum(0.0, 0.8 - distance) / np.maximum(distance, 1e-6)
        if not push.any():
            break
        positions = positions + 0.3 * (push[..., None] * delta).sum(axis=1)
    return positions


def _torus_shape(topology: Topology) -> tuple[int, int]:
    shape = topology.name.partition(":")[2]
    if not shape:
        return torus_shape(topology.agents)
    rows, columns = map(int, shape.split("x"))
    return rows, columns
