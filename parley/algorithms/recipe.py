"""Algorithms made of parts: a gradient rule, an update rule and an averaging rule.

    g  = gradient(x)        own, NGC's clusters or CGA's projection; as it is, or tracked
    d  = update(g)          SGD with momentum, Adam, Lion or quasi-global momentum; g may be clipped
    x⁺ = average(x + d)     gossip, CHOCO, DeepSqueeze or AdaGossip; with push-sum or without
    x⁺ = average(x) + d     where the gradient needs the neighbours' models, or the mixed one, first

`Recipe` holds the parts and is the algorithm; `Named` is a recipe under a name, with a flat list of
hyper-parameters. Axes: A agents hosted here, I their incoming edges, D flat parameters.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, SerializeAsAny, model_validator
from pydantic.fields import FieldInfo
from torch import Tensor

from parley.algorithms.base import (
    Algorithm,
    GradientAt,
    LocalSteps,
    Stepped,
    choices_as_run,
)
from parley.algorithms.parts import (
    MODELS,
    SGD,
    AveragingRule,
    ClippingRule,
    Correction,
    Debias,
    Gossip,
    GradientRule,
    Own,
    Part,
    UpdateRule,
)
from parley.data import Batch
from parley.errors import BadValue
from parley.graphs import Property
from parley.neighbourhood import Neighbourhood

PARTS = ("update", "averaging", "gradient", "correction", "clipping", "debias")
"""The fields of a recipe that hold parts, in the order in which their options are listed."""


class Round(NamedTuple):
    """A round of local steps so far, for an update rule that learns from whole rounds."""

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
    """A `Round`, if the update rule learns from rounds of several steps."""


class Recipe(Algorithm):
    """An algorithm made of parts.

    Equal parts make equal recipes, whatever they are called.

    >>> from parley.algorithms import Clustering, QuasiGlobal, build
    >>> recipe = Recipe(gradient=Clustering(alpha=0.5), update=QuasiGlobal())
    >>> recipe == build("ngc+qgm", {"alpha": 0.5})
    True
    >>> recipe.name, recipe.label, recipe.alpha
    ('ngc+qgm', 'NGC + QGM α=0.5', 0.5)
    """

    gradient: SerializeAsAny[GradientRule] = Own()
    correction: SerializeAsAny[Correction] | None = None
    clipping: SerializeAsAny[ClippingRule] | None = None
    update: SerializeAsAny[UpdateRule] = SGD()
    averaging: SerializeAsAny[AveragingRule] = Gossip()
    debias: SerializeAsAny[Debias] | None = None
    gradient_at: GradientAt = "own"
    local_steps: LocalSteps = 1
    called: Any = Field(None, exclude=True, repr=False)
    """The `Named` that created it; otherwise the name follows from the parts."""

    def init(self, x_AD: Tensor, hood: Neighbourhood, apart: bool = False) -> State:
        """The models, and the state of each part."""
        return State(
            x_AD,
            self.gradient.init(x_AD, hood),
            self.correction.init(x_AD, hood, self.averaging) if self.correction else (),
            self.update.init(x_AD),
            self.averaging.init(x_AD, hood, apart, self.gradient.looks_around),
            self.debias.init(x_AD) if self.debias else (),
            Round.at(x_AD) if self._learns_from_rounds else (),
        )

    @property
    def looks_around(self) -> bool:
        """Whether gradients are computed at the neighbours' models too."""
        return self.gradient.looks_around

    @property
    def _learns_from_rounds(self) -> bool:
        return self.update.learns_from_averages and self.local_steps > 1

    def step(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """One iteration. The order of calls is also the order of messages: nothing is waited for
        until everything that does not depend on it has been computed."""
        if (batch.step + 1) % self.local_steps:
            return self._alone(state, hood, batch, lr)
        x_AD, gradient, correction, update, averaging, debias, so_far = state
        n_AD, by_I1 = x_AD, None
        if self.debias:
            rate, edges = self.averaging.gamma, self.gradient.looks_around
            n_AD, by_I1, debias = self.debias.weigh(debias, x_AD, hood, rate, edges)
        at_AD, x_I, sent = x_AD, None, None
        average_first = self.gradient.looks_around or self.gradient_at == "mixed"
        if average_first:
            sent, averaging = self.averaging.send(averaging, n_AD, hood, MODELS)
            if self.gradient.looks_around:
                assert sent.known_I is not None
                x_I = sent.known_I if by_I1 is None else hood.divided(sent.known_I, by_I1)
        if self.gradient_at == "mixed":
            assert sent is not None
            n_AD, averaging = self.averaging.mix(averaging, n_AD, sent, hood)
            at_AD = n_AD
        g_AD, loss_A, gradient = self.gradient.apply(gradient, at_AD, x_I, hood, batch)
        if self.correction:
            g_AD, correction = self.correction.apply(correction, g_AD, hood, self.averaging)
        if self.clipping:
            g_AD = self.clipping.apply(g_AD)
        d_AD, update = self.update.step(update, g_AD, at_AD, lr, hood)
        if not average_first:
            n_AD = n_AD + d_AD
            sent, averaging = self.averaging.send(averaging, n_AD, hood, MODELS)
        assert sent is not None
        if self.gradient_at == "mixed":
            n_AD = n_AD + d_AD
        elif average_first:
            n_AD, averaging = self.averaging.mix_and_move(averaging, n_AD, d_AD, sent, hood)
        else:
            n_AD, averaging = self.averaging.mix(averaging, n_AD, sent, hood)
        averaging = self.averaging.share(averaging, n_AD, hood, MODELS)
        new_AD = self.debias.unweigh(debias, n_AD) if self.debias else n_AD
        if self._learns_from_rounds:
            rates_A1 = (so_far.rates_A + lr)[:, None]
            update = self.update.settle(update, so_far.start_AD, new_AD, rates_A1)
            so_far = Round.at(new_AD)
        else:
            update = self.update.settle(update, x_AD, new_AD, lr)
        new = State(new_AD, gradient, correction, update, averaging, debias, so_far)
        return Stepped(new, loss_A)

    def _alone(self, state: State, hood: Neighbourhood, batch: Batch, lr: float) -> Stepped:
        """A local step: nobody sends anything."""
        x_AD = state.x_AD
        g_AD, loss_A, gradient = self.gradient.apply(state.gradient, x_AD, None, hood, batch)
        if self.clipping:
            g_AD = self.clipping.apply(g_AD)
        d_AD, update = self.update.step(state.update, g_AD, x_AD, lr, hood)
        new_AD = self.debias.local(state.debias, x_AD, d_AD) if self.debias else x_AD + d_AD
        so_far = state.round
        if self._learns_from_rounds:
            so_far = so_far._replace(rates_A=so_far.rates_A + lr)
        new = state._replace(x_AD=new_AD, gradient=gradient, update=update, round=so_far)
        return Stepped(new, loss_A)

    @property
    def is_scale_free(self) -> bool:
        """As its update rule is."""
        return self.update.scale_free

    @property
    def round_steps(self) -> int:
        """Models are averaged after τ steps."""
        return self.local_steps

    @property
    def fixed_rate(self) -> str:
        """Every averaging rule has a rate."""
        return ""

    def with_rate(self, factor: float) -> "Recipe":
        """The same at another averaging rate, γ times `factor`."""
        gamma = self.averaging.gamma * factor
        averaging = self.averaging.model_copy(update={"gamma": gamma})
        return self.model_copy(update={"averaging": averaging})

    @property
    def no_local_steps(self) -> str:  # type: ignore[override]
        """Why it cannot take several steps from one averaging to the next, if it cannot."""
        if self.gradient.looks_around:
            word = self.gradient.word
            return f"{word} takes gradients at the neighbours' models, which every step has to send"
        if self.correction:
            return "tracked gradients are sent in every step; kgt tracks them over local steps"
        if self.gradient_at == "mixed":
            return "gradient_at=mixed averages before each step"
        return ""

    def parts(self) -> Iterator[tuple[str, Part]]:
        """The parts that are present, by field."""
        return ((field, part) for field in PARTS if (part := getattr(self, field)) is not None)

    def values(self, given: bool = False) -> dict[str, Any]:
        """The hyper-parameters of all parts in one dict: all, or only those that were given."""
        found: dict[str, Any] = {}
        if not given or "gradient_at" in self.model_fields_set:
            found["gradient_at"] = self.gradient_at
        if not given or "local_steps" in self.model_fields_set:
            found["local_steps"] = self.local_steps
        for _, part in self.parts():
            found |= part.model_dump(exclude_unset=given)
        return found

    def settings(self, given: bool = False) -> dict[str, Any]:
        """The values of the options that a recipe of this name has."""
        named, values = self.kind, self.values(given)
        set_by_name = named.recipe.values(given=True).items() if given else ()
        return {
            k: values[k]
            for k in named.options()
            if k in values and (k, values[k]) not in set_by_name
        }

    @property
    def kind(self) -> "Named":
        """The named recipe it corresponds to."""
        from parley import algorithms  # the table of names, which imports this file

        return self.called or algorithms.name_of(self)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name it was created with, or that of its parts."""
        return self.kind.name

    @property
    def title(self) -> str:  # type: ignore[override]
        """The name as people write it."""
        return self.kind.title

    @property
    def needs(self) -> Property:  # type: ignore[override]
        """The property that the mixing weights must have."""
        return self.debias.needs if self.debias else self.gradient.needs

    @property
    def static(self) -> bool:  # type: ignore[override]
        """Whether the graph must not change."""
        return self.averaging.static

    @property
    def label(self) -> str:
        """A short name for tables and plots."""
        return self.title + self.gradient.suffix

    @property
    def gossip_rate(self) -> float:
        """The averaging rate of the extra gossip rounds in evaluation."""
        return self.averaging.gossip_rate

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The hyper-parameters of the parts can be read as attributes of the recipe."""
            if name not in PARTS and not name.startswith("_"):
                for _, part in self.parts():
                    if name in type(part).model_fields:
                        return getattr(part, name)
            return super().__getattr__(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self._made_of() == other._made_of()

    def __hash__(self) -> int:
        return hash(self._made_of())

    def _made_of(self) -> tuple[Any, ...]:
        return (*(getattr(self, field) for field in PARTS), self.gradient_at, self.local_steps)

    @classmethod
    def choices_as_run(cls) -> dict[str, Any]:
        """Only a named recipe has them."""
        raise BadValue("variant", "as-run", "a named recipe, such as NGC.as_run()")

    @model_validator(mode="after")
    def _parts_fit(self) -> "Recipe":
        """Refuses parts that cannot work together, and says why."""
        gradient, averaging = self.gradient.word, self.averaging.word
        if self.gradient.looks_around and not self.averaging.tells_values:
            because = (
                f"{gradient} needs the neighbours' models, but {averaging} sends only parts of them"
            )
            valid = f"{gradient} with gossip, choco or adagossip"
            raise BadValue("algorithm", spelled(self), valid, because)
        if self.debias and self.gradient.needs == "symmetric":
            because = f"{gradient} needs symmetric weights, for which push-sum has no effect"
            valid = "push-sum with an agent's own gradient, ngc or compngc"
            raise BadValue("algorithm", spelled(self), valid, because)
        if self.debias and not self.averaging.keeps_sums:
            because = (
                f"push-sum relies on the sum of all models, which {averaging} does not preserve"
            )
            valid = "push-sum with gossip, choco or deepsqueeze"
            raise BadValue("algorithm", spelled(self), valid, because)
        plain = self.averaging == Gossip(gamma=self.averaging.gamma) and type(self.update) is SGD
        if self.gradient_at == "mixed" and (not plain or self.correction or self.debias):
            because = f"{spelled(self)} takes gradients at the agent's own model, then averages"
            raise BadValue("gradient_at", "mixed", "own", because)
        if self.local_steps > 1 and (because := self.no_local_steps):
            raise BadValue("local_steps", self.local_steps, "1", because)
        return self


def in_a_name(recipe: Recipe) -> list[Part]:
    """The parts that a recipe is named after: defaults are left out."""
    gradient = (recipe.gradient, recipe.correction, recipe.clipping)
    parts = (*gradient, recipe.update, recipe.averaging, recipe.debias)
    dense = recipe.averaging == Gossip(gamma=recipe.averaging.gamma)
    silent = (Own, SGD, Gossip) if dense else (Own, SGD)
    return [part for part in parts if part and type(part) not in silent] or [recipe.averaging]


def spelled(recipe: Recipe) -> str:
    """The words of those parts joined by ``+``."""
    parts = in_a_name(recipe)
    words = [part.word or type(part).__name__.lower() for part in parts]
    return "+".join(words if any(part.alone for part in parts) else [PLAIN, *words])


PLAIN = "dpsgd"
"""What stands in a name for everything that the other words say nothing about."""


@dataclass(frozen=True)
class Named:
    """A recipe under a name: call it with hyper-parameters to get the algorithm.

    >>> from parley.algorithms import NGC
    >>> NGC(alpha=0.5, momentum=0.9).label, NGC.options()["alpha"].default
    ('NGC α=0.5', 1.0)
    """

    name: str
    title: str
    recipe: Recipe
    """The parts; their values are the defaults."""
    idea: str
    without: tuple[str, ...] = ("gradient_at",)
    """Hyper-parameters of the parts that are fixed rather than options here."""

    @property
    def needs(self) -> Property:
        """The property that the mixing weights must have."""
        return self.recipe.needs

    @property
    def static(self) -> bool:
        """Whether the graph must not change."""
        return self.recipe.static

    @property
    def no_local_steps(self) -> str:
        """Why it cannot take several steps from one averaging to the next, if it cannot."""
        return self.recipe.no_local_steps

    def options(self) -> dict[str, FieldInfo]:
        """The hyper-parameters by name: what flags, TOML keys and help are made from."""
        found: dict[str, FieldInfo] = {}
        for field, part in self.recipe.parts():
            for name, info in type(part).model_fields.items():
                value = getattr(part, name)
                found[name] = info if value == info.default else _with_default(info, value)
            if field == "averaging":
                found["gradient_at"] = Recipe.model_fields["gradient_at"]
                if not self.no_local_steps:
                    found["local_steps"] = Recipe.model_fields["local_steps"]
        return {name: info for name, info in found.items() if name not in self.without}

    def about(self) -> str:
        """The idea, in a few sentences."""
        return self.idea

    def __call__(self, **options: Any) -> Recipe:
        """The algorithm with these hyper-parameters."""
        known = self.options()
        for name in options.keys() - known.keys():
            because = f"{self.name} has no such option"
            raise BadValue(name, options[name], ", ".join(known), because)
        parts: dict[str, Any] = {}
        for field, part in self.recipe.parts():
            mine = {k: v for k, v in options.items() if k in type(part).model_fields}
            parts[field] = type(part)(**part.model_dump(exclude_unset=True) | mine)
        own = {k: v for k, v in options.items() if k in ("gradient_at", "local_steps")}
        return Recipe(**parts, **own, called=self)

    def as_run(self, **options: Any) -> Recipe:
        """With the choices of the NGC authors' public code, then `options`."""
        return self(**self.choices_as_run() | options)

    def choices_as_run(self) -> dict[str, Any]:
        """The choices of `AS_RUN` that apply; refused unless all of them can be set."""
        return choices_as_run(self.name, self.options())

    def fits(self, recipe: Recipe) -> bool:
        """Whether this name, with some values of its options, stands for the recipe."""
        mine, theirs = self.recipe.values(), recipe.values()
        same = [type(getattr(self.recipe, f)) is type(getattr(recipe, f)) for f in PARTS]
        return all(same) and all(mine[o] == theirs[o] for o in self.without if o in mine)


def _with_default(info: FieldInfo, value: Any) -> FieldInfo:
    other = copy(info)
    other.default = value
    return other
