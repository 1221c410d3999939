"""Outputs of a plain torch function of models and batches, and gradients from their cotangents.

Axes: A agents hosted here, I their incoming edges, E the edges of one round, D flat parameters.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from parley.compute.functions import PairOutputs
from parley.neighbourhood.flow import Flow, OnEdges
from parley.wire.codec import Dense

Cotangents = Sequence[Sequence[Tensor | None]]
"""For each agent or edge one for each output; None stands for zero."""


class Outputs:
    """A function of the agents' own models. The graphs of all of them stay in memory."""

    def __init__(self, pairs: Iterable[PairOutputs]) -> None:
        self._pairs = list(pairs)
        self.values = [pair.values for pair in self._pairs]
        """The outputs for each hosted agent."""

    def pull(self, cotangents: Cotangents) -> Tensor:
        """The cotangents pulled back to the models, [A, D]; possible once."""
        both = zip(self._pairs, cotangents, strict=True)
        return torch.stack([pair.pull(back) for pair, back in both])


class EdgeOutputs:
    """A function of the neighbours' models. No graph is kept: `pull` computes it once more."""

    def __init__(
        self, dense: Dense, x_I: OnEdges, make: Callable[[bool], Iterator[Iterable[PairOutputs]]]
    ) -> None:
        """`make` computes the function round by round, with a graph or without."""
        self._dense, self._x_I, self._make = dense, x_I, make
        self.values = [pair.values for pairs in make(False) for pair in pairs]
        """The outputs for each edge of axis I."""

    def pull(self, cotangents: Cotangents) -> Flow:
        """The cotangents pulled back to the neighbours' models: a flow of gradients, as those of
        `cross_gradient`."""

        def make() -> Iterator[Tensor]:
            given = iter(cotangents)
            for pairs in self._make(True):
                g_ED = [pair.pull(next(given)) for pair in pairs]
                yield self._dense.encode(torch.stack(g_ED) if g_ED else self._x_I.nothing())

        return Flow(self._dense, self._x_I.dtype, make)
