"""The graph of a run, drawn as in the report, with the places of its agents for what moves."""

from pathlib import Path
from typing import Any

from parley.charts.draw import draw
from parley.charts.network import fitted, network_box
from parley.charts.shapes import Box, Sheet
from parley.charts.svg import svg
from parley.errors import ParleyError
from parley.results.read import RecordedRun
from parley.results.static_charts import recorded_graph_chart

SIZE = (520.0, 330.0)
MOST_EDGES = 4000
"""More edges cannot be told apart on a screen."""

Graph = dict[str, Any]


def graph(options: Graph, agents: Graph | None) -> Graph:
    """The drawing, agents' places in it ``[x, y]`` and edges ``[from, to]``; or a note why not.

    `options` are the fields of the run's experiment, `agents` its ``agents.json`` if it has one.
    """
    try:
        chart = recorded_graph_chart(RecordedRun(Path(), options, agents=agents))
        network = chart.network
        if network is None or len(network.edges) > MOST_EDGES:
            raise ParleyError(
                f"{len(network.edges) if network else 0:,} edges are too many to draw"
            )
    except ParleyError as error:
        return {"drawing": "", "places": [], "edges": [], "note": str(error)}
    except (ArithmeticError, LookupError, ValueError, TypeError):
        note = "its graph cannot be reconstructed here"
        return {"drawing": "", "places": [], "edges": [], "note": note}
    box = Box(0, 0, *SIZE)
    places, _ = fitted(network, network_box(network, box))
    return {
        "drawing": svg(Sheet(*SIZE, draw(chart, box).shapes), chart.about, themed=True),
        "places": [[round(x, 2), round(y, 2)] for x, y in places],
        "edges": [[edge.start, edge.end] for edge in network.edges],
        "note": "",
    }
