"""The verbs that algorithms are written in. Imports wire, compute and what is below them."""

from parley.neighbourhood.flow import Compressed, Flow, Mail, OnEdges
from parley.neighbourhood.verbs import Gradient, Neighbourhood
from parley.wire.transport import Kind

__all__ = ["Compressed", "Flow", "Gradient", "Kind", "Mail", "Neighbourhood", "OnEdges"]
