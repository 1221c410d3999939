"""The parts that algorithms are made of: what each kind does, and the plainest of each kind.

A part is frozen and has its hyper-parameters as fields. What it keeps from step to step is a
NamedTuple of tensors created by `init`; every method takes that state and returns the next one
along with its result. The other parts are in the files of the algorithms they come from. Axes: A
agents hosted here, I their incoming edges, D flat parameters.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic.fields import FieldInfo
from torch import Tensor

from parley.algorithms.base import (
    CodecSpec,
    DecayOn,
    Decoupled,
    Momentum,
    Nesterov,
    Options,
    Rate,
    WeightDecay,
    descend,
)
from parley.data import Batch
from parley.graphs import Property
from parley.neighbourhood import Kind, Mail, Neighbourhood, OnEdges
from parley.wire import codec as codecs
from parley.wire.codec import Codec


class Part(Options):
    """A rule that algorithms are made of."""

    slot: ClassVar[str]
    """The kind of part: its place among `parley.algorithms.recipe.Parts`."""
    word: ClassVar[str] = ""
    """Its word in the name of a combination; empty for parts that names leave out."""
    title: ClassVar[str] = ""
    alone: ClassVar[bool] = True
    """Whether its word names an algorithm by itself; otherwise ``dpsgd`` stands before it."""
    needs: ClassVar[Property | None] = None
    """The property that the mixing weights must have, if it is not being doubly stochastic."""
    static: ClassVar[bool] = False
    """Whether the graph must not change."""

    @classmethod
    def options(cls) -> dict[str, FieldInfo]:
        """Its hyper-parameters by name."""
        return cls.model_fields


# --- gradients --------------------------------------------------------------------------------


class Found(NamedTuple):
    """The result of a gradient rule."""

    g_AD: Tensor
    loss_A: Tensor
    state: Any


class GradientRule(Part, ABC):
    """Which gradient an agent steps along."""

    slot = "gradient"

    @property
    def suffix(self) -> str:
        """What it adds to the label of an algorithm."""
        return ""

    def init(self, x_AD: Tensor, hood: Neighbourhood) -> Any:
        """Its state before the first step."""
        return ()


class OwnGradientRule(GradientRule, ABC):
    """A rule for which an agent needs nothing but its own model and data."""

    @abstractmethod
    def apply(self, state: Any, at_AD: Tensor, hood: Neighbourhood, batch: Batch) -> Found:
        """The gradients at `at_AD`."""


class CrossGradientRule(GradientRule, ABC):
    """A rule for which an agent needs its neighbours' models."""

    @abstractmethod
    def apply(
        self, state: Any, at_AD: Tensor, x_I: OnEdges, hood: Neighbourhood, batch: Batch
    ) -> Found:
        """The gradients, with self-gradients at `at_AD`; `x_I` are the neighbours' models."""


class Own(OwnGradientRule):
    """The gradient of the agent's own model on its own data."""

    def apply(self, state: Any, at_AD: Tensor, hood: Neighbourhood, batch: Batch) -> Found:
        """g^ii."""
        return Found(*hood.gradient(at_AD, batch), state)


# --- updates ----------------------------------------------------------------------------------


class UpdateRule(Part, ABC):
    """The step that follows from a gradient."""

    slot = "update"
    scale_free: ClassVar[bool] = False
    """Whether its steps stay the same if all gradients are multiplied by a number."""

    @abstractmethod
    def init(self, x_AD: Tensor) -> Any:
        """Its state before the first step."""

    @abstractmethod
    def apply(self, state: Any, g_AD: Tensor, at_AD: Tensor, lr: float) -> tuple[Tensor, Any]:
        """What to add to the models; `at_AD` is where the gradient was taken."""

    def step(
        self, state: Any, g_AD: Tensor, at_AD: Tensor, lr: float, hood: Neighbourhood
    ) -> tuple[Tensor, Any]:
        """`apply`, and all that depends on the model beside its numbers."""
        return self.apply(state, g_AD, at_AD, lr)


class FollowingRule(UpdateRule, ABC):
    """An update rule that follows how averaging moves the models."""

    @abstractmethod
    def settle(self, state: Any, old_AD: Tensor, new_AD: Tensor, lr: float | Tensor) -> Any:
        """Updates its state once all is averaged, from how the models have moved since the last
        averaging; `lr` is the learning rate, or with local steps the sum of them, [A, 1]."""


class DecayOptions(Options):
    """How weights decay."""

    weight_decay: WeightDecay = 0.0
    decoupled: Decoupled = False
    decay_on: DecayOn = "all"


class DecayingRule(DecayOptions, UpdateRule, ABC):
    """An update rule under which weights decay."""

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


class SGDOptions(DecayOptions):
    """The hyper-parameters of SGD: of the part, and of the algorithms that contain it."""

    momentum: Momentum = 0.0
    nesterov: Nesterov = False


class SGD(SGDOptions, DecayingRule):
    """Stochastic gradient descent with heavy-ball or Nesterov momentum."""

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
    """Values on their way to the neighbours, and the neighbours' own."""

    own_AD: Tensor
    """The hosted agents' values as their receivers decode them."""
    heard_I: Mail | None
    """The neighbours' values, if they are sent before the averaging."""


@lru_cache
def _codec(spec: str, sizes: tuple[int, ...]) -> Codec:
    return codecs.build(spec, sizes)


