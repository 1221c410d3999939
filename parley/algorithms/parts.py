"""The parts that recipes are made of: what each kind does, and the plainest of each kind.

A part is frozen and has its hyper-parameters as fields. What it keeps from step to step is a
NamedTuple of tensors created by `init`; every method takes that state and returns the next one
along with its result. The other parts are in the files of the algorithms they come from. Axes: A
agents hosted here, I their incoming edges, D flat parameters.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
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
from parley.validation import Checked
from parley.wire import codec as codecs
from parley.wire.codec import Codec


class Nothing(NamedTuple):
    """The state of a part that keeps nothing."""


class Part(Checked):
    """A rule that recipes are made of."""

    model_config = CONFIG

    word: ClassVar[str] = ""
    """Its word in the name of a recipe; empty for parts that names leave out."""
    title: ClassVar[str] = ""
    alone: ClassVar[bool] = True
    """Whether its word names an algorithm by itself; otherwise ``dpsgd`` stands before it."""


# --- gradients --------------------------------------------------------------------------------


class Found(NamedTuple):
    """The result of a gradient rule."""

    g_AD: Tensor
    loss_A: Tensor
    state: Any


class GradientRule(Part, ABC):
    """Which gradient an agent steps along."""

    looks_around: ClassVar[bool] = False
    """Whether it needs the neighbours' models."""
    needs: ClassVar[Property] = "doubly-stochastic"
    """The property that the mixing weights must have."""

    @property
    def suffix(self) -> str:
        """What it adds to the label of a recipe."""
        return ""

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> Any:
        """Its state before the first step."""
        return Nothing()

    @abstractmethod
    def apply(
        self, state: Any, at_AD: Tensor, x_I: OnEdges | None, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """The gradients, with self-gradients at `at_AD`; `x_I` are the neighbours' models, for
        rules that need them."""


class Own(GradientRule):
    """The gradient of the agent's own model on its own data."""

    def apply(
        self, state: Any, at_AD: Tensor, x_I: OnEdges | None, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """g^ii."""
        return Found(*hood.gradient(at_AD, batch), state)


# --- updates ----------------------------------------------------------------------------------


class UpdateRule(Part, ABC):
    """The step that follows from a gradient."""

    scale_free: ClassVar[bool] = False
    """Whether its steps stay the same if all gradients are multiplied by a number."""
    learns_from_averages: ClassVar[bool] = False
    """Whether `settle` reads anything off the averaged models, after each round of local steps."""

    @abstractmethod
    def init(self, x_AD: Tensor) -> Any:
        """Its state before the first step."""

    @abstractmethod
    def apply(self, state: Any, g_AD: Tensor, at_AD: Tensor, lr: float) -> tuple[Tensor, Any]:
        """What to add to the models; `at_AD` is where the gradient was taken."""

    def step(
        self, state: Any, g_AD: Tensor, at_AD: Tensor, lr: float, hood: Neighbourhood
    ) -> tuple[Tensor, Any]:
        """`apply`, and whatever needs to know about the model beside its numbers."""
        return self.apply(state, g_AD, at_AD, lr)

    def settle(self, state: Any, old_AD: Tensor, new_AD: Tensor, lr: float | Tensor) -> Any:
        """Updates its state once all is averaged, from how the models have moved since the last
        averaging; `lr` is the learning rate, or with local steps the sum of them, [A, 1]."""
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
        decayed_AD = at_AD if self.decay_on == "all" else at_AD * hood.weights_D
        if not self.decoupled:
            return self.apply(state, g_AD + self.weight_decay * decayed_AD, at_AD, lr)
        d_AD, state = self.apply(state, g_AD, at_AD, lr)
        return d_AD - lr * self.weight_decay * decayed_AD, state


class Velocity(NamedTuple):
    """The state of momentum."""

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
    """What is averaged: how its bytes are counted, and which random numbers codecs draw."""

    kind: Kind
    stream: int


MODELS = Channel("models", 0)
TRACKED = Channel("cross_gradients", 1)


class Sent(NamedTuple):
    """Values on their way to the neighbours, and what the neighbours have sent."""

    own_AD: Tensor
    """The hosted agents' values as their receivers decode them."""
    heard_I: Mail | None
    """What the neighbours have sent, if they send before the averaging."""
    known_I: Mail | None
    """The neighbours' values, if they are known exactly."""


class AveragingRule(Part, ABC):
    """How values are averaged with the neighbours'."""

    static: ClassVar[bool] = False
    """Whether the graph must not change."""
    tells_values: ClassVar[bool] = True
    """Whether neighbours get to know the values, or only parts of them."""
    keeps_sums: ClassVar[bool] = True
    """Whether the sum of all agents' values is preserved."""
    gamma: Rate = 1.0

    @property
    def gossip_rate(self) -> float:
        """The averaging rate of the extra gossip rounds in evaluation. Models are sent in full
        there, so a γ that is small because of a codec would be too small."""
        return 1.0

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool, edges: bool) -> Any:
        """Its state before the first step.

        `apart`: the values differ from agent to agent. `edges`: each neighbour's values, as far as
        known, will be needed.
        """
        return Nothing()

    @abstractmethod
    def send(
        self, state: Any, x_AD: Tensor, hood: Neighbourhood, channel: Channel
    ) -> tuple[Sent, Any]:
        """Sends what has to be sent before values can be averaged; waits for nothing that is not
        needed yet."""

    @abstractmethod
    def mix(self, state: Any, x_AD: Tensor, sent: Sent, hood: Neighbourhood) -> tuple[Tensor, Any]:
        """The values averaged with the neighbours'; waits for those."""

    def mix_and_move(
        self, state: Any, x_AD: Tensor, d_AD: Tensor, sent: Sent, hood: Neighbourhood
    ) -> tuple[Tensor, Any]:
        """The values averaged with the neighbours', plus `d_AD`."""
        mixed_AD, state = self.mix(state, x_AD, sent, hood)
        return mixed_AD + d_AD, state

    def share(self, state: Any, x_AD: Tensor, hood: Neighbourhood, channel: Channel) -> Any:
        """Sends final values to the neighbours, for their next averaging."""
        return state


class Gossip(AveragingRule):
    """Averages with the neighbours' values, x + γ Σ_j (w_ij - I_ij) C(x^j)."""

    word = "gossip"
    title = "Gossip"

    codec: CodecSpec = "dense"
    """C, how values are encoded."""

    @property
    def gossip_rate(self) -> float:
        """As in training."""
        return self.gamma

    def send(
        self, state: Nothing, x_AD: Tensor, hood: Neighbourhood, channel: Channel
    ) -> tuple[Sent, Nothing]:
        """Sends all values; an agent uses what it sent in place of its own value too."""
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

    def mix_and_move(
        self, state: Nothing, x_AD: Tensor, d_AD: Tensor, sent: Sent, hood: Neighbourhood
    ) -> tuple[Tensor, Nothing]:
        """The same in one pass over memory, where values are sent as they are."""
        q_AD, q_I, _ = sent
        if q_AD is not x_AD or type(self).mix is not Gossip.mix:  # or a part averages differently
            return super().mix_and_move(state, x_AD, d_AD, sent, hood)
        assert q_I is not None
        return hood.gossip(q_AD, q_I, self.gamma, d_AD), state


@lru_cache
def _codec(spec: str, sizes: tuple[int, ...]) -> Codec:
    return codecs.build(spec, sizes)


def publish(x_AD: Tensor, hood: Neighbourhood, spec: str, channel: Channel) -> tuple[Tensor, Mail]:
    """Sends encoded values: returns them as receivers decode them, and what arrives."""
    return hood.publish(x_AD, _codec(spec, tuple(hood.sizes)), channel.kind, channel.stream)


# --- optional parts ---------------------------------------------------------------------------


class ClippingRule(Part, ABC):
    """A bound on the gradients, after their correction and before the update."""

    @abstractmethod
    def apply(self, g_AD: Tensor) -> Tensor:
        """The gradients within the bound."""


class Correction(Part, ABC):
    """A correction of the gradients that uses the neighbours'."""

    @abstractmethod
    def init(self, x_AD: Tensor, hood: Neighbourhood, averaging: AveragingRule) -> Any:
        """Its state before the first step."""

    @abstractmethod
    def apply(
        self, state: Any, g_AD: Tensor, hood: Neighbourhood, averaging: AveragingRule
    ) -> tuple[Tensor, Any]:
        """The gradients to step along."""


class Weighed(NamedTuple):
    """What is averaged in place of the models when de-biasing."""

    n_AD: Tensor
    by_I1: Tensor | None
    """The numbers by which to divide the neighbours' values to get their models."""
    state: Any


class Debias(Part, ABC):
    """Undoes the bias of an averaging whose weights do not sum to 1 at every agent."""

    needs: ClassVar[Property]

    @abstractmethod
    def init(self, x_AD: Tensor) -> Any:
        """Its state before the first step."""

    @abstractmethod
    def weigh(
        self, state: Any, x_AD: Tensor, hood: Neighbourhood, rate: float, edges: bool
    ) -> Weighed:
        """What is averaged in place of the models, at this rate; with `edges` also what is needed
        to recover the neighbours' models."""

    @abstractmethod
    def unweigh(self, state: Any, n_AD: Tensor) -> Tensor:
        """The models again."""

    @abstractmethod
    def local(self, state: Any, x_AD: Tensor, d_AD: Tensor) -> Tensor:
        """The models after a step that nobody is told about."""
