"""What an algorithm is, and what the paper's five methods have in common.

Axes: A agents hosted here, D flat parameters.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from parley.data import Batch
from parley.errors import BadValue
from parley.graphs import Property, Topology
from parley.neighbourhood.verbs import Flow, Neighbourhood

AS_RUN: dict[str, Any] = {
    "gradient_at": "mixed",
    "nesterov": True,
    "qp_floor": 0.5,
    "qp_scale": "neighbourhood",
    "scope": "tensor",
}
"""The choices of the NGC authors' public code where it differs from the printed paper.

The printed paper's choices are the fields' defaults."""


CONFIG = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Algorithm(BaseModel, ABC):
    """A decentralized optimizer: hyper-parameters as fields, `init` and `step` on explicit state.

    A state is a NamedTuple of tensors whose first field is ``x_AD``, the hosted agents' models.
    Field names end in their axes (A, I or O, then D): checkpoints rely on it.
    """

    model_config = CONFIG

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[Property] = "doubly-stochastic"
    """What the mixing weights must be."""
    static: ClassVar[bool] = False
    """Whether the graph must not change: sums over neighbours are kept from step to step."""

    @classmethod
    def as_run(cls, **options: Any) -> Self:
        """With the choices of the NGC authors' public code, then `options`."""
        return cls(**(cls.choices_as_run() | options))

    @classmethod
    def choices_as_run(cls) -> dict[str, Any]:
        """Those of `AS_RUN` that the algorithm has; all of them or, as here, a refusal."""
        because = f"the NGC authors' choices do not all have a place in {cls.name}"
        valid = "as-printed; as-run only for dpsgd, dmsgd, ngc, compngc, cga, compcga, gut"
        raise BadValue("variant", "as-run", valid, because)

    @property
    def label(self) -> str:
        """A short name for tables and plots."""
        return self.title

    @property
    def gossip_rate(self) -> float:
        """The rate of the further gossip rounds after which models are also tested."""
        return float(getattr(self, "gamma", 1.0))

    def check(self, topology: Topology) -> None:
        """Refuses a graph whose weights, or whose changes, the algorithm cannot work with."""
        if self.static and topology.phases:
            because = f"it changes, and {self.name} keeps sums over neighbours from step to step"
            raise BadValue("topology", topology.name, "a graph that does not change", because)
        topology.require(self.needs, self.name)

    @abstractmethod
    def init(self, x_AD: Tensor, hood: Neighbourhood) -> Any:
        """The state before the first step."""

    @abstractmethod
    def step(self, state: Any, hood: Neighbourhood, batch: Batch, lr: float) -> Any:
        """The state after one more step at learning rate `lr`."""


Memory = dict[str, Tensor]
"""What a part keeps from step to step, by name; names end in their axes, as a state's do."""


class Part(BaseModel):
    """A rule of which algorithms are put together, with its hyper-parameters as fields.

    What it keeps from step to step is made by a method ``start(x_AD, hood)``, if there is one. That
    of each class is called, its parents' too: it makes only what the class itself adds.
    """

    model_config = CONFIG


class Momentum(Part):
    """Heavy-ball or Nesterov momentum, the update rule of the paper's five methods."""

    momentum: float = Field(0.0, ge=0, lt=1)
    """β, the momentum coefficient."""
    nesterov: bool = False
    """False, as printed: v = βv - ηg, the step is v. True, as run: v = βv + g, the step is
    -η(g + βv). They also differ when the learning rate changes: only the first carries the old
    rate along in v."""
    weight_decay: float = Field(0.0, ge=0)
    """λ: adds λx to the final gradient, at the point where that gradient is taken."""

    def descend(
        self, g_AD: Tensor, at_AD: Tensor, v_AD: Tensor, lr: float
    ) -> tuple[Tensor, Tensor]:
        """The step to add to the models, and the new momentum."""
        if self.weight_decay:
            g_AD = g_AD + self.weight_decay * at_AD
        if self.nesterov:
            v_AD = torch.add(g_AD, v_AD, alpha=self.momentum)
            return torch.add(g_AD, v_AD, alpha=self.momentum).mul_(-lr), v_AD
        v_AD = (self.momentum * v_AD).sub_(g_AD, alpha=lr)
        return v_AD, v_AD


class MomentumSGD(Momentum, Algorithm):
    """What the paper's five methods share: averaging rate, momentum, weight decay."""

    gamma: float = Field(1.0, gt=0, le=1)
    """γ, the averaging rate: how far a gossip step goes towards the neighbourhood's mean."""
    gradient_at: Literal["own", "mixed"] = "own"
    """Where the self-gradient is taken: at the own model as printed, or as run at the model
    already mixed with the neighbours'."""

    @classmethod
    def choices_as_run(cls) -> dict[str, Any]:
        """Those of `AS_RUN` that the algorithm has."""
        return {name: value for name, value in AS_RUN.items() if name in cls.model_fields}

    def mixed(self, x_AD: Tensor, x_I: Flow, hood: Neighbourhood) -> Tensor:
        """The models after a gossip step. Waits for the neighbours': where the self-gradient does
        not need them, it is computed before, while they are under way."""
        return hood.gossip(x_AD, x_I, self.gamma)
