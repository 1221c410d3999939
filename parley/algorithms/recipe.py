"""Algorithms made of parts: a gradient rule, an update rule and an averaging rule.

    g  = gradient(x)        own, NGC's clusters or CGA's projection; as it is, or tracked
    d  = update(g)          SGD with momentum, Adam, Lion or quasi-global momentum; g may be clipped

and one of three orders, each a function below:

    x⁺ = average(x + d)             `step_then_average`
    x⁺ = average(x) + d             `average_then_step`, where g needs the neighbours' models
    x⁺ = x̄ + d(x̄), x̄ = average(x)   `step_from_average`, where g is taken at the averaged model

Their order of calls is also the order of messages: nothing is waited for until everything that does
not depend on it has been computed. Axes: A agents hosted here, I their incoming edges, D flat
parameters.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import model_validator
from torch import Tensor

from parley.algorithms.base import Algorithm, Stepped
from parley.algorithms.parts import (
    MODELS,
    SGD,
    AveragingRule,
    ClippingRule,
    Correction,
    CrossGradientRule,
    Debias,
    FollowingRule,
    Found,
    Gossip,
    GradientRule,
    Own,
    OwnGradientRule,
    Part,
    TellingRule,
    UpdateRule,
)
from parley.data import Batch
from parley.errors import BadValue
from parley.neighbourhood import Neighbourhood


class Round(NamedTuple):
    """A round of local steps so far, for an update rule that follows averages."""

    start_AD: Tensor
    """The models at its start."""
    rates_A: Tensor
    """The sum of its learning rates."""

    @classmethod
    def at(cls, x_AD: Tensor) -> "Round":
        """One that begins at these models."""
        return cls(x_AD, x_AD.new_zeros(len(x_AD)))


class State(NamedTuple):
    """The models, and the state of each part; empty for a part that is absent."""

    x_AD: Tensor
    gradient: Any
    correction: Any
    update: Any
    averaging: Any
    debias: Any
    round: Any = ()
    """A `Round`, if the update rule follows rounds of several steps."""


class Parts(NamedTuple):
    """The parts of an algorithm, in the order in which a name has their words."""

    gradient: GradientRule = Own()
    correction: Correction | None = None
    clipping: ClippingRule | None = None
    update: UpdateRule = SGD()
    averaging: AveragingRule = Gossip()
    debias: Debias = Debias()

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool, in_rounds: bool) -> State:
        """The models, and the state of each part."""
        return State(
            x_AD,
            self.gradient.init(x_AD, hood),
            self.correction.init(x_AD, hood, self.averaging) if self.correction else (),
            self.update.init(x_AD),
            self.averaging.init(x_AD, hood, apart, isinstance(self.gradient, CrossGradientRule)),
            self.debias.init(x_AD),
            Round.at(x_AD) if in_rounds and isinstance(self.update, FollowingRule) else (),
        )

    def descend(
        self, state: State, found: Found, at_AD: Tensor, lr: float, hood: Neighbourhood
    ) -> tuple[Tensor, State]:
        """What to add to the models: the gradient, corrected and clipped, as the update rule has
        it."""
        g_AD, _, gradient = found
        correction = state.correction
        if self.correction:
            g_AD, correction = self.correction.apply(correction, g_AD, hood, self.averaging)
        if self.clipping:
            g_AD = self.clipping.apply(g_AD)
        d_AD, update = self.update.step(state.update, g_AD, at_AD, lr, hood)
        return d_AD, state._replace(gradient=gradient, correction=correction, update=update)

    def averaged(
        self, state: State, averaging: Any, n_AD: Tensor, lr: float, hood: Neighbourhood
    ) -> State:
        """The state with the averaged models, which the update rule may follow."""
        averaging = self.averaging.share(averaging, n_AD, hood, MODELS)
        x_AD = self.debias.unweigh(state.debias, n_AD)
        new = state._replace(x_AD=x_AD, averaging=averaging)
        if not isinstance(self.update, FollowingRule):
            return new
        if not state.round:
            return new._replace(update=self.update.settle(state.update, state.x_AD, x_AD, lr))
        start_AD, rates_A = state.round
        update = self.update.settle(state.update, start_AD, x_AD, (rates_A + lr)[:, None])
        return new._replace(update=update, round=Round.at(x_AD))


# --- the orders of a step ---------------------------------------------------------------------


def step_then_average(
    parts: Parts, state: State, hood: Neighbourhood, batch: Batch, lr: float
) -> Stepped:
    """x⁺ = average(x + d), where an agent's gradient needs nothing of its neighbours."""
    n_AD, _, debias = parts.debias.weigh(
        state.debias, state.x_AD, hood, parts.averaging.gamma, edges=False
    )
    assert isinstance(parts.gradient, OwnGradientRule)
    found = parts.gradient.apply(state.gradient, state.x_AD, hood, batch)
    d_AD, state = parts.descend(state._replace(debias=debias), found, state.x_AD, lr, hood)
    n_AD = n_AD + d_AD
    sent, averaging = parts.averaging.send(state.averaging, n_AD, hood, MODELS)
    n_AD, averaging = parts.averaging.mix(averaging, n_AD, sent, hood)
    return Stepped(parts.averaged(state, averaging, n_AD, lr, hood), found.loss_A)


