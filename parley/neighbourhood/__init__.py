"""The verbs that algorithms are written in."""

from parley.neighbourhood.flow import Compressed, Flow, Mail, OnEdges
from parley.neighbourhood.meter import Meter
from parley.neighbourhood.outputs import EdgeOutputs, Outputs
from parley.neighbourhood.verbs import Gradient, Neighbourhood, Told
from parley.wire.transport import Kind

__all__ = [
    "Compressed",
    "EdgeOutputs",
    "Flow",
    "Gradient",
    "Kind",
    "Mail",
    "Meter",
    "Neighbourhood",
    "OnEdges",
    "Outputs",
    "Told",
]
