"""Line 12 of NGC's Algorithm 1: means of gradients that travel along edges and back.

Axes: A agents hosted here, E the edges of one round, D flat parameters.

A value is added to the mean at one end of its edge, the other, or both, as it arrives; none is
stored. Values that come along edges form one sum and the replies another, each in the order of the
graph's edges, and the two are added at the end.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley.compute.engine import Engine, Pairs, Share
from parley.compute.sums import Sums
from parley.data import Batch
from parley.neighbourhood.flow import CrossGradients, Mail, OnEdges
from parley.neighbourhood.meter import Meter
from parley.wire.codec import Dense
from parley.wire.transport import UNDER_WAY, Transfer, Transport


class Clusters:
    """How the gradients on the edges of one graph are added up."""

    def __init__(self, transport: Transport, engine: Engine) -> None:
        self.transport = transport
        self.engine = engine
        self._dense = Dense(engine.task.size)
        topology, placement = transport.topology, transport.placement
        row, number, edges = placement.row, placement.number, topology.edges
        lists = transport.edges
        device, dtype = engine.task.start().device, engine.task.dtype

        def index(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def numbers(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self._rounds = range(len(topology.rounds))
        # The owner of the data splits its gradients in parts that add up to 1, whatever W is.
        total = np.ones(topology.agents)
        if not topology.row_stochastic:
            total = np.asarray(topology.mixing.sum(axis=1)).ravel()
        shares = [topology.edge_weights[e] / total[i] for e, (_, i) in enumerate(edges)]
        own = [topology.self_weights[i] / total[i] for i in placement.agents]
        self._self_share_A1 = numbers(own)[:, None]
        self._share_in = [numbers([shares[e] for e in r]) for r in lists.incoming_of]
        self._share_out = [numbers([shares[e] for e in r]) for r in lists.outgoing_of]

        # Between agents hosted here, an edge is a pair of a model and a batch.
        inside = [edges[e] for r in lists.inside for e in r]
        self._pairs = Pairs(
            index([row[j] for j, _ in inside]),
            torch.tensor([row[i] for _, i in inside], dtype=torch.int64),
            torch.tensor([number(j) for j, _ in inside], dtype=torch.int64),
        )
        self._pair_rows: list[int] = self._pairs.rows.tolist()
        self._pair_receiver = self._pairs.rows.to(device)
        self._pair_share = numbers([shares[e] for r in lists.inside for e in r])
        self._inside = [
            _Meetings(*_unzipped([(row[j], row[i], number(j)) for j, i in (edges[e] for e in r)]))
            for r in lists.inside
        ]
        self._from_others = [
            _Meetings(*_unzipped([(-1, row[i], number(j)) for j, i in (edges[e] for e in r)]))
            for r in lists.from_others
        ]
        self._shares: dict[float, tuple[Share, ...]] = {}
        self._orders: dict[tuple[float, bool], _Orders] = {}

    def of(self, g_AD: Tensor, g_I: OnEdges, alpha: float, step: int, meter: Meter) -> Tensor:
        """Σ_j [(1 - α) w_ji g^ji + α w_ij g^ij], for every hosted agent."""
        mean_AD = self._self_share_A1 * g_AD
        replies_AD = torch.zeros_like(mean_AD) if 0 < alpha < 1 else mean_AD
        if isinstance(g_I, CrossGradients) and isinstance(g_I.x_I, Mail) and g_I.x_I.of_others:
            g_I.take()
            self._accumulate(g_I.x_I, g_I.batch, alpha, mean_AD, replies_AD, step, meter)
        else:
            self._add_messages(g_I, alpha, mean_AD, replies_AD, step)
        return mean_AD.add_(replies_AD) if replies_AD is not mean_AD else mean_AD

    def _add_messages(
        self, g_I: OnEdges, alpha: float, mean_AD: Tensor, replies_AD: Tensor, step: int
    ) -> None:
        """Adds what comes along edges to one sum, and the replies to the other."""
        along, back = self._orders_of(alpha, apart=False)
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
                replies = self.transport.backward(wire_EB, r, "cross_gradients", g_I.codec, step)
                under_way.append((r, replies))
        while under_way:
            add_replies()

    def _accumulate(
        self,
        x_I: Mail,
        batch: Batch,
        alpha: float,
        mean_AD: Tensor,
        replies_AD: Tensor,
        step: int,
        meter: Meter,
    ) -> None:
        """The same for cross-gradients that are not used elsewhere: inside this worker none is
        written out as a message.

        Other workers' models go first, so that a round's replies travel while the next round is
        computed, and the last ones while those inside this worker are. A round is added to the sums
        once all of it is there.
        """
        x_AD, of_others = x_I.source_AD, x_I.of_others
        assert x_AD is not None and of_others is not None
        length, dense = self._dense.message_bytes(x_AD.dtype), self._dense
        if self.transport.edges.alone:
            for r in self._rounds if alpha > 0 else ():
                self.transport.count_replies(r, "cross_gradients", length, step)
            sums = [mean_AD] * (alpha < 1) + [replies_AD] * (alpha > 0)
            meter.count(batch, self._pair_rows)
            self.engine.accumulate(x_AD, batch, self._pairs, self._pair_shares(alpha), sums)
            return
        along, back = self._orders_of(alpha, apart=True)
        under_way: deque[tuple[int, Tensor, Transfer | None]] = deque()

        def add_round() -> None:
            r, there_ED, transfer = under_way.popleft()
            inside = self._inside[r]
            g_ED = self._gradients(x_AD[inside.models], batch, inside, meter)
            if alpha < 1:
                along[r].add(mean_AD, g_ED, there_ED)
            if alpha > 0:
                wire_EB = None if transfer is None else transfer.wait().to(x_AD.device)
                replies_ED = None if wire_EB is None else dense.decode(wire_EB, x_AD.dtype)
                back[r].add(replies_AD, g_ED, replies_ED)

        for r, others in enumerate(self._from_others):
            if len(under_way) == UNDER_WAY:
                add_round()
            there_ED = self._gradients(
                of_others(r) if others.rows else x_AD[:0], batch, others, meter
            )
            transfer = None
            if alpha > 0:
                self.transport.count_replies(r, "cross_gradients", length, step)
                wire_EB = dense.encode(there_ED)
                transfer = self.transport.backward_to_others(
                    wire_EB, r, "cross_gradients", dense, step
                )
            under_way.append((r, there_ED if alpha < 1 else x_AD[:0], transfer))
        while under_way:
            add_round()

    def _gradients(self, x_ED: Tensor, batch: Batch, meetings: "_Meetings", meter: Meter) -> Tensor:
        """The gradients of models on the batches they are paired with; may be empty."""
        if not meetings.rows:
            return x_ED
        meter.count(batch, meetings.rows)
        return self.engine.gradients(x_ED, batch, meetings.rows, meetings.owners)[1]

    def _orders_of(self, alpha: float, apart: bool) -> "_Orders":
        """How the values on edges are added up, round by round, along the edges and back.

        A round's values are those of all its edges or, if `apart`, those of the edges inside this
        worker followed by the others.
        """
        if (alpha, apart) not in self._orders:
            lists = self.transport.edges

            def sums(
                all_of: Sequence[Sequence[int]],
                others_of: Sequence[Sequence[int]],
                targets_of: Sequence[list[int]],
                weight_of: Sequence[Tensor],
                share: float,
            ) -> list[Sums]:
                made = []
                for edges, inside, others, targets, weight in zip(
                    all_of, lists.inside, others_of, targets_of, weight_of, strict=True
                ):
                    stand = (*inside, *others) if apart else edges
                    place = {e: k for k, e in enumerate(stand)}
                    rows = [place[e] for e in edges]
                    made.append(Sums(targets, rows, share * weight, self.engine.crew))
                return made

            came, went = lists.from_others, lists.to_others
            self._orders[alpha, apart] = _Orders(
                sums(lists.incoming_of, came, lists.receivers_of, self._share_in, 1 - alpha),
                sums(lists.outgoing_of, went, lists.senders_of, self._share_out, alpha),
            )
        return self._orders[alpha, apart]

    def _pair_shares(self, alpha: float) -> tuple[Share, ...]:
        """To whose means a cross-gradient is added: that of the agent that computes it, and that of
        the agent whose model it is. Determined once, so that an engine can prepare for it."""
        if alpha not in self._shares:
            receiver = Share(self._pair_receiver, (1 - alpha) * self._pair_share)
            sender = Share(self._pairs.models, alpha * self._pair_share)
            self._shares[alpha] = (receiver,) * (alpha < 1) + (sender,) * (alpha > 0)
        return self._shares[alpha]


class _Meetings(NamedTuple):
    """The edges of one round: whose model is paired with whose batch."""

    models: list[int]
    """Row of the model, if it is hosted here."""
    rows: list[int]
    """Row of the receiver's batch."""
    owners: list[int]
    """Agent whose model it is."""


class _Orders(NamedTuple):
    """How values are added up round by round."""

    along: list[Sums]
    """At the agents where edges end."""
    back: list[Sums]
    """At the agents where edges start."""


def _unzipped(meetings: list[tuple[int, int, int]]) -> list[list[int]]:
    return [[meeting[k] for meeting in meetings] for k in range(3)]
