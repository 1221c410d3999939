"""Algorithms put together from parts: a gradient, an update and an averaging rule.

    g  = gradient(x)        own, NGC's clusters or CGA's projection; as it is, or tracked
    d  = update(g)          SGD with momentum, or quasi-global momentum
    x⁺ = average(x + d)     gossip, CHOCO, DeepSqueeze or AdaGossip; with push-sum or without

A part is a mixin of hyper-parameters and one or two of the methods that `Composed.step` calls. Its
file is that of the algorithm it comes from. Axes: A agents hosted here, I their incoming edges,
D flat parameters.
"""

from abc import abstractmethod
from collections import namedtuple
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from parley.algorithms.base import Algorithm, Memory, Momentum, Part
from parley.data import Batch
from parley.neighbourhood.verbs import Flow, Neighbourhood
from parley.wire import codec as codecs
from parley.wire.codec import Codec
from parley.wire.transport import Kind

Slot = Literal["x", "y"]
"""What is averaged: models, or tracked gradients."""
KIND: dict[Slot, Kind] = {"x": "models", "y": "cross_gradients"}
STREAM: dict[Slot, int] = {"x": 0, "y": 1}
"""Codecs that draw at random draw anew for each message of a step."""


class Composed(Algorithm):
    """What the parts fill in, and the step that calls them."""

    looks_around: ClassVar[bool] = False
    """Whether the gradient rule asks for the neighbours' models."""
    slots: ClassVar[tuple[Slot, ...]] = ("x",)

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> Any:
        """The models, and what each part keeps."""
        memory = {"x_AD": x_AD}
        for part in type(self).__mro__:
            if "start" in vars(part):
                memory |= part.start(self, x_AD, hood)  # type: ignore[attr-defined]
        return _state_type(tuple(memory))(**memory)

    def step(self, state: Any, hood: Neighbourhood, batch: Batch, lr: float) -> Any:
        """Gradient, update, averaging; in the other order where the gradient needs neighbours."""
        memory: Memory = state._asdict()
        x_AD = memory["x_AD"]
        n_AD = self.weigh(x_AD, hood, memory)
        if self.looks_around:
            mixed_AD, n_I = self.average(n_AD, hood, memory, "x")
            assert n_I is not None
            x_I = self.unweigh_flow(n_I, hood, memory)
            g_AD = self.gradient(x_AD, x_I, hood, batch, memory)
            n_AD = mixed_AD + self.update(self.track(g_AD, hood, memory), x_AD, lr, memory)
        else:
            g_AD = self.gradient(x_AD, None, hood, batch, memory)
            d_AD = self.update(self.track(g_AD, hood, memory), x_AD, lr, memory)
            n_AD, _ = self.average(n_AD + d_AD, hood, memory, "x")
        self.share(n_AD, hood, memory, "x")
        memory["x_AD"] = self.unweigh(n_AD, memory)
        self.settle(x_AD, memory["x_AD"], lr, memory)
        return type(state)(**{name: memory[name] for name in state._fields})

    @abstractmethod
    def gradient(
        self, x_AD: Tensor, x_I: Any, hood: Neighbourhood, batch: Batch, memory: Memory
    ) -> Tensor:
        """The gradients at the agents' own models; `x_I` are the neighbours' if it looks around."""

    @abstractmethod
    def update(self, g_AD: Tensor, x_AD: Tensor, lr: float, memory: Memory) -> Tensor:
        """The step to add to the models."""

    @abstractmethod
    def average(
        self, x_AD: Tensor, hood: Neighbourhood, memory: Memory, slot: Slot
    ) -> tuple[Tensor, Flow | None]:
        """The values averaged with the neighbours', and what is known of those."""

    def share(self, x_AD: Tensor, hood: Neighbourhood, memory: Memory, slot: Slot) -> None:
        """Tells the neighbours of values that are done, for their next averaging."""

    def track(self, g_AD: Tensor, hood: Neighbourhood, memory: Memory) -> Tensor:
        """A correction of the gradients."""
        return g_AD

    def settle(self, old_AD: Tensor, new_AD: Tensor, lr: float, memory: Memory) -> None:
        """What the update rule learns from where the models have gone."""

    def weigh(self, x_AD: Tensor, hood: Neighbourhood, memory: Memory) -> Tensor:
        """What is averaged in place of the models."""
        return x_AD

    def unweigh(self, n_AD: Tensor, memory: Memory) -> Tensor:
        """The models again."""
        return n_AD

    def unweigh_flow(self, n_I: Flow, hood: Neighbourhood, memory: Memory) -> Flow:
        """The neighbours' models again."""
        return n_I


@lru_cache
def _state_type(fields: tuple[str, ...]) -> Any:
    return namedtuple("State", fields)


class Own(Part):
    """The gradient of the own data at the own model."""

    def gradient(
        self, x_AD: Tensor, x_I: Any, hood: Neighbourhood, batch: Batch, memory: Memory
    ) -> Tensor:
        """g^ii."""
        return hood.gradient(x_AD, batch)


class SGD(Momentum):
    """Stochastic gradient descent with heavy-ball or Nesterov momentum."""

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """Momentum starts at zero."""
        return {"v_AD": torch.zeros_like(x_AD)}

    def update(self, g_AD: Tensor, x_AD: Tensor, lr: float, memory: Memory) -> Tensor:
        """v = βv - ηg, and the other form."""
        d_AD, memory["v_AD"] = self.descend(g_AD, x_AD, memory["v_AD"], lr)
        return d_AD


def _checked(spec: str) -> str:
    codecs.build(spec, [1])
    return spec


CodecSpec = Annotated[str, AfterValidator(_checked)]
"""How values are written on the wire: dense, fp16, sign, topk:0.01, …"""


@lru_cache
def _codec(spec: str, sizes: tuple[int, ...]) -> Codec:
    return codecs.build(spec, sizes)


def publish(x_AD: Tensor, hood: Neighbourhood, spec: str, slot: Slot = "x") -> tuple[Tensor, Flow]:
    """Sends values as a codec writes them: what receivers make of the own, and what arrives."""
    return hood.publish(x_AD, _codec(spec, tuple(hood.sizes)), KIND[slot], STREAM[slot])


class Gossip(Part):
    """Averages with the neighbours' values, x + γ Σ_j (w_ij - I_ij) C(x^j)."""

    gamma: float = Field(1.0, gt=0, le=1)
    """γ, the averaging rate: how far a gossip step goes towards the neighbourhood's mean."""
    codec: CodecSpec = "dense"
    """C, how values are written on the wire."""

    def average(
        self, x_AD: Tensor, hood: Neighbourhood, memory: Memory, slot: Slot
    ) -> tuple[Tensor, Flow | None]:
        """One gossip step; what is sent is also what an agent counts for its own value."""
        q_AD, q_I = publish(x_AD, hood, self.codec, slot)
        return hood.gossip(q_AD, q_I, self.gamma) + (x_AD - q_AD), q_I
