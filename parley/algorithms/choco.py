"""CHOCO-SGD: gossip of compressed differences.

Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with
compressed communication", ICML 2019; in the order of Koloskova et al., "Decentralized deep learning
with arbitrary communication compression", ICLR 2020.

    x⁺ = x + d + γ (Σ_j w_ij x̂^j - x̂^i);   x̂⁺ = x̂ + C(x⁺ - x̂)

x̂^i is what the neighbours know of agent i's model: every agent that hears C(x⁺ - x̂) adds it up. An
agent keeps its own x̂ and one weighted sum over the neighbourhood. x̂ starts at the model that all
agents start from; agents that start apart send theirs once in full, where the papers start from
zero. C `codec`, η `lr` in d, γ `gamma`. Axes: A agents hosted here, I their incoming edges, D flat
parameters.
"""

from typing import NamedTuple

from pydantic import Field
from torch import Tensor

from parley.algorithms.base import CodecSpec, LocalSteps, Options
from parley.algorithms.parts import Channel, ConservingRule, Sent, SGDOptions, TellingRule, publish
from parley.algorithms.recipe import Combination
from parley.neighbourhood import Mail, Neighbourhood, OnEdges


class Copies(NamedTuple):
    """What neighbours know of the hosted agents' values, and what these know of theirs."""

    known_AD: Tensor
    """x̂^i."""
    heard_AD: Tensor
    """Σ_j w_ij x̂^j."""
    known_ID: Tensor | None
    """Each neighbour's x̂^j, if the gradient rule needs it."""


class CompressedOptions(Options):
    """The hyper-parameters of rules that send compressed values."""

    gamma: float = Field(0.2, gt=0, le=1)
    """γ, the averaging rate; smaller for coarser codecs."""
    codec: CodecSpec = "sign"
    """C, how they are encoded."""


class DifferenceGossip(CompressedOptions, TellingRule, ConservingRule):
    """CHOCO's averaging rule."""

    word = "choco"
    title = "CHOCO"
    static = True

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool, edges: bool) -> Copies:
        """All values are known."""
        return all_known(x_AD, hood, apart, edges)

    def send(
        self, state: Copies, x_AD: Tensor, hood: Neighbourhood, channel: Channel
    ) -> tuple[Sent, Copies]:
        """Sends nothing: what is averaged was sent at the end of the last step."""
        return Sent(x_AD, None), state

    def known(self, state: Copies, sent: Sent, hood: Neighbourhood) -> OnEdges:
        """x̂^j."""
        return copies_of(state, hood)

    def mix(
        self, state: Copies, x_AD: Tensor, sent: Sent, hood: Neighbourhood
    ) -> tuple[Tensor, Copies]:
        """x + γ (Σ_j w_ij x̂^j - x̂^i)."""
        return x_AD + self.gamma * (state.heard_AD - state.known_AD), state

    def share(self, state: Copies, x_AD: Tensor, hood: Neighbourhood, channel: Channel) -> Copies:
        """x̂⁺ = x̂ + C(x⁺ - x̂), here and at the neighbours."""
        return told(state, x_AD, hood, self.codec, channel)


def all_known(x_AD: Tensor, hood: Neighbourhood, apart: bool, edges: bool) -> Copies:
    """All agents know their neighbours' values: without messages if they are equal."""
    x_I = hood.exchange(x_AD) if apart else None
    heard_AD = hood.weight_sum_A * x_AD if x_I is None else hood.average(x_AD, x_I)
    if not edges:
        return Copies(x_AD, heard_AD, None)
    return Copies(x_AD, heard_AD, x_AD[hood.receiver_I] if x_I is None else hood.collect(x_I))


def copies_of(copies: Copies, hood: Neighbourhood) -> Mail:
    """The neighbours' values as they are known without sending anything."""
    assert copies.known_ID is not None
    return hood.stored(copies.known_ID)


def told(copies: Copies, x_AD: Tensor, hood: Neighbourhood, codec: str, channel: Channel) -> Copies:
    """The copies after every agent has sent C(x - x̂) and added up what it received."""
    known_AD, heard_AD, known_ID = copies
    q_AD, q_I = publish(x_AD - known_AD, hood, codec, channel)
    if known_ID is not None:
        known_ID = known_ID + hood.collect(q_I)
    return Copies(known_AD + q_AD, heard_AD + hood.average(q_AD, q_I), known_ID)


class CHOCO(CompressedOptions, SGDOptions, Combination):
    """Steps on the agent's own data, then averages with what it knows of the neighbours' models.

    It sends compressed differences, so that the compression error dies out as the models settle.
    """

    name = "choco"
    title = "CHOCO-SGD"
    made_of = (DifferenceGossip,)

    local_steps: LocalSteps = 1
