"""The parts that recipes are made of: what each kind does, and the plainest of each kind.

A part is frozen and has its hyper-parameters as fields. What it keeps from step to step is a
NamedTuple of tensors that `init` makes; every method takes that state and returns the next one
beside its result. The other parts are in the files of the algorithms they come from. Axes: A agents
hosted here, I their incoming edges, D flat parameters.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import BaseModel
from torch import Tensor

from parley.algorithms.base import (
    CONFIG,
    CodecSpec,
    DecayOn,
    Decoupled,
    Momentum,
    Nesterov,
    Rate,
    WeightDecay,
    descend,
)
from parley.data import Batch
from parley.graphs import Property
from parley.neighbourhood import Kind, Mail, Neighbourhood, OnEdges
from parley.wire import codec as codecs
from parley.wire.codec import Codec


class Nothing(NamedTuple):
    """The state of a part that keeps nothing."""


class Part(BaseModel):
    """A rule that recipes are made of."""

    model_config = CONFIG

    word: ClassVar[str] = ""
    """What it is called in the name of a recipe; nothing for what is left out there."""
    title: ClassVar[str] = ""
    alone: ClassVar[bool] = True
    """Whether its word names an algorithm by itself; otherwise ``dpsgd`` stands before it."""


# --- gradients --------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a gradient rule gives."""

    g_AD: Tensor
    loss_A: Tensor
    state: Any