def publish(x_AD: Tensor, hood: Neighbourhood, spec: str, channel: Channel) -> tuple[Tensor, Mail]:
    """Sends encoded values: returns them as receivers decode them, and what arrives."""
    return hood.publish(x_AD, _codec(spec, tuple(hood.sizes)), channel.kind, channel.stream)


class AveragingRule(Part, ABC):
    """How values are averaged with the neighbours'."""

    slot = "averaging"
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
        return ()

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


class TellingRule(AveragingRule, ABC):
    """An averaging rule by which agents get to know their neighbours' values, and not only parts of
    them: gradients can be taken there."""

    @abstractmethod
    def known(self, state: Any, sent: Sent, hood: Neighbourhood) -> OnEdges:
        """The neighbours' values, as they are known once `send` has been called."""


class ConservingRule(AveragingRule, ABC):
    """An averaging rule that preserves the sum of all agents' values, as push-sum requires."""


class GossipOptions(Options):
    """The hyper-parameters of gossip: of the part, and of the algorithms that contain it."""

    gamma: Rate = 1.0
    codec: CodecSpec = "dense"
    """C, how values are encoded."""


class ExchangeRule(GossipOptions, TellingRule, ABC):
    """An averaging rule for which all values are sent; `combine` says what is made of them."""

    @property
    def gossip_rate(self) -> float:
        """As in training."""
        return self.gamma

    def send(
        self, state: Any, x_AD: Tensor, hood: Neighbourhood, channel: Channel
    ) -> tuple[Sent, Any]:
        """Sends all values; an agent uses what it sent in place of its own value too."""
        return Sent(*publish(x_AD, hood, self.codec, channel)), state

    def known(self, state: Any, sent: Sent, hood: Neighbourhood) -> OnEdges:
        """What they have sent."""
        return heard(sent)

    @abstractmethod
    def combine(self, x_AD: Tensor, x_I: OnEdges, hood: Neighbourhood) -> Tensor:
        """Each agent's value combined with its neighbours'."""

    def mix(self, state: Any, x_AD: Tensor, sent: Sent, hood: Neighbourhood) -> tuple[Tensor, Any]:
        """The combined values, with the agent's own rounding added back."""
        mixed_AD = self.combine(sent.own_AD, heard(sent), hood)
        return (mixed_AD if sent.own_AD is x_AD else mixed_AD + (x_AD - sent.own_AD)), state


class Gossip(ExchangeRule, ConservingRule):
    """Averages with the neighbours' values, x + γ Σ_j (w_ij - I_ij) C(x^j)."""

    word = "gossip"
    title = "Gossip"

    def combine(self, x_AD: Tensor, x_I: OnEdges, hood: Neighbourhood) -> Tensor:
        """One gossip step."""
        return hood.gossip(x_AD, x_I, self.gamma)

    def mix_and_move(
        self, state: Any, x_AD: Tensor, d_AD: Tensor, sent: Sent, hood: Neighbourhood
    ) -> tuple[Tensor, Any]:
        """The same in one pass over memory, where values are sent as they are."""
        if sent.own_AD is not x_AD:
            return super().mix_and_move(state, x_AD, d_AD, sent, hood)
        return hood.gossip(x_AD, heard(sent), self.gamma, d_AD), state


def heard(sent: Sent) -> Mail:
    """What the neighbours have sent, where they send before the averaging."""
    assert sent.heard_I is not None
    return sent.heard_I


# --- optional parts ---------------------------------------------------------------------------


class ClippingRule(Part, ABC):
    """A bound on the gradients, after their correction and before the update."""

    slot = "clipping"

    @abstractmethod
    def apply(self, g_AD: Tensor) -> Tensor:
        """The gradients within the bound."""


class Correction(Part, ABC):
    """A correction of the gradients that uses the neighbours'."""

    slot = "correction"

    @abstractmethod
    def init(self, x_AD: Tensor, hood: Neighbourhood, averaging: AveragingRule) -> Any:
        """Its state before the first step."""

    @abstractmethod
    def apply(
        self, state: Any, g_AD: Tensor, hood: Neighbourhood, averaging: AveragingRule
    ) -> tuple[Tensor, Any]:
        """The gradients to step along."""


class Weighted(NamedTuple):
    """Values that are averaged in place of the models when de-biasing."""

    n_AD: Tensor
    by_I1: Tensor | None
    """The numbers by which to divide the neighbours' values to get their models."""
    state: Any


class Debias(Part):
    """Undoes the bias of an averaging whose weights do not sum to 1 at every agent. This one is for
    weights that do: there is nothing to undo."""

    slot = "debias"

    def init(self, x_AD: Tensor) -> Any:
        """Its state before the first step."""
        return ()

    def weigh(
        self, state: Any, x_AD: Tensor, hood: Neighbourhood, rate: float, edges: bool
    ) -> Weighted:
        """The values to average in place of the models, at this rate; with `edges` also the numbers
        that recover the neighbours' models."""
        return Weighted(x_AD, None, state)

    def unweigh(self, state: Any, n_AD: Tensor) -> Tensor:
        """The models again."""
        return n_AD

    def local(self, state: Any, x_AD: Tensor, d_AD: Tensor) -> Tensor:
        """The models after a step between two averagings."""
        return x_AD + d_AD
