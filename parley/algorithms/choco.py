"""CHOCO-SGD: gossip of compressed differences.

Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with
compressed communication", ICML 2019; in the order of Koloskova et al., "Decentralized deep learning
with arbitrary communication compression", ICLR 2020.

    x⁺ = x + d + γ (Σ_j w_ij x̂^j - x̂^i);   x̂⁺ = x̂ + C(x⁺ - x̂)

x̂^i is what the neighbours know of agent i's model: everyone who hears C(x⁺ - x̂) adds it up. An
agent keeps its own x̂ and one weighted sum over the neighbourhood. x̂ starts at the model that all
agents start from; agents that start apart send theirs once in full, where the papers start from
zero. C `codec`, η `lr` in d, γ `gamma`. Axes: A agents hosted here, I their incoming edges, D flat
parameters.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from parley.algorithms.base import Memory, Part
from parley.algorithms.composed import SGD, CodecSpec, Composed, Own, Slot, publish
from parley.neighbourhood.verbs import Flow, Neighbourhood


class DifferenceGossip(Part):
    """CHOCO's averaging rule."""

    static: ClassVar[bool] = True
    gamma: float = Field(0.2, gt=0, le=1)
    """γ, the averaging rate; the coarser the codec, the smaller it has to be."""
    codec: CodecSpec = "sign"
    """C, how differences are written on the wire."""

    @property
    def gossip_rate(self) -> float:
        """Models are tested after gossip in full, for which γ need not be small."""
        return 1.0

    def start(self, x_AD: Tensor, hood: Neighbourhood) -> Memory:
        """All models are known, tracked gradients are zero."""
        zeros_AD = torch.zeros_like(x_AD)
        x_I = hood.exchange(x_AD) if hood.apart else None
        heard_AD = hood.weight_sum_A * x_AD if x_I is None else hood.average(x_AD, x_I)
        memory = {"x_known_AD": x_AD, "x_heard_AD": heard_AD}
        if "y" in self.slots:  # type: ignore[attr-defined]
            memory |= {"y_known_AD": zeros_AD, "y_heard_AD": zeros_AD}
        if self.looks_around:  # type: ignore[attr-defined]
            known_ID = x_AD[hood.receiver_I] if x_I is None else torch.cat([x_AD[:0], *x_I])
            memory["x_known_ID"] = known_ID
        return memory

    def average(
        self, x_AD: Tensor, hood: Neighbourhood, memory: Memory, slot: Slot
    ) -> tuple[Tensor, Flow | None]:
        """x + γ (Σ_j w_ij x̂^j - x̂^i)."""
        r_AD = memory[f"{slot}_heard_AD"] - memory[f"{slot}_known_AD"]
        return x_AD + self.gamma * r_AD, self._known(hood, memory, slot)

    def share(self, x_AD: Tensor, hood: Neighbourhood, memory: Memory, slot: Slot) -> None:
        """x̂⁺ = x̂ + C(x⁺ - x̂), here and at the neighbours."""
        known, heard = f"{slot}_known_AD", f"{slot}_heard_AD"
        q_AD, q_I = publish(x_AD - memory[known], hood, self.codec, slot)
        memory[known] = memory[known] + q_AD
        memory[heard] = memory[heard] + hood.average(q_AD, q_I)
        if slot == "x" and "x_known_ID" in memory:
            memory["x_known_ID"] = memory["x_known_ID"] + torch.cat([q_AD[:0], *q_I])

    def _known(self, hood: Neighbourhood, memory: Memory, slot: Slot) -> Flow | None:
        edges = memory.get(f"{slot}_known_ID")
        return None if edges is None else hood.stored(edges)


class CHOCO(DifferenceGossip, SGD, Own, Composed):
    """Step on the own data, then average with what is known of the neighbours' models.

    What is sent is a compressed difference, so that the error of the compression dies out as the
    models settle.
    """

    name = "choco"
    title = "CHOCO-SGD"
