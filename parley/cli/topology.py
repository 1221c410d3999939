"""``parley topology``: what to know about a graph before training on it."""

import json
from typing import Annotated, Any

import torch
import typer

from parley import graphs as topologies
from parley.cli.flags import given_options, takes_experiment
from parley.cli.options import Json, Picture, check_picture, count, option
from parley.cli.screen import heading, pairs, screen
from parley.experiment import Experiment
from parley.graphs import Topology
from parley.results.graphs import topology_picture
from parley.results.table import Table
from parley.wire.codec import Codec, Dense, ScaledSign
from parley.wire.transport import HEADER

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
@takes_experiment("weights", "seed")
def topology(
    spec: Annotated[
        str,
        typer.Argument(
            help="name or name:arguments: " + ", ".join(topologies.EXAMPLES) + ".",
            metavar="SPEC",
            show_default=False,
        ),
    ],
    agents: Annotated[
        str | None,
        option("Number of agents, unless SPEC states it, as a file or torus:2x5 does.", "N"),
    ] = None,
    parameters: Annotated[
        str,
        typer.Option(
            help="Size of the model whose traffic is shown (default: LeNet-5).", metavar="N"
        ),
    ] = "61706",
    picture: Picture = None,
    json_: Json = False,
    **flags: Any,
) -> None:
    """Check a graph: spectral gap, diameter, weights and traffic.

    [bold]parley topology ring --agents 10[/bold]

    [bold]parley topology circulant:1,5 --agents 20 --picture graph.png[/bold]

    A graph that changes from step to step, with its period and whether that gives the exact mean:
    [bold]parley topology base:1 --agents 10[/bold]
    """
    check_picture(picture)
    asked = Experiment.of(**given_options(flags))
    n = count("agents", agents) if agents else None
    graph = topologies.parse(spec, n, asked.weights, asked.seed)
    size = count("parameters", parameters)
    figures = _figures(graph, size)
    if picture:
        topology_picture(graph, picture)
    if json_:
        if graph.phases:
            figures["rounds"] = [_round_figures(phase) for phase in graph.phases]
        print(json.dumps(figures | {"weight_matrix": graph.weights.tolist()}))
        return
    heading(f"{graph.name}, {graph.agents} agent{'s' * (graph.agents > 1)}")
    screen.print(pairs(_properties(graph, figures)).terminal())
    if graph.phases:
        _rounds_table(graph, _message_bytes(Dense(size)))
    elif graph.agents <= 10:
        _weights_table(graph)
    _traffic_table(figures, size)
    if picture:
        screen.print(f"drawn to {picture}", highlight=False, soft_wrap=True)


def _message_bytes(codec: Codec) -> int:
    return HEADER.itemsize + codec.message_bytes(torch.float32)


def _figures(graph: Topology, size: int) -> dict[str, Any]:
    """The numbers to show, with the megabytes that an agent sends per round."""
    figures: dict[str, Any] = topologies.describe(graph)
    messages = float(figures["messages_per_round"])
    dense, packed = (
        round(messages * _message_bytes(codec) / 1e6, 6)
        for codec in (Dense(size), ScaledSign((size,)))
    )
    figures["round_megabytes_models"] = figures["round_megabytes_cross_gradients"] = dense
    figures["round_megabytes_cross_gradients_1bit"] = packed
    return figures


def _properties(graph: Topology, figures: dict[str, Any]) -> dict[str, str]:
    low, mean, high = (figures[f"degree_{k}"] for k in ("min", "mean", "max"))
    degrees = f"{low}" if low == high else f"{low} to {high}, {mean:.3g} on average"
    properties = ["symmetric" if graph.symmetric else "not symmetric"]
    properties.append("doubly stochastic" if graph.doubly_stochastic else "not doubly stochastic")
    changes = bool(graph.phases)
    lines = {
        "neighbours of an agent": degrees + ", all rounds together" * changes,
        "edges": f"{len(graph.edges)}, {'some one-way' * graph.directed or 'all both ways'}",
        "diameter": str(graph.diameter),
        "weights": f"{graph.scheme}: {', '.join(properties)}{' in every round' * changes}",
    }
    if not graph.phases:
        lines["spectral gap"] = f"{graph.spectral_gap:.6g}"
        lines["smallest eigenvalue"] = f"{graph.lambda_min + 0.0:.6g}"
        return lines
    after = graph.exact_after
    lines["period"] = f"{graph.period} rounds, one per step"
    lines["exact mean reached"] = f"after {after} rounds" if after else "never, only approximately"
    lines["spectral gap of a period"] = f"{graph.spectral_gap:.6g}"
    if not after:
        per_round = 1 - (1 - graph.spectral_gap) ** (1 / graph.period)
        lines["spectral gap per round"] = f"{per_round:.6g}"
    return lines


def _weights_table(graph: Topology) -> None:
    heading("the weight that an agent (row) gives to another's value (column)")
    weights = [
        [str(agent), *(f"{w:.2f}" if w else "·" for w in row)]
        for agent, row in enumerate(graph.weights)
    ]
    screen.print(Table(["", *map(str, range(graph.agents))], weights).terminal())


def _traffic_table(figures: dict[str, Any], size: int) -> None:
    heading(f"traffic per step with {size:,} parameters in float32")
    names = {
        "its model to its neighbours": "models",
        "cross-gradients back": "cross_gradients",
        "cross-gradients back, 1 bit per parameter": "cross_gradients_1bit",
    }
    costs = [[name, f"{figures[f'round_megabytes_{of}']:.4f}"] for name, of in names.items()]
    screen.print(Table(["each agent, on average", "MB sent"], costs).terminal())


def _round_figures(phase: Topology) -> dict[str, Any]:
    return {
        "edges": [list(edge) for edge in phase.edges],
        "weights": phase.edge_weights.tolist(),
        "degree_max": max(phase.degrees),
        "messages": len(phase.edges),
        "doubly_stochastic": phase.doubly_stochastic,
    }


ROUNDS_SHOWN = 16


def _rounds_table(graph: Topology, message: int) -> None:
    """Who talks to whom in each round, and the traffic."""
    heading("round by round")
    rows = []
    for number, phase in enumerate(graph.phases[:ROUNDS_SHOWN]):
        pairs = [f"{j}→{i}" for j, i in phase.edges]
        if not phase.directed:
            pairs = [f"{j}–{i}" for j, i in phase.edges if j < i]
        sent = [degree * message / 1e6 for degree in phase.out_degrees]
        some = " ".join(pairs[:8]) + " …" * (len(pairs) > 8)
        mean = f"{sum(sent) / len(sent):.4f}"
        fewest, most = min(phase.degrees), max(phase.degrees)
        degrees = f"{fewest} to {most}" if fewest < most else str(most)
        rows.append([str(number), degrees, f"{max(sent):.4f}", mean, some])
    headings = ["round", "neighbours", "MB sent, most", "MB sent, mean", ""]
    screen.print(Table(headings, rows, frozenset({0, 4})).terminal())
    if graph.period > ROUNDS_SHOWN:
        screen.print(f"and {graph.period - ROUNDS_SHOWN} more rounds", highlight=False)