def average_then_step(
    parts: Parts, state: State, hood: Neighbourhood, batch: Batch, lr: float
) -> Stepped:
    """x⁺ = average(x) + d, where a gradient needs the neighbours' models: NGC's order."""
    assert isinstance(parts.gradient, CrossGradientRule)
    assert isinstance(parts.averaging, TellingRule)
    n_AD, by_I1, debias = parts.debias.weigh(
        state.debias, state.x_AD, hood, parts.averaging.gamma, edges=True
    )
    sent, averaging = parts.averaging.send(state.averaging, n_AD, hood, MODELS)
    x_I = parts.averaging.known(averaging, sent, hood)
    x_I = x_I if by_I1 is None else hood.divided(x_I, by_I1)
    found = parts.gradient.apply(state.gradient, state.x_AD, x_I, hood, batch)
    d_AD, state = parts.descend(state._replace(debias=debias), found, state.x_AD, lr, hood)
    n_AD, averaging = parts.averaging.mix_and_move(averaging, n_AD, d_AD, sent, hood)
    return Stepped(parts.averaged(state, averaging, n_AD, lr, hood), found.loss_A)


def step_from_average(
    parts: Parts, state: State, hood: Neighbourhood, batch: Batch, lr: float
) -> Stepped:
    """x⁺ = x̄ + d(x̄): averages first, and takes its own gradient there. Cross-gradients stay at the
    neighbours' models as they were sent."""
    assert isinstance(parts.averaging, TellingRule)
    sent, averaging = parts.averaging.send(state.averaging, state.x_AD, hood, MODELS)
    at_AD, averaging = parts.averaging.mix(averaging, state.x_AD, sent, hood)
    if isinstance(parts.gradient, CrossGradientRule):
        x_I = parts.averaging.known(averaging, sent, hood)
        found = parts.gradient.apply(state.gradient, at_AD, x_I, hood, batch)
    else:
        assert isinstance(parts.gradient, OwnGradientRule)
        found = parts.gradient.apply(state.gradient, at_AD, hood, batch)
    d_AD, state = parts.descend(state, found, at_AD, lr, hood)
    return Stepped(parts.averaged(state, averaging, at_AD + d_AD, lr, hood), found.loss_A)


