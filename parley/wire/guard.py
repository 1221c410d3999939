"""Looking at messages from other workers where they arrive: could an honest agent have sent this?

Axes: R messages that have arrived, D flat parameters, B bytes of a message.

A message is suspicious if it is not finite, if it is far longer than its sender's messages were so
far and than those of the neighbourhood, or if it points elsewhere than its sender's did so far and
than the neighbourhood's do. What honest agents compute is not touched.

A sender that is careful enough stays below these limits; that it cannot do much at once is all that
is promised. Where there is neither a history nor a neighbourhood to compare with, as for the first
messages between two agents, nobody can tell who of the two is right.
"""

import logging
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from parley.errors import ParleyError
from parley.wire.codec import Codec

log = logging.getLogger(__name__)

Policy = Literal["warn", "stop", "drop"]

LONGER = 10.0
"""Times the norm of anything that its sender has sent before, and of the neighbourhood's median."""
APART = 0.5
"""Distance from the receiver's own values, as a share of the sum of both norms: 0 for the same, 1
for the opposite, about 0.7 for what has nothing to do with them."""
FURTHER = 2.0
"""Times the distance of anything that its sender has sent before, and of the others' median."""
KNOWN = 10
"""Messages after which a sender has a history."""


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
    counts: Counter[int] = field(default_factory=Counter)
    """Suspicious messages of each agent so far, by the experiment's numbers."""
    first: str = ""
    """What was suspicious first."""
    _histories: dict[tuple[str, int], _History] = field(
        default_factory=lambda: defaultdict(_History)
    )
    _seen: Counter[tuple[str, int]] = field(default_factory=Counter)
    _step: int = -1

    def inspect(self, arrived: Arrived) -> None:
        """Looks at messages as they come, before anybody uses them."""
        if arrived.step != self._step:
            self._step = arrived.step
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
            why = ""
            if not math.isfinite(norm):
                why = "that is not finite"
            elif norm > LONGER * history.norm or not history.count:
                own = own if own is not None else _norms(self._own_values(arrived))
                others = [n for s, n in zip(arrived.senders, norms, strict=True) if s != sender]
                usual = statistics.median(own + [n for n in others if math.isfinite(n)] or [norm])
                if norm > LONGER * usual > 0:
                    times = norm / max(usual, history.norm)
                    why = f"that is {times:.3g} times as long as usual"
            if not why and distance > APART and apart:
                why = self._direction(arrived, history, apart, sender, distance)
            if why:
                self.report(sender, arrived.workers[row], arrived.step, f"sent {_a(arrived)} {why}")
                continue  # what is suspicious makes no history
            history.count += 1
            history.norm = max(history.norm, norm)
            history.distance = max(history.distance, distance)

    def report(self, agent: int, worker: int, step: int, what: str) -> None:
        """Something suspicious of an agent: a warning, or the end."""
        words = f"agent {agent} (worker {worker}) {what}, step {step + 1}"
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
                    where = f"agent {sender} (worker {arrived.workers[row]})"
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
        each = zip(products, _norms(own_RD), norms, strict=True)
        return [_share(math.sqrt(max(0.0, a * a + b * b - 2 * p)), a + b) for p, a, b in each]

    def _direction(
        self,
        arrived: Arrived,
        history: _History,
        apart: list[float],
        sender: int,
        distance: float,
    ) -> str:
        known = history.count >= KNOWN
        if known and distance <= FURTHER * history.distance:
            return ""
        others = [d for s, d in zip(arrived.senders, apart, strict=True) if s != sender]
        others += self._among_own(arrived)
        if others and distance <= FURTHER * statistics.median(others):
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
