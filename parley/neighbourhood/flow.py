"""Values on the hosted agents' incoming edges, as encoded messages, round by round.

`Mail` lies here and can be read as often as one likes: what the neighbours have sent, or what an
algorithm has kept. A `Flow` is made while it is read, one round of edges at a time, so that a whole
edge matrix of |E| × D is never held; it can be read once. Axes: A agents hosted here, I their
incoming edges, E the edges of one round, D flat parameters, B bytes of a message.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from parley.data import Batch
from parley.wire.codec import Codec


class OnEdges(ABC):
    """A value on every incoming edge."""

    def __init__(self, codec: Codec, dtype: torch.dtype) -> None:
        self.codec = codec
        self.dtype = dtype

    @abstractmethod
    def messages(self) -> Iterator[Tensor]:
        """The messages of each round's edges, ``uint8[E, B]``."""

    def __iter__(self) -> Iterator[Tensor]:
        """The values of each round's edges, ``[E, D]``."""
        return map(self.decode, self.messages())

    def decode(self, wire_EB: Tensor) -> Tensor:
        """Messages like these as values."""
        return self.codec.decode(wire_EB, self.dtype)


class Mail(OnEdges):
    """Values that have been sent, or kept: they can be read as often as one likes.

    What comes from other workers is waited for when it is first read.
    """

    def __init__(
        self,
        codec: Codec,
        dtype: torch.dtype,
        read: Callable[[], Iterator[Tensor]],
        source_AD: Tensor | None = None,
        of_others: Callable[[int], Tensor] | None = None,
        arrived: Callable[[], Tensor] | None = None,
    ) -> None:
        super().__init__(codec, dtype)
        self._read = read
        self.source_AD = source_AD
        """What the hosted senders' messages mean to their receivers, row by row, where all edges
        of an agent carry the same."""
        self.of_others = of_others
        """What other workers' agents have sent on the edges of a round, beside `source_AD`."""
        self.arrived = arrived
        """All that other workers' agents have sent, where it can be used as it lies: then row
        `Edges.row_of` of `source_AD` and this is what is on an edge."""

    def messages(self) -> Iterator[Tensor]:
        """The messages of each round's edges."""
        return self._read()


class Flow(OnEdges):
    """Values that are made while they are read, once."""

    def __init__(
        self, codec: Codec, dtype: torch.dtype, make: Callable[[], Iterator[Tensor]]
    ) -> None:
        super().__init__(codec, dtype)
        self._make = make
        self._taken = False

    def take(self) -> None:
        """Notes that the flow is being read, which it can be only once."""
        if self._taken:
            raise RuntimeError(
                "this flow has been read: its values were made while they were read and are gone. "
                "hood.collect(flow) keeps them, and hood.stored(values) makes mail of what is kept"
            )
        self._taken = True

    def messages(self) -> Iterator[Tensor]:
        """The messages of each round's edges."""
        self.take()
        return self._make()


class CrossGradients(Flow):
    """The gradients of the neighbours' models on the own batch."""

    def __init__(
        self, codec: Codec, make: Callable[[], Iterator[Tensor]], x_I: OnEdges, batch: Batch
    ) -> None:
        super().__init__(codec, x_I.dtype, make)
        self.x_I = x_I
        self.batch = batch


class Compressed(Flow):
    """Values plus errors, as a codec writes them; reading it renews the errors."""

    def __init__(
        self,
        codec: Codec,
        dtype: torch.dtype,
        make: Callable[[], Generator[Tensor, None, Tensor]],
    ) -> None:
        """`make` yields messages and returns the new errors, [I, D]."""
        super().__init__(codec, dtype, make)
        self._messages = make
        self._errors: Tensor | None = None

    def messages(self) -> Iterator[Tensor]:
        """The messages of each round's edges."""
        self.take()
        return self._noting()

    def _noting(self) -> Iterator[Tensor]:
        self._errors = yield from self._messages()

    @property
    def errors(self) -> Tensor:
        """What compression has held back, [I, D]: known once the flow has been read."""
        if self._errors is None:
            raise RuntimeError("the new errors are known only after the flow has been read")
        return self._errors