def local_step(parts: Parts, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
    """A step between two averagings: no agent sends anything."""
    assert isinstance(parts.gradient, OwnGradientRule)
    found = parts.gradient.apply(state.gradient, state.x_AD, hood, batch)
    d_AD, new = parts.descend(state, found, state.x_AD, lr, hood)
    so_far = new.round and new.round._replace(rates_A=new.round.rates_A + lr)
    x_AD = parts.debias.local(state.debias, state.x_AD, d_AD)
    return Stepped(new._replace(x_AD=x_AD, round=so_far), found.loss_A)


# --- the algorithm ----------------------------------------------------------------------------


class Combination(Algorithm):
    """An algorithm made of parts, whose hyper-parameters are its own fields.

    A subclass names its parts in `made_of` and has a field for each of their hyper-parameters that
    is an option; the others keep the part's default. Algorithms of equal parts are equal, whatever
    they are called.

    >>> from parley.algorithms import Clustering, QuasiGlobal, Recipe, build
    >>> made = Recipe(gradient=Clustering(alpha=0.5), update=QuasiGlobal())
    >>> made == build("ngc+qgm", {"alpha": 0.5})
    True
    >>> made.name, made.label, made.parts.gradient
    ('ngc+qgm', 'NGC + QGM α=0.5', Clustering(alpha=0.5))
    """

    made_of: ClassVar[tuple[type[Part], ...]] = ()
    """Its parts, as far as they are not the agent's own gradient, SGD and gossip."""
    kinds: ClassVar[dict[str, type[Part]]] = {}
    """All of them, by their slot."""
    again: ClassVar[Callable[[], type["Combination"]] | None] = None
    """Makes this class once more in a different process, if no module has it."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.contain(cls.made_of)

    @classmethod
    def contain(cls, parts: Sequence[type[Part]]) -> None:
        """Notes its parts, and all that follows from them."""
        cls.made_of, cls.kinds = tuple(parts), kinds_of(parts)
        needs = (cls.kinds[slot].needs for slot in reversed(Parts._fields) if slot in cls.kinds)
        cls.needs = next(filter(None, needs), Algorithm.needs)
        cls.static = any(part.static for part in cls.kinds.values())
        cls.gradients_per_edge = int(issubclass(cls.kinds["gradient"], CrossGradientRule))
        cls.no_local_steps = no_local_steps(cls.kinds)

    @cached_property
    def parts(self) -> Parts:
        """The parts, with their hyper-parameters."""
        mine = self.settings()
        made: dict[str, Any] = {
            slot: part(**{name: mine[name] for name in part.options() if name in mine})
            for slot, part in self.kinds.items()
        }
        return Parts(**made)

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """The models, and the state of each part."""
        return self.parts.init(x_AD, hood, apart, in_rounds=self.round_steps > 1)

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration."""
        if (batch.step + 1) % self.round_steps:
            return local_step(self.parts, state, hood, batch, lr)
        if self.mixes_first:
            return step_from_average(self.parts, state, hood, batch, lr)
        if self.gradients_per_edge:
            return average_then_step(self.parts, state, hood, batch, lr)
        return step_then_average(self.parts, state, hood, batch, lr)

    @property
    def mixes_first(self) -> bool:
        """Whether gradients are taken at the averaged models."""
        return getattr(self, "gradient_at", "own") == "mixed"

    @property
    def is_scale_free(self) -> bool:
        """As its update rule is."""
        return self.parts.update.scale_free

    @property
    def round_steps(self) -> int:
        """Models are averaged after τ steps."""
        return int(getattr(self, "local_steps", 1))

    @property
    def fixed_rate(self) -> str:
        """Every averaging rule has a rate."""
        return ""

    @property
    def label(self) -> str:
        """A short name for tables and plots."""
        return self.title + self.parts.gradient.suffix

    @property
    def gossip_rate(self) -> float:
        """The averaging rate of the extra gossip rounds in evaluation."""
        return self.parts.averaging.gossip_rate

    @model_validator(mode="after")
    def _averages_after_local_steps(self) -> Self:
        if self.mixes_first and self.round_steps > 1:
            because = "gradient_at=mixed averages before each step"
            raise BadValue("local_steps", self.round_steps, "1", because)
        return self

    def __copy__(self) -> Self:
        made = super().__copy__()
        made.__dict__.pop("parts", None)  # a copy may get other hyper-parameters
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self).again or type(self), self.settings(given=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Combination) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[Any, ...]:
        return (self.parts, self.mixes_first, self.round_steps)


def _restored(kind: Callable[..., Any], given: dict[str, Any]) -> Combination:
    """An algorithm that was pickled."""
    made: Combination = (kind if isinstance(kind, type) else kind())(**given)
    return made


def kinds_of(parts: Sequence[type[Part]]) -> dict[str, type[Part]]:
    """These parts by their slot, and those that an algorithm has if none is named."""
    every: tuple[type[Part], ...] = (Own, SGD, Gossip, *parts)
    return {part.slot: part for part in every}


def no_local_steps(kinds: dict[str, type[Part]]) -> str:
    """Why these parts cannot take several steps from one averaging to the next, if they cannot."""
    if issubclass(kinds["gradient"], CrossGradientRule):
        word = kinds["gradient"].word
        return f"{word} takes gradients at the neighbours' models, which every step has to send"
    if "correction" in kinds:
        return "tracked gradients are sent in every step; kgt tracks them over local steps"
    return ""
