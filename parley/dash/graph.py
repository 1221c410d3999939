"""Where agents are drawn and who talks to whom, for the page to animate."""

from typing import Any, TypeGuard

from parley.errors import ParleyError
from parley.results.layout import circle, layout, recorded_graph

MOST_AGENTS = 300
"""More agents are drawn on a circle: laying out an arbitrary graph takes cubic time."""
MOST_EDGES = 4000
"""More edges cannot be told apart on a screen."""
MOST_HELD = 20_000

Graph = dict[str, Any]


def graph(options: Graph, agents: Graph | None) -> Graph:
    """Positions ``[x, y]`` of all agents and edges ``[from, to, weight]``, as far as known.

    `options` are the fields of the run's experiment, `agents` its ``agents.json`` if it has one.
    """
    count = options.get("agents")
    if not isinstance(count, int) or not 0 < count <= 100_000:
        return {"positions": [], "edges": [], "directed": False, "note": "the agents are unknown"}
    if count > MOST_AGENTS:
        return _circle(count, f"the graph of more than {MOST_AGENTS} agents is not drawn")
    try:
        found = recorded_graph(options, agents)
        places = layout(found).tolist()
    except (ParleyError, ArithmeticError, LookupError, ValueError, TypeError):
        return _circle(count, "its graph cannot be reconstructed here")
    few = len(found.edges) <= MOST_EDGES
    pairs = zip(found.edges, found.edge_weights.tolist(), strict=True)
    drawn = {
        "positions": _rounded(places),
        "edges": [[j, i, round(weight, 6)] for (j, i), weight in pairs] if few else [],
        "directed": found.directed,
        "note": "" if few else f"{len(found.edges):,} edges are too many to draw",
    }
    held = (agents or {}).get("held")
    if _is_table(held) and sum(map(len, held)) <= MOST_HELD:
        drawn |= {"classes": (agents or {}).get("classes"), "held": held}
    return drawn


def _is_table(held: Any) -> TypeGuard[list[list[Any]]]:
    return isinstance(held, list) and all(isinstance(row, list) for row in held)


def _circle(agents: int, note: str) -> Graph:
    places = circle(min(agents, MOST_AGENTS)).tolist()
    return {"positions": _rounded(places), "edges": [], "directed": False, "note": note}


def _rounded(places: list[list[float]]) -> list[list[float]]:
    return [[round(x, 4), round(y, 4)] for x, y in places]
