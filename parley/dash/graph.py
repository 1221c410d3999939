"""Where agents are drawn and who talks with whom, for the page to animate."""

import math
from typing import Any

import networkx as nx

from parley import graphs as topologies
from parley.errors import ParleyError
from parley.experiment import Experiment
from parley.graphs import Topology
from parley.results.draw import layout
from parley.training.run import topology_of

MOST_AGENTS = 300
"""More are drawn on a circle: laying out any graph takes time that grows with the cube."""
MOST_EDGES = 4000
"""More cannot be told apart on a screen."""
MOST_HELD = 20_000

Graph = dict[str, Any]


def graph(options: Graph, agents: Graph | None) -> Graph:
    """Positions ``[x, y]`` of all agents and edges ``[from, to, weight]``, as far as known.

    `options` are the fields of the run's experiment, `agents` its ``agents.json`` if it has one.
    """
    count = options.get("agents")
    if not isinstance(count, int) or not 0 < count <= 100_000:
        return {"positions": [], "edges": [], "directed": False, "note": "no agents are known"}
    if count > MOST_AGENTS:
        return _circle(count, f"the graph of more than {MOST_AGENTS} agents is not drawn")
    try:
        found = _recorded(agents, count) if agents else _named(options)
        places = layout(found).tolist()
    except (ParleyError, ValueError, TypeError, KeyError):
        return _circle(count, "its graph is not known here")
    few = len(found.edges) <= MOST_EDGES
    pairs = zip(found.edges, found.edge_weights.tolist(), strict=True)
    drawn = {
        "positions": [[round(x, 4), round(y, 4)] for x, y in places],
        "edges": [[j, i, round(weight, 6)] for (j, i), weight in pairs] if few else [],
        "directed": found.directed,
        "note": "" if few else f"{len(found.edges):,} edges are too many to draw",
    }
    held = (agents or {}).get("held")
    if isinstance(held, list) and sum(map(len, held)) <= MOST_HELD:
        drawn |= {"classes": (agents or {}).get("classes"), "held": held}
    return drawn


def _recorded(agents: Graph, count: int) -> Topology:
    made: nx.DiGraph[int] = nx.DiGraph()
    made.add_nodes_from(range(count))
    made.add_edges_from((int(j), int(i)) for j, i, _ in agents["edges"])
    if len(made) != count:
        raise ValueError("an edge of an agent that is not")
    return topologies.from_graph(made, name=str(agents["topology"]))


def _named(options: Graph) -> Topology:
    experiment = Experiment.of(**options)
    if experiment.topology.startswith(("file:", "schedule:")):
        # A run may come from elsewhere, and name any file of this machine.
        raise ValueError("not in the folder")
    return topology_of(experiment)


def _circle(agents: int, note: str) -> Graph:
    shown = min(agents, MOST_AGENTS)
    angles = [math.pi / 2 - 2 * math.pi * k / shown for k in range(shown)]
    places = [
        [round(shown * math.cos(a) / 6, 4), round(shown * math.sin(a) / 6, 4)] for a in angles
    ]
    return {"positions": places, "edges": [], "directed": False, "note": note}
