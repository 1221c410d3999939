"""The verbs that algorithms are written in.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, D flat parameters.

An algorithm speaks of agents and their neighbours; where those live is the transport's business.
Values on edges are a `Flow`: they are made and consumed one round of edges at a time (at most
about one edge for every agent), so that a whole edge matrix of |E| × D is never held unless an
algorithm asks for it.

Whatever is added up over neighbours is added in one order, the same wherever the agents live: an
agent's own term first, then those of its edges, round after round, in the order of their numbers.
Where values go both along an edge and back, those that come along edges make one sum and the
replies another, and the two are added at the end.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley.compute.engine import Engine, Pairs, Share
from parley.compute.sums import Sums
from parley.data import Batch
from parley.graphs import Topology
from parley.neighbourhood.flow import Compressed, CrossGradients, Flow, Mail, OnEdges
from parley.wire.codec import Codec, Dense, hashed
from parley.wire.transport import UNDER_WAY, Kind, Transfer, Transport


class Gradient(NamedTuple):
    """What `Neighbourhood.gradient` gives."""

    g_AD: Tensor
    loss_A: Tensor


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
        self._dense = Dense(self.task.size)

        topology, row = transport.topology, self.placement.row
        here, number = list(self.placement.agents), self.placement.number
        edges, weights = topology.edges, topology.edge_weights
        device, dtype = self.task.start().device, self.task.dtype

        def index(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        self._phases = [_Phase(self, phase) for phase in topology.phases]
        self._rounds = range(len(topology.rounds))
        self._self_weight_A = column([topology.self_weights[i] for i in here])
        # An edge j -> i has one weight, w_ij, for the value that goes along it and for the reply.
        # Values are averaged with a row of W, replies with a column of it.
        self._weight_in = [column([weights[e] for e in r])[:, 0] for r in transport.incoming_of]
        # Gradients are shared out by their data's owner, in parts that add up to 1 whatever W is.
        total = np.ones(topology.agents)
        if not topology.row_stochastic:
            total = np.asarray(topology.mixing.sum(axis=1)).ravel()
        self.weight_sum_A = column([total[i] for i in here])
        """What each agent's weights sum to: 1 unless W is only column-stochastic, [A, 1]."""
        shares = [weights[e] / total[i] for e, (_, i) in enumerate(edges)]
        self._self_share_A = column([topology.self_weights[i] / total[i] for i in here])
        self._share_in = [column([shares[e] for e in r])[:, 0] for r in transport.incoming_of]
        self._share_out = [column([shares[e] for e in r])[:, 0] for r in transport.outgoing_of]
        self._receiver = [index([row[edges[e][1]] for e in r]) for r in transport.incoming_of]
        self._sender = [index([row[edges[e][0]] for e in r]) for r in transport.outgoing_of]
        self._owners = [[number(edges[e][0]) for e in r] for r in transport.incoming_of]
        self._rows = [[row[edges[e][1]] for e in r] for r in transport.incoming_of]
        self.everyone = tuple(map(number, range(topology.agents)))
        """The numbers of all agents that take part."""
        self.edges = [(number(j), number(i)) for j, i in edges]
        """All edges of the graph, from sender to receiver, by the agents' numbers."""
        self.edges_I = [self.edges[e] for r in transport.incoming_of for e in r]
        """The same of axis I."""
        self.edges_O = [self.edges[e] for r in transport.outgoing_of for e in r]
        """The same of axis O."""
        self.incoming = sum(len(r) for r in transport.incoming_of)
        """Size of axis I. Edges stand in the order of the rounds."""
        self.outgoing = sum(len(r) for r in transport.outgoing_of)
        """Size of axis O. Edges stand in the order of the rounds."""
        self.receiver_I = torch.cat([index([]), *self._receiver])
        """Row on axis A of the agent at which each incoming edge ends."""
        self.sender_O = torch.cat([index([]), *self._sender])
        """Row on axis A of the agent at which each outgoing edge starts."""

        # Among the agents here an edge is a pair of a model and a batch.
        inside = [edges[e] for r in transport.inside for e in r]
        self._pairs = Pairs(
            index([row[j] for j, _ in inside]),
            torch.tensor([row[i] for _, i in inside], dtype=torch.int64),
            torch.tensor([number(j) for j, _ in inside], dtype=torch.int64),
        )
        self._pair_receiver = self._pairs.rows.to(device)
        self._pair_share = column([shares[e] for r in transport.inside for e in r])[:, 0]
        self._inside = [
            _Meetings(*_unzipped([(row[j], row[i], number(j)) for j, i in (edges[e] for e in r)]))
            for r in transport.inside
        ]
        self._from_others = [
            _Meetings(*_unzipped([(-1, row[i], number(j)) for j, i in (edges[e] for e in r)]))
            for r in transport.from_others
        ]
        self._alone = not any(transport.from_others) and not any(transport.to_others)
        self._shares: dict[float, tuple[Share, ...]] = {}
        self._clusters: dict[tuple[float, bool], _Clusters] = {}

    def at(self, step: int) -> "Neighbourhood":
        """The neighbourhood of a step: another one in each where the graph changes."""
        hood = self._phases[step % len(self._phases)] if self._phases else self
        hood.transport.step = step
        return hood

    @property
    def seed(self) -> int:
        """Everything random follows from it, and from agents and steps."""
        return self.engine.seed

    def gradient(self, x_AD: Tensor, batch: Batch, active_A: Tensor | None = None) -> Gradient:
        """Each agent's gradient on its own batch, g^ii, and loss; zero for agents that rest."""
        if active_A is None:
            rows = range(len(self.agents))
            loss_A, g_AD = self.engine.gradients(x_AD, batch, rows, self.agents)
            return Gradient(g_AD, loss_A)
        g_AD, loss_A = torch.zeros_like(x_AD), x_AD.new_zeros(len(x_AD))
        if len(some := active_A.nonzero().flatten().tolist()):
            owners = [self.agents[row] for row in some]
            loss_A[some], g_AD[some] = self.engine.gradients(x_AD[some], batch, some, owners)
        return Gradient(g_AD, loss_A)

    def exchange(self, x_AD: Tensor, codec: Codec | None = None, kind: Kind = "models") -> Mail:
        """Every agent sends `x_AD` to its out-neighbours; the neighbours' values arrive."""
        return self.publish(x_AD, codec, kind)[1]

    def publish(
        self, x_AD: Tensor, codec: Codec | None = None, kind: Kind = "models", stream: int = 0
    ) -> tuple[Tensor, Mail]:
        """As `exchange`, with what the receivers make of each agent's message before it."""
        codec = codec or (self._dense if x_AD.shape[1] == self.task.size else Dense(x_AD.shape[1]))
        codec = self.keyed(codec, stream)
        wire_AB = codec.encode(x_AD)
        arrivals = self.transport.forward(wire_AB, kind, codec)
        seen_AD = x_AD if isinstance(codec, Dense) else codec.decode(wire_AB, x_AD.dtype)

        def of_others(r: int) -> Tensor:
            return codec.decode(arrivals.of_others(self.transport.from_others[r]), x_AD.dtype)

        def make() -> Iterator[Tensor]:
            return map(arrivals.of, self.transport.incoming_of)

        def arrived() -> Tensor:
            return seen_AD[:0] if self._alone else codec.decode(arrivals.others(), x_AD.dtype)

        # Numbers can be read where they lie; other messages are decoded one round at a time.
        as_it_lies = arrived if self._alone or isinstance(codec, Dense) else None
        return seen_AD, Mail(codec, x_AD.dtype, make, seen_AD, of_others, as_it_lies)

    def keyed(self, codec: Codec, stream: int = 0) -> Codec:
        """The codec with this step's random choices of the hosted agents, if it makes any.

        What is encoded with it, and what `exchange` sends with it, are the same messages. A step
        that sends several random messages gives each a `stream` of its own.
        """
        if not codec.draws or codec.key_E is not None:
            return codec
        own = torch.tensor(self.agents)
        return codec.keyed(hashed(self.engine.seed, self.transport.step, stream, own, own))

    def cross_gradient(self, x_I: OnEdges, batch: Batch) -> Flow:
        """Each neighbour's model on the own batch, g^ji: computed when the flow is consumed."""

        def make() -> Iterator[Tensor]:
            for r, x_ED in zip(self._rounds, x_I, strict=True):
                rows, owners = self._rows[r], self._owners[r]
                yield self._dense.encode(self.engine.gradients(x_ED, batch, rows, owners)[1])

        return CrossGradients(self._dense, make, x_I, batch)

    def stored(self, values_ID: Tensor) -> Mail:
        """Values that have been kept, as mail again."""
        return Mail(
            self._dense, values_ID.dtype, lambda: map(self._dense.encode, self._split(values_ID))
        )

    def collect(self, x_I: OnEdges) -> Tensor:
        """All values of a flow, or of mail, in one tensor, [I, D]."""
        found = list(x_I)
        return torch.cat(found) if found else self.task.start()[None][:0]

    def divided(self, n_I: OnEdges, by_I1: Tensor) -> Flow:
        """Values on edges, each edge's divided by a number of its own."""

        def make() -> Iterator[Tensor]:
            for n_ED, by_E1 in zip(n_I, self._split(by_I1), strict=True):
                yield self._dense.encode(n_ED / by_E1)

        return Flow(self._dense, n_I.dtype, make)

    def compress(self, g_I: OnEdges, e_ID: Tensor, codec: Codec) -> Compressed:
        """Each edge's value plus its error, encoded; once read, `errors` are what is held back."""

        def make() -> Generator[Tensor, None, Tensor]:
            new_ID = e_ID.clone()
            for r, e_ED, g_ED in zip(self._rounds, self._kept(new_ID), g_I, strict=True):
                codec_E = self._keyed_to(self._owners[r], self._rows[r], codec)
                wire_EB = codec_E.take(e_ED.add_(g_ED))
                self._keep(new_ID, r, e_ED)
                yield wire_EB
            return new_ID

        return Compressed(codec, g_I.dtype, make)

    def average(self, x_AD: Tensor, x_I: OnEdges, gamma: float = 1.0) -> Tensor:
        """The weighted mean of the own value and the neighbours', Σ_j w_ij x^j; or γ of the way
        from the own value to it."""
        if isinstance(x_I, Mail) and x_I.source_AD is x_AD and x_I.arrived is not None:
            return self._mean.of(x_AD, x_I.arrived(), gamma)
        mean_AD = self._self_weight_A * x_AD
        for mean, x_ED in zip(self._mean_of_rounds, x_I, strict=True):
            mean.add(mean_AD, x_ED)
        return mean_AD if gamma == 1 else mean_AD.sub_(x_AD).mul_(gamma).add_(x_AD)

    @cached_property
    def _mean(self) -> Sums:
        """Of the own values, and of the others where they lie."""
        transport, row = self.transport, self.placement.row
        own = range(len(row))
        edges = [e for r in transport.incoming_of for e in r]
        receivers = [row[transport.topology.edges[e][1]] for e in edges]
        weights = torch.cat([self._self_weight_A[:, 0], *self._weight_in])
        places = [transport.row_of[e] for e in edges]
        return Sums([*own, *receivers], [*own, *places], weights, self.engine.crew)

    @cached_property
    def _mean_of_rounds(self) -> list[Sums]:
        """The same for values that come one round after the other."""
        return [
            Sums(rows, range(len(rows)), weight, self.engine.crew)
            for rows, weight in zip(self._rows, self._weight_in, strict=True)
        ]

    def cluster(self, g_AD: Tensor, g_I: OnEdges, alpha: float) -> Tensor:
        """Σ_j [(1 - α) w_ji g^ji + α w_ij g^ij], where a share α calls for sending back.

        The values are added up as they come and stored nowhere. A round's replies travel while the
        next are computed. At α = 0 nothing is sent. Where the rows of W do not sum to 1 they are
        scaled so that they do.
        """
        mean_AD = self._self_share_A * g_AD
        replies_AD = torch.zeros_like(mean_AD) if 0 < alpha < 1 else mean_AD
        if isinstance(g_I, CrossGradients) and isinstance(g_I.x_I, Mail) and g_I.x_I.of_others:
            g_I.take()
            self._accumulate(g_I.x_I, g_I.batch, alpha, mean_AD, replies_AD)
        else:
            self._add_messages(g_I, alpha, mean_AD, replies_AD)
        return mean_AD.add_(replies_AD) if replies_AD is not mean_AD else mean_AD

    def _add_messages(
        self, g_I: OnEdges, alpha: float, mean_AD: Tensor, replies_AD: Tensor
    ) -> None:
        """Adds to one sum what comes along edges, to the other the replies."""
        along, back = self._clusters_of(alpha, apart=False)
        under_way: deque[tuple[int, Callable[[], Tensor]]] = deque()

        def add_replies() -> None:
            r, arrived = under_way.popleft()
            back[r].add(replies_AD, g_I.decode(arrived()))

        for r, wire_EB in zip(self._rounds, g_I.messages(), strict=True):
            if alpha < 1:
                along[r].add(mean_AD, g_I.decode(wire_EB))
            if len(under_way) == UNDER_WAY:
                add_replies()
            if alpha > 0:
                replies = self.transport.backward(wire_EB, r, "cross_gradients", g_I.codec)
                under_way.append((r, replies))
        while under_way:
            add_replies()

    def _accumulate(
        self, x_I: Mail, batch: Batch, alpha: float, mean_AD: Tensor, replies_AD: Tensor
    ) -> None:
        """The same for cross-gradients that nobody else wants to see: inside this worker none is
        written out as a message.

        Those of other workers' models go first, so that a round's replies travel while the next are
        computed, and the last ones while those inside this worker are. A round's sums are added to
        when all of it is there.
        """
        x_AD, of_others = x_I.source_AD, x_I.of_others
        assert x_AD is not None and of_others is not None
        length, dense = self._dense.message_bytes(x_AD.dtype), self._dense
        if self._alone:
            for r in self._rounds if alpha > 0 else ():
                self.transport.count_replies(r, "cross_gradients", length)
            sums = [mean_AD] * (alpha < 1) + [replies_AD] * (alpha > 0)
            self.engine.accumulate(x_AD, batch, self._pairs, self._pair_shares(alpha), sums)
            return
        along, back = self._clusters_of(alpha, apart=True)
        under_way: deque[tuple[int, Tensor, Transfer | None]] = deque()

        def add_round() -> None:
            r, there_ED, transfer = under_way.popleft()
            inside = self._inside[r]
            g_ED = self._gradients(x_AD[inside.models], batch, inside)
            if alpha < 1:
                along[r].add(mean_AD, g_ED, there_ED)
            if alpha > 0:
                wire_EB = None if transfer is None else transfer.wait().to(x_AD.device)
                replies_ED = None if wire_EB is None else dense.decode(wire_EB, x_AD.dtype)
                back[r].add(replies_AD, g_ED, replies_ED)

        for r, others in enumerate(self._from_others):
            if len(under_way) == UNDER_WAY:
                add_round()
            there_ED = self._gradients(of_others(r) if others.rows else x_AD[:0], batch, others)
            transfer = None
            if alpha > 0:
                self.transport.count_replies(r, "cross_gradients", length)
                wire_EB = dense.encode(there_ED)
                transfer = self.transport.backward_to_others(wire_EB, r, "cross_gradients", dense)
            under_way.append((r, there_ED if alpha < 1 else x_AD[:0], transfer))
        while under_way:
            add_round()

    def _gradients(self, x_ED: Tensor, batch: Batch, meetings: "_Meetings") -> Tensor:
        """Of models on the batches that they meet; of none, none."""
        if not meetings.rows:
            return x_ED
        return self.engine.gradients(x_ED, batch, meetings.rows, meetings.owners)[1]

    def _clusters_of(self, alpha: float, apart: bool) -> "_Clusters":
        """How the edges' values are added up, round by round, along the edges and back.

        A round's values are those of all its edges; or, `apart`, those of the edges inside this
        worker with the others' behind them.
        """
        if (alpha, apart) not in self._clusters:
            transport = self.transport

            def sums(
                all_of: Sequence[Sequence[int]],
                others_of: Sequence[Sequence[int]],
                targets_of: Sequence[Tensor],
                weight_of: Sequence[Tensor],
                share: float,
            ) -> list[Sums]:
                made = []
                for edges, inside, others, targets, weight in zip(
                    all_of, transport.inside, others_of, targets_of, weight_of, strict=True
                ):
                    stand = (*inside, *others) if apart else edges
                    place = {e: k for k, e in enumerate(stand)}
                    rows = [place[e] for e in edges]
                    made.append(Sums(targets.tolist(), rows, share * weight, self.engine.crew))
                return made

            came, went = transport.from_others, transport.to_others
            self._clusters[alpha, apart] = _Clusters(
                sums(transport.incoming_of, came, self._receiver, self._share_in, 1 - alpha),
                sums(transport.outgoing_of, went, self._sender, self._share_out, alpha),
            )
        return self._clusters[alpha, apart]

    def _pair_shares(self, alpha: float) -> tuple[Share, ...]:
        """To whose mean a cross-gradient is added: that of the agent that computes it, and that of
        the agent whose model it is of. Worked out once, so that an engine can prepare for it."""
        if alpha not in self._shares:
            receiver = Share(self._pair_receiver, (1 - alpha) * self._pair_share)
            sender = Share(self._pairs.models, alpha * self._pair_share)
            self._shares[alpha] = (receiver,) * (alpha < 1) + (sender,) * (alpha > 0)
        return self._shares[alpha]

    def send_back(self, g_I: OnEdges, kind: Kind = "cross_gradients") -> Tensor:
        """Replies along the same edges; they arrive on the outgoing ones, g^ij. Stored: [O, D]."""
        under_way = [
            self.transport.backward(wire_EB, r, kind, g_I.codec)
            for r, wire_EB in zip(self._rounds, g_I.messages(), strict=True)
        ]
        replies = [g_I.decode(arrived()) for arrived in under_way]
        return torch.cat(replies) if replies else self.task.start()[None][:0]

    def mix(self, x_AD: Tensor, gamma: float = 1.0, kind: Kind = "models") -> Tensor:
        """One gossip step, x + γ Σ_j (w_ij - I_ij) x^j."""
        return self.gossip(x_AD, self.exchange(x_AD, kind=kind), gamma)

    def gossip(self, x_AD: Tensor, x_I: OnEdges, gamma: float = 1.0) -> Tensor:
        """The same with what the neighbours have sent already."""
        return self.average(x_AD, x_I, gamma)

    def mean(self, x_AD: Tensor, kind: Kind = "models") -> Tensor:
        """The mean over all agents, for every agent.

        Counted as what it costs with a server: everyone sends to agent 0, which answers everyone.
        """
        length = Dense(x_AD.shape[1]).message_bytes(x_AD.dtype)
        self.transport.count_server(kind, length)
        mean_D = self.transport.total(x_AD) / self.transport.topology.agents
        return mean_D.repeat(len(x_AD), 1)

    def meet(self, x_AD: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
        """Some neighbours, two by two, take the mean of both; no agent is in two pairs."""
        topology, row = self.transport.topology, self.placement.row
        chosen = {way for i, j in pairs for way in ((i, j), (j, i))}
        ways = [e for e, edge in enumerate(self.edges) if edge in chosen]
        wire_EB = self.transport.along(ways, self._dense.encode(x_AD), "models", self._dense)
        ends = [row[topology.edges[e][1]] for e in ways if topology.edges[e][1] in row]
        met_AD = x_AD.clone()
        met_AD[ends] = (x_AD[ends] + self._dense.decode(wire_EB, x_AD.dtype)) / 2
        return met_AD

    def accuracy(self, x_AD: Tensor, batch: Batch) -> Tensor:
        """Each agent's accuracy on its own batch, [A, 1]."""
        return self._accuracy(x_AD, batch, range(len(self.agents)))

    def cross_accuracy(self, x_I: OnEdges, batch: Batch) -> Mail:
        """The accuracy of each neighbour's model on the own batch, a number for every edge."""
        rounds = zip(x_I, self._rows, strict=True)
        found = [self._accuracy(x_ED, batch, rows) for x_ED, rows in rounds]
        start = self.task.start()
        return self.stored(torch.cat(found) if found else start.new_zeros(0, 1))

    def _accuracy(self, x_PD: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        right_P1 = x_PD.new_zeros(len(rows), 1)
        for p, row in enumerate(rows):
            n = batch.sizes[row]
            answers = self.engine.predict(x_PD[p], batch.inputs[row, :n]).argmax(1)
            right_P1[p] = (answers == batch.targets[row, :n]).to(x_PD.dtype).mean()
        return right_P1

    @cached_property
    def opposite_I(self) -> Tensor:
        """For every incoming edge j -> i the place of i -> j on axis O."""
        place = {edge: k for k, edge in enumerate(self.edges_O)}
        return torch.tensor([place[i, j] for j, i in self.edges_I], dtype=torch.int64)

    def zeros_I(self) -> Tensor:
        """A zero vector for every incoming edge, [I, D]; where the graph changes, of all graphs."""
        start = self.task.start()
        return start.new_zeros(self.incoming, len(start))

    def _keyed_to(self, owners: list[int], rows: list[int], codec: Codec) -> Codec:
        """For replies: the choices are those of an edge."""
        if not codec.draws:
            return codec
        ends = [torch.tensor(owners), torch.tensor([self.agents[row] for row in rows])]
        return codec.keyed(hashed(self.engine.seed, self.transport.step, 0, *ends))

    def _split(self, values_ID: Tensor) -> Iterator[Tensor]:
        return iter(values_ID.split([len(rows) for rows in self._rows]))

    def _kept(self, state_ID: Tensor) -> Iterator[Tensor]:
        """What the state has for the edges of each round."""
        return self._split(state_ID)

    def _keep(self, state_ID: Tensor, r: int, state_ED: Tensor) -> None:
        """Puts back what `_kept` gave; here that was a view."""


class _Meetings(NamedTuple):
    """Edges of one round: whose model meets whose batch."""

    models: list[int]
    """Row of the model, where it is hosted here."""
    rows: list[int]
    """Row of the receiver's batch."""
    owners: list[int]
    """Agent whose model it is."""


class _Clusters(NamedTuple):
    """How values are added up round by round."""

    along: list[Sums]
    """At the agents at which edges end."""
    back: list[Sums]
    """At those at which they start."""


def _unzipped(meetings: list[tuple[int, int, int]]) -> list[list[int]]:
    return [[meeting[k] for meeting in meetings] for k in range(3)]


class _Phase(Neighbourhood):
    """One graph of a sequence. What is kept on edges is kept on those of all graphs together."""

    def __init__(self, whole: Neighbourhood, topology: Topology) -> None:
        super().__init__(whole.transport.on(topology), whole.engine)
        self._whole = whole
        every = whole.transport.topology.edges
        place = {
            every[e]: n for n, e in enumerate(chain.from_iterable(whole.transport.incoming_of))
        }
        edges, device = topology.edges, self.task.start().device
        self._places = [
            torch.tensor([place[edges[e]] for e in r], dtype=torch.int64, device=device)
            for r in self.transport.incoming_of
        ]

    def zeros_I(self) -> Tensor:
        """A zero vector for every incoming edge of all graphs."""
        return self._whole.zeros_I()

    def _kept(self, state_ID: Tensor) -> Iterator[Tensor]:
        return (state_ID[places] for places in self._places)

    def _keep(self, state_ID: Tensor, r: int, state_ED: Tensor) -> None:
        state_ID[self._places[r]] = state_ED
