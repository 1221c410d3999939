"""The verbs that algorithms are written in.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, D flat parameters.

An algorithm is written in terms of agents and their neighbours; where those live is the transport's
business. Values on edges are a `Flow`: they are produced and consumed one round of edges at a time
(at most about one edge per agent), so that a whole edge matrix of |E| × D is never in memory unless
an algorithm asks for it.

Sums over neighbours have one order, the same wherever the agents live: an agent's own term first,
then those of its edges, round by round, in the order of their numbers. Where values go both along
an edge and back, those that come along edges form one sum and the replies another, and the two are
added at the end.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley.compute.engine import Engine
from parley.compute.functions import Function, PairOutputs, evaluated
from parley.compute.sums import Sums
from parley.data import Batch, Batches
from parley.errors import BadValue
from parley.graphs import Edge, Topology
from parley.graphs.sequences import random_matching
from parley.neighbourhood.clustering import Clusters
from parley.neighbourhood.flow import Compressed, CrossGradients, Flow, Mail, OnEdges
from parley.neighbourhood.meter import Meter
from parley.neighbourhood.outputs import EdgeOutputs, Outputs
from parley.wire.codec import Codec, Dense, hashed
from parley.wire.transport import Kind, Transport


class Gradient(NamedTuple):
    """The result of `Neighbourhood.gradient`."""

    g_AD: Tensor
    loss_A: Tensor


class Told(NamedTuple):
    """The result of sending messages along some edges."""

    seen_AD: Tensor
    """Each hosted agent's message as its receivers decode it."""
    edges: list[Edge]
    """The edges on which messages have arrived here, (sender, receiver)."""
    receiver_E: Tensor
    """Row on axis A of the receiver of each."""
    x_ED: Tensor
    """The value that arrived on each."""


