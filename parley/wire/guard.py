"""Checks messages from other workers as they arrive: could an honest agent have sent them?

Axes: R messages that have arrived, D flat parameters, B bytes of a message.

A message is suspicious if it is not finite, if it is far longer than its sender's messages were so
far and than those of the neighbourhood, or if it points elsewhere than its sender's did so far and
than the neighbourhood's do. What honest agents compute is not touched.

These limits catch mistakes and crude attacks, and promise no more. A sender that is careful stays
below them, and can still spoil the result: by a little in every step, or by more at once where the
neighbourhood is as far apart. Where there is neither a history nor a neighbourhood to compare with,
as for the first messages between two agents, it is unknown which of the two is right.
"""

import logging
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from parley.errors import ParleyError
from parley.wire.codec import Codec, Dense
from parley.wire.placement import Placement

log = logging.getLogger(__name__)

Policy = Literal["warn", "stop", "drop"]

LONGER = 10.0
"""Times the norm of anything that its sender has sent before, and of the neighbourhood's median."""
APART = 0.5
"""Distance from the receiver's own values, as a share of the sum of both norms: 0 for the same, 1
for the opposite, about 0.7 for what has nothing to do with them."""
STRANGE = 0.65
"""The same for the first message of a sender: agents that have trained alone for long, on other
classes, are up to 0.6 apart."""
FURTHER = 2.0
"""Times the distance of anything that its sender has sent before, and of any of the others."""
KNOWN = 10
"""Messages after which its history alone can speak against a sender."""


class Suspicious(ParleyError):
    """An agent has sent something that no honest agent would have."""

    def __init__(self, message: str, agent: int = -1, worker: int = -1, drop: bool = False) -> None:
        super().__init__(message)
        self.drop = drop
        """Whether the others are to go on without it."""
        self.agent = agent
        """The sender, by the experiment's number."""
        self.worker = worker
        """Where it lives."""


@dataclass
class Arrived:
    """Messages of one transfer and their senders, by the experiment's numbers."""

    what: str
    step: int
    codec: Codec
    wire_RB: Tensor
    senders: Sequence[int]
    workers: Sequence[int]
    own_RB: Tensor | None
    """The receiver's own message in the same exchange, if it has one."""
    others_RB: Tensor
    """What the hosted agents have sent in the same exchange."""

    def of_others(self, values: Sequence[float], row: int) -> list[float]:
        """The values of all messages that come from other workers than this one: agents of one
        worker would vouch for each other."""
        each = zip(self.workers, values, strict=True)
        return [value for worker, value in each if worker != self.workers[row]]


@dataclass
class _History:
    count: int = 0
    norm: float = 0.0
    distance: float = 0.0