class GradientRule(Part, ABC):
    """Which gradient an agent steps along."""

    looks_around: ClassVar[bool] = False
    """Whether it asks for the neighbours' models."""
    needs: ClassVar[Property] = "doubly-stochastic"
    """What the mixing weights must be."""

    @property
    def suffix(self) -> str:
        """What it adds to the label of a recipe."""
        return ""

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> Any:
        """What it keeps, before the first step."""
        return Nothing()

    @abstractmethod
    def apply(
        self, state: Any, at_AD: Tensor, x_I: OnEdges | None, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """The gradients, with self-gradients at `at_AD`; `x_I` are the neighbours' models, given
        to a rule that looks around."""


class Own(GradientRule):
    """The gradient of the own data at the own model."""

    def apply(
        self, state: Any, at_AD: Tensor, x_I: OnEdges | None, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """g^ii."""
        return Found(*hood.gradient(at_AD, batch), state)


# --- updates ----------------------------------------------------------------------------------


class UpdateRule(Part, ABC):
    """The step that follows from a gradient."""

    learns_from_averages: ClassVar[bool] = False
    """Whether `settle` reads anything off the averaged models."""

    @abstractmethod
    def init(self, x_AD: Tensor) -> Any:
        """What it keeps, before the first step."""

    @abstractmethod
    def apply(self, state: Any, g_AD: Tensor, at_AD: Tensor, lr: float) -> tuple[Tensor, Any]:
        """What to add to the models; `at_AD` is where the gradient was taken."""

    def step(
        self, state: Any, g_AD: Tensor, at_AD: Tensor, lr: float, hood: Neighbourhood
    ) -> tuple[Tensor, Any]:
        """`apply`, and whatever needs to know about the model beside its numbers."""
        return self.apply(state, g_AD, at_AD, lr)

    def settle(self, state: Any, old_AD: Tensor, new_AD: Tensor, lr: float) -> Any:
        """What it learns, once all is averaged, from where the models have gone."""
        return state


class DecayingRule(UpdateRule, ABC):
    """An update rule under which weights decay."""

    weight_decay: WeightDecay = 0.0
    decoupled: Decoupled = False
    decay_on: DecayOn = "all"

    def step(
        self, state: Any, g_AD: Tensor, at_AD: Tensor, lr: float, hood: Neighbourhood
    ) -> tuple[Tensor, Any]:
        """`apply` with λx in the gradient, or with -ηλx beside it."""
        if not self.weight_decay:
            return self.apply(state, g_AD, at_AD, lr)
        decayed_AD = at_AD if self.decay_on == "all" else at_AD * hood.task.weights_D
        if not self.decoupled:
            return self.apply(state, g_AD + self.weight_decay * decayed_AD, at_AD, lr)
        d_AD, state = self.apply(state, g_AD, at_AD, lr)
        return d_AD - lr * self.weight_decay * decayed_AD, state


class Velocity(NamedTuple):
    """What momentum keeps."""

    v_AD: Tensor


class SGD(DecayingRule):
    """Stochastic gradient descent with heavy-ball or Nesterov momentum."""

    momentum: Momentum = 0.0
    nesterov: Nesterov = False

    def init(self, x_AD: Tensor) -> Velocity:
        """Momentum starts at zero."""
        return Velocity(torch.zeros_like(x_AD))

    def apply(
        self, state: Velocity, g_AD: Tensor, at_AD: Tensor, lr: float
    ) -> tuple[Tensor, Velocity]:
        """v = βv - ηg, and the other form."""
        d_AD, v_AD = descend(self, g_AD, state.v_AD, lr)
        return d_AD, Velocity(v_AD)


# --- averaging --------------------------------------------------------------------------------


class Channel(NamedTuple):
    """What is averaged: as what its bytes are counted, and which random numbers codecs draw."""

    kind: Kind
    stream: int


MODELS = Channel("models", 0)
TRACKED = Channel("cross_gradients", 1)


class Sent(NamedTuple):
    """Values on their way to the neighbours, and what comes from these."""

    own_AD: Tensor
    """What the receivers make of the own values."""
    heard_I: Mail | None
    """What the neighbours have sent, if they send before the averaging."""
    known_I: Mail | None
    """What is known of the neighbours' values, if that is the values themselves."""


class AveragingRule(Part, ABC):
    """How values come together with the neighbours'."""

    static: ClassVar[bool] = False
    """Whether the graph must not change."""
    tells_values: ClassVar[bool] = True
    """Whether neighbours come to know the values, or only parts of them."""
    keeps_sums: ClassVar[bool] = True
    """Whether the sum of all agents' values stays what it was."""
    gamma: Rate = 1.0

    @property
    def gossip_rate(self) -> float:
        """The rate of the further gossip rounds after which models are also tested. They are sent
        in full, for which a γ that a codec keeps small would be too small."""
        return 1.0

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool, edges: bool) -> Any:
        """What it keeps, before the first step.

        `apart`: the values differ from agent to agent. `edges`: what is known of each neighbour's
        values will be asked for.
        """
        return Nothing()

    @abstractmethod
    def send(
        self, state: Any, x_AD: Tensor, hood: Neighbourhood, channel: Channel
    ) -> tuple[Sent, Any]:
        """Sends what has to be sent before values can be averaged; waits for nothing it can do
        without."""

    @abstractmethod
    def mix(self, state: Any, x_AD: Tensor, sent: Sent, hood: Neighbourhood) -> tuple[Tensor, Any]:
        """The values averaged with the neighbours', for which it waits."""

    def share(self, state: Any, x_AD: Tensor, hood: Neighbourhood, channel: Channel) -> Any:
        """Tells the neighbours of values that are done, for their next averaging."""
        return state


class Gossip(AveragingRule):
    """Averages with the neighbours' values, x + γ Σ_j (w_ij - I_ij) C(x^j)."""

    word = "gossip"
    title = "Gossip"

    codec: CodecSpec = "dense"
    """C, how values are written on the wire."""

    @property
    def gossip_rate(self) -> float:
        """As in training."""
        return self.gamma

    def send(
        self, state: Nothing, x_AD: Tensor, hood: Neighbourhood, channel: Channel
    ) -> tuple[Sent, Nothing]:
        """All of it; what is sent is also what an agent counts for its own value."""
        q_AD, q_I = publish(x_AD, hood, self.codec, channel)
        return Sent(q_AD, q_I, q_I), state

    def mix(
        self, state: Nothing, x_AD: Tensor, sent: Sent, hood: Neighbourhood
    ) -> tuple[Tensor, Nothing]:
        """One gossip step."""
        q_AD, q_I, _ = sent
        assert q_I is not None
        mixed_AD = hood.gossip(q_AD, q_I, self.gamma)
        return (mixed_AD if q_AD is x_AD else mixed_AD + (x_AD - q_AD)), state


@lru_cache
def _codec(spec: str, sizes: tuple[int, ...]) -> Codec:
    return codecs.build(spec, sizes)


def publish(x_AD: Tensor, hood: Neighbourhood, spec: str, channel: Channel) -> tuple[Tensor, Mail]:
    """Sends values as a codec writes them: what receivers make of the own, and what arrives."""
    return hood.publish(x_AD, _codec(spec, tuple(hood.sizes)), channel.kind, channel.stream)


# --- what may stand around them ---------------------------------------------------------------


class ClippingRule(Part, ABC):
    """A bound on the gradients, after their correction and before the update."""

    @abstractmethod
    def apply(self, g_AD: Tensor) -> Tensor:
        """The gradients within the bound."""


class Correction(Part, ABC):
    """A change of the gradients that asks the neighbours about theirs."""

    @abstractmethod
    def init(self, x_AD: Tensor, hood: Neighbourhood, averaging: AveragingRule) -> Any:
        """What it keeps, before the first step."""

    @abstractmethod
    def apply(
        self, state: Any, g_AD: Tensor, hood: Neighbourhood, averaging: AveragingRule
    ) -> tuple[Tensor, Any]:
        """The gradients to step along."""


class Weighed(NamedTuple):
    """What a de-biasing gives to be averaged in place of the models."""

    n_AD: Tensor
    by_I1: Tensor | None
    """By which numbers the neighbours' values are to be divided to give their models."""
    state: Any


class Debias(Part, ABC):
    """Undoes the bias of an averaging whose weights do not sum to 1 at every agent."""

    needs: ClassVar[Property]

    @abstractmethod
    def init(self, x_AD: Tensor) -> Any:
        """What it keeps, before the first step."""

    @abstractmethod
    def weigh(
        self, state: Any, x_AD: Tensor, hood: Neighbourhood, rate: float, edges: bool
    ) -> Weighed:
        """What is averaged in place of the models, at this rate; with `edges` also what tells the
        neighbours' models."""

    @abstractmethod
    def unweigh(self, state: Any, n_AD: Tensor) -> Tensor:
        """The models again."""

    @abstractmethod
    def local(self, state: Any, x_AD: Tensor, d_AD: Tensor) -> Tensor:
        """The models after a step that nobody is told about."""
