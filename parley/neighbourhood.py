"""The verbs that algorithms are written in.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, D flat parameters.

An algorithm speaks of agents and their neighbours; where those live is the transport's business.
Values on edges are a `Flow`: they are made and consumed one round of edges at a time (at most
about one edge for every agent), so that a whole edge matrix of |E| × D is never held unless an
algorithm asks for it.
"""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from parley.codec import Codec, Dense
from parley.data import Batch
from parley.engine import Engine, Pairs, Share
from parley.transport import Kind, Transport

DENSE_MIXING = 128
"""Most agents for which W is kept as a dense matrix; beyond, its zeros cost more than they save."""


class Flow:
    """Values on the hosted agents' incoming edges, as encoded messages, round by round."""

    def __init__(
        self,
        codec: Codec,
        dtype: torch.dtype,
        make: Callable[[], Iterator[Tensor]],
        source_AD: Tensor | None = None,
    ) -> None:
        self.codec = codec
        self.dtype = dtype
        self._make = make
        self.source_AD = source_AD
        """What the senders sent, row by row, where all of them are hosted here and it arrives
        unchanged."""
        self.batch: Batch | None = None
        """For cross-gradients of such values: the batch they are taken on."""

    def messages(self) -> Iterator[Tensor]:
        """The messages of each round's edges, ``uint8[edges, bytes]``."""
        return self._make()

    def __iter__(self) -> Iterator[Tensor]:
        """The values of each round's edges, ``[edges, D]``."""
        return (self.decode(wire_EB) for wire_EB in self._make())

    def decode(self, wire_EB: Tensor) -> Tensor:
        """Messages of this flow as values."""
        return self.codec.decode(wire_EB, self.dtype)


