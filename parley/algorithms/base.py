"""What an algorithm is, and the options that several share.

Axes: A agents hosted here, D flat parameters.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from torch import Tensor

from parley.data import Batch
from parley.errors import BadValue
from parley.graphs import Property, Topology
from parley.neighbourhood import Neighbourhood
from parley.validation import Checked
from parley.wire import codec as codecs

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


class Options(Checked):
    """Hyper-parameters as fields: of a part, and of the algorithms that contain it."""

    model_config = CONFIG


class Stepped(NamedTuple):
    """The result of a step."""

    state: Any
    """The state for the next step."""
    loss_A: Tensor
    """Loss of each hosted agent's model on its own batch, where the step took its gradient."""
    active_A: Tensor | None = None
    """Which agents took the step, if some rest; only their losses count."""


class Algorithm(Options, ABC):
    """A decentralized optimizer: hyper-parameters as fields, `init` and `step` on explicit state.

    A state is a NamedTuple of tensors, or of such NamedTuples, whose first field is ``x_AD``, the
    hosted agents' models. Names of tensors end in their axes (A, I or O, then D): checkpoints rely
    on it.
    """

    @model_validator(mode="before")
    @classmethod
    def _options_exist(cls, given: Any) -> Any:
        for name, value in given.items() if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                raise cls._no_option(name, value)
        return given

    @classmethod
    def _no_option(cls, name: str, value: Any) -> BadValue:
        from parley.algorithms import WITH_OPTIONS  # the table, which imports this file

        having = [known for known, kind in WITH_OPTIONS.items() if name in kind.options()]
        if name == "local_steps" and cls.no_local_steps:
            valid = f"an algorithm that can take local steps: {', '.join(having)}"
            return BadValue(name, value, valid, cls.no_local_steps)
        few = ", ".join([*having[:5], "…"] if len(having) > 6 else having)
        because = f"{cls.name} has no such option{few and f'; it belongs to {few}'}"
        return BadValue(name, value, ", ".join(cls.model_fields), because)

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[Property] = "doubly-stochastic"
    """The property that the mixing weights must have."""
    static: ClassVar[bool] = False
    """Whether the graph must not change: sums over neighbours are kept from step to step."""
    needs_accuracy: ClassVar[bool] = False
    """Whether it compares accuracies, which not every task has."""
    gradients_per_edge: ClassVar[int] = 0
    """How many gradients a step computes at each neighbour's model."""
    no_local_steps: ClassVar[str] = ""
    """Why it cannot take several steps from one averaging to the next, if it has no such option."""

    @classmethod
    def options(cls) -> dict[str, FieldInfo]:
        """The hyper-parameters by name: what flags, TOML keys and help are made from."""
        return cls.model_fields

    @classmethod
    def about(cls) -> str:
        """The idea, in a few sentences."""
        return inspect.getdoc(cls) or ""

    @classmethod
    def as_run(cls, **options: Any) -> Self:
        """With the choices of the NGC authors' public code, then `options`."""
        return cls(**(cls.choices_as_run() | options))

    @classmethod
    def choices_as_run(cls) -> dict[str, Any]:
        """The choices of `AS_RUN` that apply; refused unless all of them can be set."""
        if "gradient_at" not in cls.model_fields:
            because = f"not all of the NGC authors' choices apply to {cls.name}"
            valid = "as-printed; as-run only for dpsgd, dmsgd, ngc, compngc, cga, compcga, gut"
            raise BadValue("variant", "as-run", valid, because)
        return {option: value for option, value in AS_RUN.items() if option in cls.model_fields}

    @property
    def kind(self) -> "type[Algorithm]":
        """Its class."""
        return type(self)

    def settings(self, given: bool = False) -> dict[str, Any]:
        """The values of the hyper-parameters: all, or only those that were given."""
        return self.model_dump(exclude_unset=given)

    @property
    def label(self) -> str:
        """A short name for tables and plots."""
        return self.title

    @property
    def gossip_rate(self) -> float:
        """The averaging rate of the extra gossip rounds in evaluation."""
        return float(getattr(self, "gamma", 1.0))

    @property
    def momentum_label(self) -> str:
        """Its momentum, for tables of methods that are compared."""
        found = self.settings()
        if "beta1" in found:
            outer = f", outer {found['outer_momentum']:g}" if "outer_momentum" in found else ""
            return f"β₁ {found['beta1']:g}, β₂ {found['beta2']:g}{outer}"
        if not found.get("momentum"):
            return "none"
        return f"{found['momentum']:g}" + ", Nesterov" * bool(found.get("nesterov"))

    @property
    def is_scale_free(self) -> bool:
        """Whether steps stay the same if all gradients of an agent are multiplied by a number."""
        return False

    @property
    def round_steps(self) -> int:
        """Steps after which models are as averaged as they get; records are taken only then."""
        return 1

    def averages(self, seed: int, step: int) -> bool:
        """Whether agents average after a step, counted from 0."""
        return (step + 1) % self.round_steps == 0

    def rounds_before(self, step: int) -> int:
        """How many rounds of local steps end before a step. If graphs take turns, each round has
        the next one: turns by steps could leave some graphs out of all averagings."""
        return step // self.round_steps

    @property
    def fixed_rate(self) -> str:
        """Why its averaging rate cannot change from step to step, if it cannot."""
        if self.static:
            return f"{self.name} needs the same weights in all steps"
        return "" if "gamma" in type(self).model_fields else f"{self.name} has no gamma"

    def with_rate(self, factor: float) -> "Algorithm":
        """The same at another averaging rate, γ times `factor`."""
        return self.model_copy(update={"gamma": self.gossip_rate * factor})

    def highest_rate(self, topology: Topology) -> float:
        """An averaging rate up to which it works on a graph."""
        return 1.0

    def check(self, topology: Topology) -> None:
        """Refuses a graph whose weights or changes the algorithm cannot handle."""
        if self.static and topology.phases:
            because = f"it changes, but {self.name} keeps sums over neighbours from step to step"
            raise BadValue("topology", topology.name, "a graph that does not change", because)
        topology.require(self.needs, self.name)

    @abstractmethod
    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> Any:
        """The state before the first step.

        `apart` says that the agents' models differ, as they do after a host is lost. What an
        algorithm must know about the neighbours' models then has to be sent.
        """

    @abstractmethod
    def step(self, state: Any, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One step at learning rate `lr`."""


Momentum = Annotated[float, Field(ge=0, lt=1, description="β, the momentum coefficient.")]
Nesterov = Annotated[
    bool,
    Field(
        description="False, as printed: v = βv - ηg, the step is v. True, as run: v = βv + g, the "
        "step is -η(g + βv). They also differ when the learning rate changes: only the first "
        "carries the old rate along in v."
    ),
]
MOST = 1_000_000
"""The largest value of hyper-parameters that have no natural end."""
WeightDecay = Annotated[
    float,
    Field(
        ge=0,
        le=MOST,
        description="λ: adds λx to the final gradient, at the point where that gradient is taken.",
    ),
]
Decoupled = Annotated[
    bool,
    Field(
        description="How weights decay. False: λx is added to the gradient. True: every step also "
        "shrinks the model by ηλx, independently of the gradient."
    ),
]
DecayOn = Annotated[
    Literal["all", "weights"],
    Field(
        description="Which parameters decay: all of them, or only weights, which leaves out biases "
        "and norms (every tensor with a single dimension)."
    ),
]
Rate = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="γ, the averaging rate: how far a gossip step goes towards the "
        "neighbourhood's mean.",
    ),
]
LocalSteps = Annotated[
    int, Field(ge=1, le=MOST, description="τ, the steps from one averaging to the next.")
]
GradientAt = Annotated[
    Literal["own", "mixed"],
    Field(
        description="Where the self-gradient is taken: at the agent's own model (as printed), or "
        "at that model already averaged with the neighbours' (as run)."
    ),
]
Scope = Annotated[
    Literal["whole", "tensor"],
    Field(
        description="What is handled at once: the whole gradient (as printed), or each parameter "
        "tensor separately (as run), with its own compression scale and, for CGA, its own "
        "projection."
    ),
]


def _checked(spec: str) -> str:
    codecs.build(spec, [1])
    return spec


CodecSpec = Annotated[str, AfterValidator(_checked)]
"""How values are encoded: dense, fp16, sign, topk:0.01, …"""


def descend(rule: Any, g_AD: Tensor, v_AD: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """SGD with the momentum and Nesterov of `rule`: what to add to the models, new momentum."""
    if rule.nesterov:
        v_AD = torch.add(g_AD, v_AD, alpha=rule.momentum)
        return torch.add(g_AD, v_AD, alpha=rule.momentum).mul_(-lr), v_AD
    v_AD = (rule.momentum * v_AD).sub_(g_AD, alpha=lr)
    return v_AD, v_AD


class Moving(NamedTuple):
    """Models and momentum."""

    x_AD: Tensor
    v_AD: Tensor


class MomentumSGD(Algorithm):
    """An algorithm with its own step whose agents use SGD with momentum."""

    momentum: Momentum = 0.0
    nesterov: Nesterov = False
    weight_decay: WeightDecay = 0.0

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> Any:
        """Momentum starts at zero."""
        return Moving(x_AD, torch.zeros_like(x_AD))

    def descend(
        self, g_AD: Tensor, at_AD: Tensor, v_AD: Tensor, lr: float
    ) -> tuple[Tensor, Tensor]:
        """The step to add to the models, and the new momentum; `at_AD` is where the gradient was
        taken."""
        if self.weight_decay:
            g_AD = g_AD + self.weight_decay * at_AD
        return descend(self, g_AD, v_AD, lr)