class Neighbourhood:
    """Agents hosted here, their edges and the weights on them."""

    agents: Sequence[int]
    """The numbers of the agents hosted here, one per row of axis A."""
    everyone: tuple[int, ...]
    """The numbers of all agents that take part."""
    neighbours: list[tuple[int, ...]]
    """Whose values each hosted agent receives, by the agents' numbers."""
    edges: list[Edge]
    """All edges of the graph, from sender to receiver, by the agents' numbers."""
    edges_I: list[Edge]
    """The same for axis I."""
    edges_O: list[Edge]
    """The same for axis O."""
    incoming: int
    """Size of axis I. Edges are in the order of the rounds."""
    outgoing: int
    """Size of axis O. Edges are in the order of the rounds."""
    receiver_I: Tensor
    """Row on axis A of the agent where each incoming edge ends."""
    sender_O: Tensor
    """Row on axis A of the agent where each outgoing edge starts."""
    weight_sum_A: Tensor
    """The sum of each agent's weights: 1 unless W is only column-stochastic, [A, 1]."""
    sizes: tuple[int, ...]
    """Entries of each parameter tensor in the flat vector."""
    weights_D: Tensor
    """1 for entries of weight matrices, 0 for those of biases and norms."""
    meter: Meter
    """Counts the gradients that are computed."""
    step: int
    """The step that messages and random choices belong to; see `at`."""

    def __init__(
        self,
        transport: Transport,
        engine: Engine,
        batches: Batches | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.transport = transport
        self.engine = engine
        self.meter = meter or Meter()
        self.step = 0
        self._batches = batches
        self._draws: dict[int, Batches] = {}
        self.task = engine.task
        self.placement = transport.placement
        self.agents = self.placement.hosted
        self.sizes, self.weights_D = self.task.sizes, self.task.weights_D
        self._dense = Dense(self.task.size)
        topology = transport.topology
        self._lists = transport.edges
        self._phases = [_Phase(self, phase) for phase in topology.phases]
        self._rounds = range(len(topology.rounds))
        self._name_edges(topology)
        self._weigh_edges(topology)
        self._clusters = Clusters(transport, engine)

    def _name_edges(self, topology: Topology) -> None:
        """Who is at the ends of edges."""
        number, lists, device = self.placement.number, self._lists, self.task.start().device
        self.everyone = tuple(map(number, range(topology.agents)))
        self.edges = [(number(j), number(i)) for j, i in topology.edges]
        self.edges_I = [self.edges[e] for e in lists.incoming]
        self.edges_O = [self.edges[e] for e in lists.outgoing]
        self.incoming, self.outgoing = len(lists.incoming), len(lists.outgoing)
        self.receiver_I = lists.receivers.to(device)
        self.sender_O = lists.senders.to(device)
        self.neighbours = [tuple(j for j, i in self.edges if i == agent) for agent in self.agents]
        self._owners = [[self.edges[e][0] for e in r] for r in lists.incoming_of]

    def _weigh_edges(self, topology: Topology) -> None:
        """The weights of the agents' own values and the others', and the sums that they make."""
        here, lists, crew = list(self.placement.agents), self._lists, self.engine.crew
        weights, device = topology.edge_weights, self.task.start().device

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=self.task.dtype, device=device)[:, None]

        self._self_weight_A = column([topology.self_weights[i] for i in here])
        # An edge j -> i has one weight, w_ij, for the value that goes along it and for the reply.
        # Values are averaged with a row of W, replies with a column of it.
        self._weight_in = [column([weights[e] for e in r])[:, 0] for r in lists.incoming_of]
        total = np.ones(topology.agents)
        if not topology.row_stochastic:
            total = np.asarray(topology.mixing.sum(axis=1)).ravel()
        self.weight_sum_A = column([total[i] for i in here])
        # The mean of the agents' own values and the others', in place, and one round at a time.
        own = range(len(here))
        places = [lists.row_of[e] for e in lists.incoming]
        every = torch.cat([self._self_weight_A[:, 0], *self._weight_in])
        self._mean = Sums([*own, *self.receiver_I.tolist()], [*own, *places], every, crew)
        self._mean_of_rounds = [
            Sums(rows, range(len(rows)), weight, crew)
            for rows, weight in zip(lists.receivers_of, self._weight_in, strict=True)
        ]

    def at(self, step: int, turn: int | None = None) -> "Neighbourhood":
        """The neighbourhood at a step, to which its messages and random choices belong. If the
        graph changes, `turn` says whose turn it is; without it, every step has the next graph."""
        turn = step if turn is None else turn
        view = copy(self._phases[turn % len(self._phases)] if self._phases else self)
        view.step = step
        view.meter = self.meter
        return view

    def on_graph(self, turn: int) -> "Neighbourhood":
        """The same step on the graph whose turn it is, if the graph changes; for algorithms that
        decide by themselves when to average."""
        return self.at(self.step, turn)

    def aside(self) -> "Neighbourhood":
        """The same for measuring rather than training: computation is counted separately."""
        view = copy(self)
        view.meter = Meter()
        return view

    def another_batch(self, draw: int = 1) -> Batch:
        """A batch for this step that is independent of the step's own and of other draws."""
        if self._batches is None:
            raise RuntimeError("this neighbourhood has no batches to draw from")
        if draw not in self._draws:
            self._draws[draw] = self._batches.another(draw)
        return self._draws[draw].at(self.step)

    @property
    def seed(self) -> int:
        """The seed from which, with agent and step, all random choices follow."""
        return self.engine.seed

    def gradient(self, x_AD: Tensor, batch: Batch, active_A: Tensor | None = None) -> Gradient:
        """Each agent's gradient on its own batch, g^ii, and loss; zero for agents that rest."""
        if active_A is None:
            rows = range(len(self.agents))
            loss_A, g_AD = self._computed(x_AD, batch, rows, self.agents)
            return Gradient(g_AD, loss_A)
        g_AD, loss_A = torch.zeros_like(x_AD), x_AD.new_zeros(len(x_AD))
        if len(some := active_A.nonzero().flatten().tolist()):
            owners = [self.agents[row] for row in some]
            loss_A[some], g_AD[some] = self._computed(x_AD[some], batch, some, owners)
        return Gradient(g_AD, loss_A)

    def _computed(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        if not all(map(batch.sizes.__getitem__, rows)):
            empty = next(batch.agents[row] for row in rows if not batch.sizes[row])
            because = f"it has no samples in the batch of step {batch.step + 1}"
            valid = "a sample for every agent that takes a gradient; gradient(..., active_A=) rests"
            raise BadValue("batch", f"agent {empty}", valid, because)
        self.meter.count(batch, rows)
        return self.engine.gradients(x_PD, batch, rows, owners)

    def exchange(self, x_AD: Tensor, codec: Codec | None = None, kind: Kind = "models") -> Mail:
        """Every agent sends `x_AD` to its out-neighbours; the neighbours' values arrive."""
        return self.publish(x_AD, codec, kind)[1]

    def publish(
        self, x_AD: Tensor, codec: Codec | None = None, kind: Kind = "models", stream: int = 0
    ) -> tuple[Tensor, Mail]:
        """Like `exchange`, but first returns each agent's message as its receivers decode it."""
        codec = self.keyed(codec or self._dense_of(x_AD), stream)
        wire_AB = codec.encode(x_AD)
        arrivals = self.transport.forward(wire_AB, kind, codec, self.step)
        seen_AD = x_AD if isinstance(codec, Dense) else codec.decode(wire_AB, x_AD.dtype)

        def of_others(r: int) -> Tensor:
            return codec.decode(arrivals.of_others(self._lists.from_others[r]), x_AD.dtype)

        def make() -> Iterator[Tensor]:
            return map(arrivals.of, self._lists.incoming_of)

        def arrived() -> Tensor:
            return seen_AD[:0] if self._lists.alone else codec.decode(arrivals.others(), x_AD.dtype)

        # Plain numbers can be read in place; other messages are decoded one round at a time.
        as_it_lies = arrived if self._lists.alone or isinstance(codec, Dense) else None
        return seen_AD, Mail(codec, x_AD.dtype, make, seen_AD, of_others, as_it_lies)

    def _dense_of(self, x_AD: Tensor) -> Dense:
        return self._dense if x_AD.shape[1] == self.task.size else Dense(x_AD.shape[1])

    def keyed(self, codec: Codec, stream: int = 0) -> Codec:
        """The codec with this step's random choices of the hosted agents, if it makes any.

        Encoding with it gives the same messages that `exchange` sends with it. A step that sends
        several random messages must give each its own `stream`.
        """
        if not codec.draws or codec.key_E is not None:
            return codec
        own = torch.tensor(self.agents)
        return codec.keyed(hashed(self.engine.seed, self.step, stream, own, own))

    def cross_gradient(self, x_I: OnEdges, batch: Batch) -> Flow:
        """Each neighbour's model on the agent's own batch, g^ji: computed as the flow is read."""

        def make() -> Iterator[Tensor]:
            for r, x_ED in zip(self._rounds, x_I, strict=True):
                rows, owners = self._lists.receivers_of[r], self._owners[r]
                yield self._dense.encode(self._computed(x_ED, batch, rows, owners)[1])

        return CrossGradients(self._dense, make, x_I, batch)

    def stored(self, values_ID: Tensor) -> Mail:
        """Stored values of any width, turned into mail again."""
        dense = self._dense_of(values_ID)
        return Mail(dense, values_ID.dtype, lambda: map(dense.encode, self._split(values_ID)))

    def collect(self, x_I: OnEdges) -> Tensor:
        """All values of a flow, or of mail, in one tensor, [I, D] or as wide as they are."""
        found = list(x_I)
        return torch.cat(found) if found else x_I.nothing().to(self.receiver_I.device)

    def divided(self, n_I: OnEdges, by_I1: Tensor) -> Flow:
        """Values on edges, each divided by its edge's number."""

        def make() -> Iterator[Tensor]:
            for n_ED, by_E1 in zip(n_I, self._split(by_I1), strict=True):
                yield self._dense.encode(n_ED / by_E1)

        return Flow(self._dense, n_I.dtype, make)

    def compress(self, g_I: OnEdges, e_ID: Tensor, codec: Codec) -> Compressed:
        """Each edge's value plus its error, encoded; once read, it has the new `errors`."""

        def make() -> Generator[Tensor, None, Tensor]:
            new_ID = e_ID.clone()
            for r, e_ED, g_ED in zip(self._rounds, self._kept(new_ID), g_I, strict=True):
                codec_E = self._keyed_to(self._owners[r], self._lists.receivers_of[r], codec)
                wire_EB = codec_E.take(e_ED.add_(g_ED))
                self._keep(new_ID, r, e_ED)
                yield wire_EB
            return new_ID

        return Compressed(codec, g_I.dtype, make)

    def average(
        self, x_AD: Tensor, x_I: OnEdges, gamma: float = 1.0, plus_AD: Tensor | None = None
    ) -> Tensor:
        """The weighted mean of an agent's own value and its neighbours', Σ_j w_ij x^j; or γ of the
        way from its own value to that. `plus_AD` is added in the same pass over memory."""
        if isinstance(x_I, Mail) and x_I.source_AD is x_AD and x_I.arrived is not None:
            return self._mean.of(x_AD, x_I.arrived(), gamma, plus_AD)
        mean_AD = self._self_weight_A * x_AD
        for mean, x_ED in zip(self._mean_of_rounds, x_I, strict=True):
            mean.add(mean_AD, x_ED)
        mean_AD = mean_AD if gamma == 1 else mean_AD.sub_(x_AD).mul_(gamma).add_(x_AD)
        return mean_AD if plus_AD is None else mean_AD.add_(plus_AD)

    def cluster(self, g_AD: Tensor, g_I: OnEdges, alpha: float) -> Tensor:
        """Σ_j [(1 - α) w_ji g^ji + α w_ij g^ij]; gradients are sent back if α > 0.

        The values are added up as they arrive and not stored. A round's replies travel while the
        next round is computed. At α = 0 nothing is sent. If the rows of W do not sum to 1, they are
        scaled so that they do.
        """
        return self._clusters.of(g_AD, g_I, alpha, self.step, self.meter)

    def send_back(self, g_I: OnEdges, kind: Kind = "cross_gradients") -> Tensor:
        """Replies along the same edges; they arrive on the outgoing ones, g^ij. Stored: [O, D]."""
        under_way = [
            self.transport.backward(wire_EB, r, kind, g_I.codec, self.step)
            for r, wire_EB in zip(self._rounds, g_I.messages(), strict=True)
        ]
        replies = [g_I.decode(arrived()) for arrived in under_way]
        return torch.cat(replies) if replies else g_I.nothing().to(self.sender_O.device)

    def mix(self, x_AD: Tensor, gamma: float = 1.0, kind: Kind = "models") -> Tensor:
        """One gossip step, x + γ Σ_j (w_ij - I_ij) x^j."""
        return self.gossip(x_AD, self.exchange(x_AD, kind=kind), gamma)

    def gossip(
        self, x_AD: Tensor, x_I: OnEdges, gamma: float = 1.0, plus_AD: Tensor | None = None
    ) -> Tensor:
        """The same with what the neighbours have sent already; `plus_AD` is added to it."""
        return self.average(x_AD, x_I, gamma, plus_AD)

    def mean(self, x_AD: Tensor, kind: Kind = "models") -> Tensor:
        """The mean over all agents, for every agent.

        Counted as with a server: every agent sends to agent 0, which replies to each.
        """
        length = Dense(x_AD.shape[1]).message_bytes(x_AD.dtype)
        self.transport.count_server(kind, length)
        total_D = self.transport.total(x_AD, kind, self.step)
        mean_D = total_D / self.transport.topology.agents
        return mean_D.repeat(len(x_AD), 1)

    def tell(
        self,
        x_AD: Tensor,
        edges: Iterable[Edge],
        codec: Codec | None = None,
        kind: Kind = "models",
        stream: int = 0,
    ) -> "Told":
        """Messages along some edges only, each (sender, receiver) by the agents' numbers. Every
        worker names the same edges, wherever they are."""
        chosen = set(edges)
        if strange := chosen.difference(self.edges):
            raise ValueError(f"{min(strange)} is not an edge of the graph")
        ways = [e for e, edge in enumerate(self.edges) if edge in chosen]
        codec = self.keyed(codec or self._dense_of(x_AD), stream)
        wire_AB = codec.encode(x_AD)
        wire_EB = self.transport.along(ways, wire_AB, kind, codec, self.step)
        row = {agent: row for row, agent in enumerate(self.agents)}
        came = [self.edges[e] for e in ways if self.edges[e][1] in row]
        seen_AD = x_AD if isinstance(codec, Dense) else codec.decode(wire_AB, x_AD.dtype)
        receiver_E = torch.tensor([row[i] for _, i in came], dtype=torch.int64, device=x_AD.device)
        return Told(seen_AD, came, receiver_E, codec.decode(wire_EB, x_AD.dtype))

    def random_pairs(self, number: int, most: int | None = None) -> list[Edge]:
        """Neighbours that meet, no agent in two pairs: as many as fit, or `most`. For each `number`
        they are drawn anew, the same on every worker."""
        return random_matching(self.edges, self.seed, number, most)

    def meet(
        self,
        x_AD: Tensor,
        pairs: Sequence[Edge],
        weight: float = 0.5,
        codec: Codec | None = None,
        kind: Kind = "models",
    ) -> Tensor:
        """Some pairs of neighbours average: x^i + w (C(x^j) - C(x^i)), at w = 1/2 the mean of both.
        No agent is in two pairs."""
        ways = [way for i, j in pairs for way in ((i, j), (j, i))]
        told = self.tell(x_AD, ways, codec, kind)
        rows, met_AD = told.receiver_E, x_AD.clone()
        if told.seen_AD is x_AD:  # then both ends have the same bits at w = 1/2
            met_AD[rows] = (1 - weight) * x_AD[rows] + weight * told.x_ED
        else:
            met_AD[rows] += weight * (told.x_ED - told.seen_AD[rows])
        return met_AD

    def evaluate(self, function: Function, x_AD: Tensor, batch: Batch) -> Outputs:
        """A plain torch function of each agent's own model on its own batch: its outputs, and their
        cotangents pulled back."""
        rows = range(len(self.agents))
        self.meter.count(batch, rows)
        return Outputs(evaluated(self.engine, function, x_AD, batch, rows, self.agents, graph=True))

    def cross_evaluate(self, function: Function, x_I: OnEdges, batch: Batch) -> EdgeOutputs:
        """The same of each neighbour's model on the agent's own batch."""

        def make(graph: bool) -> Iterator[Iterable[PairOutputs]]:
            for r, x_ED in zip(self._rounds, x_I, strict=True):
                rows, owners = self._lists.receivers_of[r], self._owners[r]
                self.meter.count(batch, rows)
                yield evaluated(self.engine, function, x_ED, batch, rows, owners, graph)

        return EdgeOutputs(self._dense, x_I, make)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample as the experiment has it, for a function that is evaluated."""
        return self.task.per_sample(outputs, targets)

    def accuracy(self, x_AD: Tensor, batch: Batch) -> Tensor:
        """Each agent's accuracy on its own batch, [A, 1]."""
        return self._accuracy(x_AD, batch, range(len(self.agents)))

    def cross_accuracy(self, x_I: OnEdges, batch: Batch) -> Mail:
        """The accuracy of each neighbour's model on the agent's own batch, one number per edge."""
        rounds = zip(x_I, self._lists.receivers_of, strict=True)
        found = [self._accuracy(x_ED, batch, rows) for x_ED, rows in rounds]
        start = self.task.start()
        return self.stored(torch.cat(found) if found else start.new_zeros(0, 1))

    def _accuracy(self, x_PD: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        right_P1 = x_PD.new_zeros(len(rows), 1)
        for p, row in enumerate(rows):
            n = batch.sizes[row]
            outputs = self.engine.predict(x_PD[p], batch.inputs[row, :n])
            right, of = self.task.goal.right(outputs, batch.targets[row, :n])
            right_P1[p] = right / max(of, 1)
        return right_P1

    def opposite_I(self) -> Tensor:
        """For every incoming edge j -> i, the position of i -> j on axis O, if it exists."""
        place = {edge: k for k, edge in enumerate(self.edges_O)}
        places = [place[i, j] for j, i in self.edges_I]
        return torch.tensor(places, dtype=torch.int64, device=self.receiver_I.device)

    def zeros_I(self) -> Tensor:
        """A zero vector per incoming edge, [I, D]; if the graph changes, of all its rounds."""
        start = self.task.start()
        return start.new_zeros(self.incoming, len(start))

    def _keyed_to(self, owners: list[int], rows: list[int], codec: Codec) -> Codec:
        """For replies: random choices depend on the edge."""
        if not codec.draws:
            return codec
        ends = [torch.tensor(owners), torch.tensor([self.agents[row] for row in rows])]
        return codec.keyed(hashed(self.engine.seed, self.step, 0, *ends))

    def _split(self, values_ID: Tensor) -> Iterator[Tensor]:
        return iter(values_ID.split([len(rows) for rows in self._lists.receivers_of]))

    def _kept(self, state_ID: Tensor) -> Iterator[Tensor]:
        """The state of the edges of each round."""
        return self._split(state_ID)

    def _keep(self, state_ID: Tensor, r: int, state_ED: Tensor) -> None:
        """Stores what `_kept` yielded; not needed here, since that was a view."""


class _Phase(Neighbourhood):
    """One graph of a sequence. State on edges is kept for the edges of all graphs together."""

    def __init__(self, whole: Neighbourhood, topology: Topology) -> None:
        super().__init__(whole.transport.on(topology), whole.engine, whole._batches, whole.meter)
        self._whole = whole
        every = whole.transport.topology.edges
        place = {every[e]: n for n, e in enumerate(whole.transport.edges.incoming)}
        edges, device = topology.edges, self.task.start().device
        self._places = [
            torch.tensor([place[edges[e]] for e in r], dtype=torch.int64, device=device)
            for r in self._lists.incoming_of
        ]

    def at(self, step: int, turn: int | None = None) -> Neighbourhood:
        """The same as of all graphs together."""
        view = self._whole.at(step, turn)
        view.meter = self.meter
        return view

    def zeros_I(self) -> Tensor:
        """A zero vector for every incoming edge of all graphs."""
        return self._whole.zeros_I()

    def _kept(self, state_ID: Tensor) -> Iterator[Tensor]:
        return (state_ID[places] for places in self._places)

    def _keep(self, state_ID: Tensor, r: int, state_ED: Tensor) -> None:
        state_ID[self._places[r]] = state_ED