class Neighbourhood:
    """Agents hosted here, their edges and the weights on them."""

    def __init__(self, transport: Transport, engine: Engine) -> None:
        self.transport = transport
        self.engine = engine
        self.task = engine.task
        self.placement = transport.placement
        self.agents = self.placement.hosted
        self.sizes = self.task.sizes
        """Entries of each parameter tensor in the flat vector."""
        self.loss_A: Tensor | None = None
        """Loss of the hosted agents' own models when `gradient` was last asked for."""
        self._dense = Dense(self.task.size)

        topology, row = transport.topology, self.placement.row
        edges, weights = topology.edges, topology.edge_weights
        device, dtype = self.task.start().device, self.task.dtype

        def index(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        self._rounds = range(len(topology.rounds))
        self._self_weight_A = column([topology.self_weights[i] for i in self.placement.agents])
        # An edge j -> i has one weight, w_ij, for the value that goes along it and for the reply.
        # Values are averaged with a row of W, replies with a column of it.
        self._weight_in = [column([weights[e] for e in r]) for r in transport.incoming_of]
        self._weight_out = [column([weights[e] for e in r]) for r in transport.outgoing_of]
        self._receiver = [index([row[edges[e][1]] for e in r]) for r in transport.incoming_of]
        self._sender = [index([row[edges[e][0]] for e in r]) for r in transport.outgoing_of]
        number = self.placement.number
        self._owners = [[number(edges[e][0]) for e in r] for r in transport.incoming_of]
        self._rows = [[row[edges[e][1]] for e in r] for r in transport.incoming_of]
        self.incoming = sum(len(r) for r in transport.incoming_of)
        """Size of axis I. Edges stand in the order of the rounds."""
        self.outgoing = sum(len(r) for r in transport.outgoing_of)
        """Size of axis O. Edges stand in the order of the rounds."""
        self.receiver_I = torch.cat([index([]), *self._receiver])
        """Row on axis A of the agent at which each incoming edge ends."""
        self.sender_O = torch.cat([index([]), *self._sender])
        """Row on axis A of the agent at which each outgoing edge starts."""

        # With all agents here an average of what they send is a product with W.
        self._mixing: Tensor | None = None
        if len(self.agents) == topology.agents:
            dense = topology.agents <= DENSE_MIXING
            self._mixing = _dense(topology.weights) if dense else _sparse(topology.mixing)
            self._mixing = self._mixing.to(device, dtype)
            # And an edge is a pair of a model and a batch.
            groups = zip(self._sender, self._rows, self._owners, strict=True)
            self._pairs = [Pairs(*group) for group in groups]

    def gradient(self, x_AD: Tensor, batch: Batch) -> Tensor:
        """Each agent's gradient on its own batch, g^ii."""
        rows = range(len(self.agents))
        self.loss_A, g_AD = self.engine.gradients(x_AD, batch, rows, self.agents)
        return g_AD

    def exchange(self, x_AD: Tensor, codec: Codec | None = None, kind: Kind = "models") -> Flow:
        """Every agent sends `x_AD` to its out-neighbours; the neighbours' values arrive."""
        codec = codec or self._dense
        arrivals = self.transport.forward(codec.encode(x_AD), kind, codec)
        unchanged = self._mixing is not None and codec is self._dense
        source_AD = x_AD if unchanged else None
        return Flow(
            codec, x_AD.dtype, lambda: map(arrivals.of, self.transport.incoming_of), source_AD
        )

    def cross_gradient(self, x_I: Flow, batch: Batch) -> Flow:
        """Each neighbour's model on the own batch, g^ji: computed when the flow is consumed."""

        def make() -> Iterator[Tensor]:
            for r, x_ED in zip(self._rounds, x_I, strict=True):
                rows, owners = self._rows[r], self._owners[r]
                yield self._dense.encode(self.engine.gradients(x_ED, batch, rows, owners)[1])

        flow = Flow(self._dense, x_I.dtype, make, x_I.source_AD)
        flow.batch = batch
        return flow

    def stored(self, values_ID: Tensor) -> Flow:
        """Values that have been kept, as a flow again."""
        return Flow(
            self._dense, values_ID.dtype, lambda: map(self._dense.encode, self._split(values_ID))
        )

    def compress(self, g_I: Flow, e_ID: Tensor, codec: Codec) -> Flow:
        """Each edge's value plus its error, encoded; the errors in `e_ID` are renewed in place."""

        def make() -> Iterator[Tensor]:
            for e_ED, g_ED in zip(self._split(e_ID), g_I, strict=True):
                yield codec.take(e_ED.add_(g_ED))

        return Flow(codec, g_I.dtype, make)

    def average(self, x_AD: Tensor, x_I: Flow) -> Tensor:
        """The weighted mean of the own value and the neighbours', Σ_j w_ij x^j."""
        if self._mixing is not None and x_I.source_AD is x_AD:
            return self._mixing @ x_AD
        return self.cluster(x_AD, x_I, alpha=0.0)

    def average_replies(self, g_AD: Tensor, g_I: Flow) -> Tensor:
        """The weighted mean of the own value and the replies, Σ_j w_ij g^ij."""
        return self.cluster(g_AD, g_I, alpha=1.0)

    def cluster(self, g_AD: Tensor, g_I: Flow, alpha: float) -> Tensor:
        """Σ_j [(1 - α) w_ji g^ji + α w_ij g^ij], where a share α calls for sending back.

        The values are added up as they come and stored nowhere. At α = 0 nothing is sent.
        """
        mean_AD = self._self_weight_A * g_AD
        if g_I.source_AD is not None and g_I.batch is not None:
            self._accumulate(g_I.source_AD, g_I.batch, alpha, mean_AD)
            return mean_AD
        kind: Kind | None = "cross_gradients" if alpha > 0 else None
        for r, wire_EB, replies in self._answered(g_I, kind):
            if alpha < 1:
                g_ED = g_I.decode(wire_EB)
                mean_AD.index_add_(0, self._receiver[r], (1 - alpha) * self._weight_in[r] * g_ED)
            if alpha > 0:
                r_ED = g_I.decode(replies())
                mean_AD.index_add_(0, self._sender[r], alpha * self._weight_out[r] * r_ED)
        return mean_AD

    def _answered(
        self, g_I: Flow, kind: Kind | None
    ) -> Iterator[tuple[int, Tensor, Callable[[], Tensor]]]:
        """Each round's messages, and with a kind what waits for the replies to them.

        A round's replies are under way while the next round is computed.
        """
        before: list[tuple[int, Tensor, Callable[[], Tensor]]] = []
        for r, wire_EB in zip(self._rounds, g_I.messages(), strict=True):
            arrive: Callable[[], Tensor] = lambda: wire_EB  # noqa: B023, E731
            if kind:
                arrive = self.transport.backward(wire_EB, r, kind, g_I.codec)
            yield from before
            before = [(r, wire_EB, arrive)]
        yield from before

    def _accumulate(self, x_AD: Tensor, batch: Batch, alpha: float, mean_AD: Tensor) -> None:
        """What `cluster` does, where both ends of every edge are here: no message is written out.

        A gradient is added to its sender's and receiver's means as soon as it is computed.
        """
        for r, pairs in enumerate(self._pairs):
            shares = []
            if alpha < 1:
                shares.append(Share(self._receiver[r], (1 - alpha) * self._weight_in[r][:, 0]))
            if alpha > 0:
                shares.append(Share(self._sender[r], alpha * self._weight_out[r][:, 0]))
                length = self._dense.message_bytes(x_AD.dtype)
                self.transport.count_replies(r, "cross_gradients", length)
            self.engine.accumulate(x_AD, batch, pairs, shares, mean_AD)

    def send_back(self, g_I: Flow, kind: Kind = "cross_gradients") -> Tensor:
        """Replies along the same edges; they arrive on the outgoing ones, g^ij. Stored: [O, D]."""
        replies = [g_I.decode(arrive()) for _, _, arrive in self._answered(g_I, kind)]
        return torch.cat(replies) if replies else self.task.start()[None][:0]

    def mix(self, x_AD: Tensor, gamma: float = 1.0, kind: Kind = "models") -> Tensor:
        """One gossip step, x + γ Σ_j (w_ij - I_ij) x^j."""
        return torch.lerp(x_AD, self.average(x_AD, self.exchange(x_AD, kind=kind)), gamma)

    def zeros_I(self) -> Tensor:
        """A zero vector for every incoming edge, [I, D]."""
        start = self.task.start()
        return start.new_zeros(self.incoming, len(start))

    def _split(self, values_ID: Tensor) -> Iterator[Tensor]:
        return iter(values_ID.split([len(rows) for rows in self._rows]))


def _dense(weights: np.ndarray) -> Tensor:
    return torch.from_numpy(weights.copy())


def _sparse(weights: scipy.sparse.csr_array) -> Tensor:
    matrix = weights.copy()  # a topology's own is locked
    starts, columns, values = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():  # torch calls its sparse matrices a beta feature
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(starts, columns, values, size=matrix.shape)
