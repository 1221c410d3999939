"""Values on the hosted agents' incoming edges, as encoded messages, round by round.

`Mail` is already here and can be read any number of times: what the neighbours have sent, or what
an algorithm has stored. A `Flow` is computed while it is read, one round of edges at a time, so
that a whole edge matrix of |E| × D is never in memory; it can be read once. Axes: A agents hosted
here, I their incoming edges, E the edges of one round, D flat parameters, B bytes of a message.
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

    def nothing(self) -> Tensor:
        """The values of no edge."""
        width = self.codec.message_bytes(self.dtype)
        return self.decode(torch.empty(0, width, dtype=torch.uint8))

    def decode(self, wire_EB: Tensor) -> Tensor:
        """Decodes messages of this kind."""
        return self.codec.decode(wire_EB, self.dtype)


class Mail(OnEdges):
    """Values that were sent or stored; they can be read any number of times.

    Messages from other workers are waited for when they are first read.
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
        """The hosted senders' messages as their receivers decode them, row by row, if all edges of
        an agent carry the same."""
        self.of_others = of_others
        """What other workers' agents have sent on the edges of a round, besides `source_AD`."""
        self.arrived = arrived
        """All that other workers' agents have sent, if it can be used in place: then an edge's
        value is row `Edges.row_of` of `source_AD` followed by this."""

    def messages(self) -> Iterator[Tensor]:
        """The messages of each round's edges."""
        return self._read()


class Flow(OnEdges):
    """Values that are computed while they are read, which is possible only once."""

    def __init__(
        self, codec: Codec, dtype: torch.dtype, make: Callable[[], Iterator[Tensor]]
    ) -> None:
        super().__init__(codec, dtype)
        self._make = make
        self._taken = False

    def take(self) -> None:
        """Marks the flow as read; it can be read only once."""
        if self._taken:
            raise RuntimeError(
                "this flow has been read: its values are computed while they are read, and not "
                "stored. hood.collect(flow) stores them; hood.stored(values) turns them into mail"
            )
        self._taken = True

    def messages(self) -> Iterator[Tensor]:
        """The messages of each round's edges."""
        self.take()
        return self._make()


class CrossGradients(Flow):
    """The gradients of the neighbours' models on the agent's own batch."""

    def __init__(
        self, codec: Codec, make: Callable[[], Iterator[Tensor]], x_I: OnEdges, batch: Batch
    ) -> None:
        super().__init__(codec, x_I.dtype, make)
        self.x_I = x_I
        self.batch = batch


class Compressed(Flow):
    """Values plus errors, encoded by a codec; reading it computes the new errors."""

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
        """What compression has left out, [I, D]: known once the flow has been read."""
        if self._errors is None:
            raise RuntimeError("the new errors are known only after the flow has been read")
        return self._errors