@dataclass
class Guard:
    """Judges what other workers send."""

    dtype: torch.dtype
    policy: Policy = "warn"
    name_of: Callable[[int], str] = "worker {}".format
    """What a worker is called."""
    counts: Counter[int] = field(default_factory=Counter)
    """Suspicious messages of each agent so far, by the experiment's numbers."""
    first: str = ""
    """What was suspicious first."""
    _histories: dict[tuple[str, int], _History] = field(
        default_factory=lambda: defaultdict(_History)
    )
    _seen: Counter[tuple[str, int]] = field(default_factory=Counter)
    step: int = -1
    """The step of the last message."""
    _weights: dict[int, float] = field(default_factory=dict)

    def weigh(self, weights: Mapping[int, float]) -> None:
        """How many times as much as the least of all agents each counts, if agents count
        differently: its gradients are that much longer."""
        self._weights.update(weights)

    def inspect(self, arrived: Arrived) -> None:
        """Looks at messages as they come, before anybody uses them."""
        if arrived.step != self.step:
            self.step = arrived.step
            self._seen.clear()
        # A step may send several things of one kind, each with a history of its own.
        kind = (arrived.what, arrived.wire_RB.shape[1])
        self._seen[kind] += 1
        channel = f"{arrived.what} {kind[1]} {self._seen[kind]}"
        values_RD = self._decoded(arrived)
        norms = _norms(values_RD)
        apart = self._apart(arrived, values_RD, norms)
        own: list[float] | None = None
        for row, sender in enumerate(arrived.senders):
            history = self._histories[channel, sender]
            norm, distance = norms[row], apart[row] if apart else 0.0
            longer = LONGER * self._weights.get(sender, 1.0)
            why = ""
            if not math.isfinite(norm):
                why = "that is not finite"
            elif norm > longer * history.norm or not history.count:
                own = own if own is not None else _norms(self._own_values(arrived))
                others = arrived.of_others(norms, row)
                usual = statistics.median(own + [n for n in others if math.isfinite(n)] or [norm])
                if norm > longer * usual > 0:
                    times = norm / max(usual, history.norm)
                    why = f"that is {times:.3g} times as long as usual"
            if not why and apart and distance > (APART if history.count else STRANGE):
                why = self._direction(arrived, history, apart, row)
            if why:
                self.report(sender, arrived.workers[row], arrived.step, f"sent {_a(arrived)} {why}")
                continue  # what is suspicious makes no history
            history.count += 1
            history.norm = max(history.norm, norm)
            history.distance = max(history.distance, distance)

    def inspect_rows(self, what: str, step: int, rows_ND: Tensor, placement: Placement) -> None:
        """The same for what is averaged over all agents: one row for each of them."""
        size = rows_ND.shape[1]
        if size == 1:
            return  # a number that steers an algorithm: neither long nor short, and no direction
        worker_of, here = placement.worker_of, placement.here
        own = [agent for agent, worker in enumerate(worker_of) if worker == here]
        others = [agent for agent, worker in enumerate(worker_of) if worker != here]
        wire_NB = Dense(size).encode(rows_ND.to(self.dtype))
        mine_RB = wire_NB[own[:1]].expand(len(others), -1)
        self.inspect(
            Arrived(
                what,
                step,
                Dense(size),
                wire_NB[others],
                [placement.number(agent) for agent in others],
                [worker_of[agent] for agent in others],
                None if what == "cross_gradients" else mine_RB,
                wire_NB[own],
            )
        )

    def report(self, agent: int, worker: int, step: int, what: str) -> None:
        """Something suspicious of an agent: a warning, or the end."""
        words = f"agent {agent} ({self.name_of(worker)}) {what}, step {step + 1}"
        self.first = self.first or words
        self.counts[agent] += 1
        if self.policy != "warn":
            raise Suspicious(f"suspicious: {words}", agent, worker, self.policy == "drop")
        if self.counts[agent] == 1:
            log.warning("suspicious: %s (to refuse it: --suspicious stop, or drop)", words)

    def _decoded(self, arrived: Arrived) -> Tensor:
        try:
            return arrived.codec.decode(arrived.wire_RB, self.dtype)
        except ParleyError as error:
            # Which of them it is shows when each is decoded alone.
            for row, sender in enumerate(arrived.senders):
                try:
                    arrived.codec.decode(arrived.wire_RB[row : row + 1], self.dtype)
                except ParleyError:
                    where = f"agent {sender} ({self.name_of(arrived.workers[row])})"
                    words = f"suspicious: {where} sent {error}, step {arrived.step + 1}"
                    drop = self.policy == "drop"
                    raise Suspicious(words, sender, arrived.workers[row], drop) from None
            raise

    def _own_values(self, arrived: Arrived) -> Tensor:
        return arrived.codec.decode(arrived.others_RB, self.dtype)

    def _apart(self, arrived: Arrived, values_RD: Tensor, norms: list[float]) -> list[float]:
        """How far each message is from its receiver's own, from 0 to 1."""
        if arrived.own_RB is None:
            return []
        own_RD = arrived.codec.decode(arrived.own_RB, self.dtype).to(values_RD.device)
        products: list[float] = torch.linalg.vecdot(values_RD, own_RD).tolist()
        return [
            # Where the receiver has nothing yet, there is nothing to be apart from.
            _share(math.sqrt(max(0.0, a * a + b * b - 2 * p)), a + b) if a else 0.0
            for p, a, b in zip(products, _norms(own_RD), norms, strict=True)
        ]

    def _direction(self, arrived: Arrived, history: _History, apart: list[float], row: int) -> str:
        known = history.count >= KNOWN
        if history.count and apart[row] <= FURTHER * history.distance:
            return ""
        if arrived.what == "cross_gradients" and not known:
            return ""  # early gradients of different data point anywhere
        others = arrived.of_others(apart, row) + self._among_own(arrived)
        if others and apart[row] <= FURTHER * max(others):
            return ""
        return "that has nothing to do with its neighbours'" if known or others else ""

    def _among_own(self, arrived: Arrived) -> list[float]:
        """How far the hosted agents are from each other."""
        own_AD = self._own_values(arrived)
        if len(own_AD) < 2:
            return []
        norms = _norms(own_AD)
        distances = _norms(own_AD[1:] - own_AD[:-1])
        both = zip(distances, norms[1:], norms[:-1], strict=True)
        return [_share(distance, a + b) for distance, a, b in both]


def _norms(values_RD: Tensor) -> list[float]:
    found: list[float] = torch.linalg.vector_norm(values_RD, dim=1).tolist()
    return found


def _share(distance: float, of: float) -> float:
    return distance / of if of else 0.0


def _a(arrived: Arrived) -> str:
    return "a gradient" if arrived.what == "cross_gradients" else "a model"
