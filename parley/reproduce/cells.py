"""The runs of a study: each cell of its tables as an experiment, in full or reduced.

>>> cell = cells(named("paper"))["fashion_mnist/lenet5/ring/10/ngc"]
>>> cell.published, cell.experiment().lr, cell.experiment().algorithm.momentum
((87.24, 0.23), 0.01, 0.9)
>>> cell.experiment(Form("as-printed")).algorithm.nesterov, cell.experiment().algorithm.nesterov
(False, True)
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from parley import models
from parley.data import steps_per_epoch
from parley.data.partition import partition
from parley.errors import BadValue, ParleyError, nearest, unknown_name
from parley.experiment import ALGORITHM_OPTIONS, Experiment
from parley.graphs import parse as parse_graph
from parley.reproduce.study import Facts, MethodEntry, Options, Study, Variant, named
from parley.sweep.compare import Method, parse_algorithms

EVALUATE_EVERY = 5
"""Epochs between records in a long run."""
FEWEST_RECORDS = 4
"""A run with at least this many epochs counts as long. Testing every agent's model twice takes as
long as a third of a training epoch, so a short run has no more records than its curve needs."""


class Form(NamedTuple):
    """How a cell is run: a reading of what was published, and how much smaller than that.

    >>> Form("as-run", 20, 0.1).folder, Form("as-run", 20, 0.1).reduction(100)
    ('as-run-20-epochs-0.1-data', '20 of 100 epochs, 10 % of the data')
    """

    variant: str = ""
    """Empty for the study's usual one; with ``-but-`` and choices behind it."""
    epochs: int | None = None
    fraction: float | None = None
    """Share of the training samples, equal for every class."""

    @property
    def folder(self) -> str:
        """The name of its folder: a reduced run is a different experiment."""
        epochs = f"-{self.epochs}-epochs" if self.epochs is not None else ""
        return self.variant + epochs + (f"-{self.fraction:g}-data" if self.fraction else "")

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices in which it differs from its variant."""
        listed = self.variant.partition("-but-")[2]
        return tuple(listed.split(",")) if listed else ()

    def reduction(self, of_epochs: int) -> str:
        """How much smaller it is, in words; empty if it is whole."""
        parts = [f"{self.epochs} of {of_epochs} epochs"] if self.epochs is not None else []
        if self.fraction is not None:
            parts.append(f"{100 * self.fraction:g} % of the data")
        return ", ".join(parts)

    @property
    def words(self) -> str:
        """The variant in words; empty for the first one of a study.

        >>> Form("as-run-but-floor,scale").words, Form("as-printed").words
        ('floor and scale as printed', 'as printed')
        """
        said = f"{listed(self.choices)} as printed" if self.choices else self.variant
        return said.replace("-", " ")


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["gradient", "floor", "scale"])
    'gradient, floor and scale'
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


@dataclass(frozen=True)
class Cell:
    """One cell of a table or one curve of a figure."""

    study: Study = field(repr=False, compare=False)
    name: str
    """For example ``fashion_mnist/lenet5/ring/10/ngc`` or ``figures/iid/5/full``."""
    setting: str
    """What it shares with the other methods it is compared with."""
    method: str
    """The name of the method in the study."""
    values: tuple[str, ...]
    """Of what is varied, in the study's order."""
    label: str
    own: Options = field(compare=False)
    """The options of this cell alone."""
    published: tuple[float, ...] | None = None
    """Mean, and standard deviation if that is published too."""

    @property
    def section(self) -> str:
        """The section of the page."""
        return self.study.section_of(self.setting)[0]

    @property
    def folder(self) -> str:
        """Its folder among the results."""
        inside = self.name
        if self.section != self.setting:
            inside = self.name.removeprefix("figures/")
            return f"{self.section}/{inside.replace('/', '-')}"
        return inside.replace(":", "-")

    @cached_property
    def usual(self) -> Experiment:
        """In the usual form and whole."""
        return self.experiment()

    @property
    def facts(self) -> Facts | None:
        """About its dataset, if the study has any."""
        return self.study.data.get(self.usual.data)

    @property
    def largest_part(self) -> int:
        """Samples of the agent that has most; of seed 0, if that matters."""
        assert self.facts
        if not self.usual.partition.startswith("dirichlet:"):
            return math.ceil(self.facts.samples / self.usual.agents)
        e, facts = self.usual, self.facts
        return _largest_part(e.partition, facts.samples, facts.classes, e.topology, e.agents)

    @property
    def steps_per_epoch(self) -> int:
        """On the full dataset, including the last short batch."""
        return steps_per_epoch([self.largest_part], self.usual.batch)

    @property
    def chance(self) -> float:
        """The accuracy below which guessing stays: three standard errors above one in `classes`; 0
        if the study does not describe the data."""
        if not self.facts:
            return 0.0
        share = 1 / self.facts.classes
        return share + 3 * math.sqrt(share * (1 - share) / self.facts.test)

    def form(self, variant: str, epochs: int | None, fraction: float | None) -> Form:
        """What these values mean here: all epochs and all data are no reduction."""
        whole = self.usual.epochs
        if fraction is not None and not 0 < fraction <= 1:
            raise BadValue("fraction", fraction, "a number above 0, at most 1")
        if epochs is not None and not 1 <= epochs <= whole:
            because = f"{self.name} has {whole} epochs; --epochs can only shorten a run"
            raise BadValue("epochs", epochs, f"1 to {whole}", because)
        return Form(
            variant_name(self.study, variant),
            None if epochs == whole else epochs,
            None if fraction == 1 else fraction,
        )

    def experiment(self, form: Form = Form(), **others: Any) -> Experiment:  # noqa: B008
        """What to run; `others` are further options, such as a seed."""
        base, choices = parse_variant(self.study, form.variant)
        method = parsed(self.study.methods[self.method].algorithm)
        mine = method.settings | self.own
        options = self._options(method, base) | mine
        for choice in choices:
            _merge(options, self._choice(form.variant, choice, method))
        for name, stands in self.study.variants.get(base, Variant()).instead.items():
            if name in options:
                options[name] = stands.get(options[name], options[name])
        whole = options.get("epochs", Experiment.model_fields["epochs"].default)
        if isinstance(whole, int):  # otherwise it is refused below
            epochs = form.epochs or whole
            options.setdefault("evaluate_every", evaluate_every(epochs))
            options["epochs"] = epochs
            name, _, factor = str(options.get("lr_decay")).partition(":")
            if name == "exponential" and epochs != whole:
                # A shorter run covers the same range of learning rates.
                options["lr_decay"] = f"{name}:{float(factor) ** (whole / epochs):.6g}"
        if form.fraction is not None:
            options["fraction"] = form.fraction
        try:
            return Experiment.of(algorithm=method.kind, **(options | others))
        except BadValue as error:
            raise error.saying(f"{self.name}: {error}") from None

    def _options(self, method: Method, base: str) -> Options:
        """Of the study, the setting and a variant, as far as the run has them."""
        setting = self.study.settings[self.setting]
        made = _had(self.study.options | setting.options, method)
        variant = self.study.variants.get(base)
        if not variant:
            return made
        _merge(made, _had(variant.options, method, str((made | self.own).get("model", ""))))
        return made

    def _choice(self, variant: str, choice: str, method: Method) -> Options:
        """The options of a choice, if it matters for this run."""
        having = [name for name in self.study.choices if self._depends_on(name, method)]
        if choice not in having:
            valid = f"{self.study.forms[0]}-but- followed by some of {', '.join(having)}"
            because = f"{self.label} does not depend on {choice} there"
            raise BadValue("variant", variant, f"{valid} for {self.name}", because)
        return self.study.choices[choice].options

    def _depends_on(self, choice: str, method: Method) -> bool:
        wanted = self.study.choices[choice]
        model = str((self._options(method, "") | self.own).get("model", ""))
        given = method.settings | self.own
        if _had(wanted.options, method, model) != wanted.options or set(wanted.options) & set(
            given
        ):
            return False
        return not wanted.needs or bool(given.get(wanted.needs))


def _had(options: Options, method: Method, model: str | None = None) -> Options:
    """Without what a method's algorithm does not have, or the network `model`, if it is given."""
    mine = method.kind.options()
    found = {k: v for k, v in options.items() if k in mine or k not in ALGORITHM_OPTIONS}
    if "gradient_at" not in mine:  # it has a single reading
        found.pop("variant", None)
    if model is not None and "model_options" in found:
        valid = models.options(model) if model else ()
        found["model_options"] = {k: v for k, v in found["model_options"].items() if k in valid}
        if not found["model_options"]:
            del found["model_options"]
    return found


def _merge(options: Options, more: Options) -> None:
    """Puts options on top of others; those of a network are added to its others."""
    network = options.get("model_options", {}) | more.get("model_options", {})
    options |= more | ({"model_options": network} if network else {})


@cache
def parsed(spec: str) -> Method:
    """The method of a specification such as ``ngc:alpha=0``."""
    found = parse_algorithms(spec)
    if len(found) != 1:
        raise BadValue("methods", spec, "one algorithm")
    return found[0]


def key_of(method: Method) -> str:
    """A method's name with all of its settings, in one order.

    >>> key_of(parsed("gut:mu=0.9:momentum=0"))
    'gut:momentum=0:mu=0.9'
    """
    return ":".join([method.name, *(f"{k}={v}" for k, v in sorted(method.settings.items()))])


@cache
def label_of(spec: str) -> str:
    """An algorithm's label, with the settings that it was given.

    >>> label_of("dpsgd:momentum=0"), label_of("ngc:alpha=0"), label_of("compngc:gamma=0.1")
    ('D-PSGD momentum=0', 'NGC α=0', 'CompNGC γ=0.1')
    """
    method = parsed(spec)
    label = method.experiment({}).algorithm.label
    said = {"alpha"} if "α=" in label else set()
    short = {"gamma": "γ"}
    given = (f"{short.get(k, k)}={v}" for k, v in method.settings.items() if k not in said)
    return " ".join([label, *given])


@cache
def cells(study: Study) -> Mapping[str, Cell]:
    """All of them: 132 of the paper's tables, and the curves of its figures.

    >>> len([cell for cell in cells(named("paper")).values() if cell.published])
    132
    """
    made = {cell.name: cell for cell in _made(study)}
    for name, picture in study.pictures.items():
        for line in picture.lines.values():
            if line not in made:
                raise unknown_name(f"pictures.{name}.lines", line, made)
    return made


def _made(study: Study) -> Iterator[Cell]:
    axes = [[(name, options) for name, options in of.items()] for of in study.vary.values()]
    for setting, about in study.settings.items():
        for key in about.runs or study.methods:
            run = about.runs.get(key)
            method = run.method or key if run else key
            entry = study.methods[method]
            for point in itertools.product(*axes):
                values = tuple(name for name, _ in point)
                own: Options = dict(run.options) if run else {}
                for _, options in point:
                    own |= options
                published = run.published if run else None
                if isinstance(published, dict):
                    published = published.get("/".join(values))
                yield Cell(
                    study, "/".join((setting, key, *values)), setting, method, values,
                    entry.label or label_of(entry.algorithm), own, published,
                )  # fmt: skip


def select(
    study: Study, name: str = "", agents: int | None = None, methods: Sequence[str] | None = None
) -> list[Cell]:
    """Cells by a name, its beginning, a section or a picture; then by agents and methods.

    >>> [cell.name for cell in select(named("paper"), "datasets", 10, ["dpsgd"])][0]
    'fashion_mnist/lenet5/ring/10/dpsgd'
    >>> [cell.name for cell in select(named("paper"), "figures/epsilon/5")]
    ['figures/non-iid/5/ring', 'figures/methods/5/cga']
    """
    known, wanted = cells(study), name.strip("/")
    found = [c for c in known.values() if wanted in ("", c.section) or _begins(c.name, wanted)]
    for title, picture in study.pictures.items():
        if _begins(title, wanted):
            found += [known[line] for line in picture.lines.values()]
    found = list({cell.name: cell for cell in found}.values())
    if not found:
        near = nearest(wanted, _names(study), 3)
        valid = "a name or the beginning of one, as `parley reproduce` lists them"
        raise BadValue("preset", name, valid, f"nearest: {', '.join(near)}" if near else "")
    for method in methods or ():
        if method not in study.methods:
            raise unknown_name("methods", method, study.methods)
    if agents is not None:
        numbers = sorted({cell.usual.agents for cell in found})
        found = [cell for cell in found if cell.usual.agents == agents]
        if not found:
            raise BadValue("agents", agents, f"{', '.join(map(str, numbers))} for {name}")
    if methods is not None:
        having = [m for m in study.methods if m in {cell.method for cell in found}]
        found = [cell for cell in found if cell.method in methods]
        if not found:
            raise BadValue("methods", ",".join(methods), f"{', '.join(having)} for {name}")
    return found


def with_methods(study: Study, given: str | None) -> tuple[Study, list[str] | None]:
    """The study with the methods that a command names among its own, and their names. Where all
    settings have the same methods, any algorithm can take part, as for ``parley compare``."""
    names = [name.strip() for name in given.split(",")] if given is not None else None
    open_ = not any(setting.runs for setting in study.settings.values())
    known = names is None or not open_ or all(name in study.methods for name in names)
    keys = (names or []) if known else [key_of(method) for method in parse_algorithms(given or "")]
    if double := next((key for key in keys if keys.count(key) > 1), None):
        entry = study.methods.get(double) or MethodEntry(algorithm=double)
        why = f"{entry.label or label_of(entry.algorithm)} is given twice"
        raise BadValue("methods", double, "each method once", why)
    if known:
        return study, names
    more = {key: MethodEntry(algorithm=key) for key in keys}
    return study.model_copy(update={"methods": study.methods | more}), keys


def _begins(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(wanted + "/")


def _names(study: Study) -> Iterable[str]:
    """Everything that can be selected."""
    names = dict.fromkeys([*study.sections, *study.pictures])
    for name in cells(study):
        parts = name.split("/")
        names |= dict.fromkeys("/".join(parts[: n + 1]) for n in range(len(parts)))
    return names


def parse_variant(study: Study, variant: str) -> tuple[str, tuple[str, ...]]:
    """The base variant, and the choices that differ regardless, in the study's order.

    >>> parse_variant(named("paper"), "as-run-but-scale,floor")
    ('as-run', ('floor', 'scale'))
    """
    base, but, given = (variant or study.forms[0]).partition("-but-")
    names = given.split(",") if but else []
    if base not in study.forms or (but and base != study.forms[0]):
        known = [f"{study.forms[0]}-but-{choice}" for choice in study.choices]
        raise unknown_name("variant", variant, [*study.forms, *known])
    for choice in names:
        if choice not in study.choices or names.count(choice) > 1:
            valid = f"{base}-but- followed by some of {', '.join(study.choices)}, comma-separated"
            raise BadValue("variant", variant, valid)
    return base, tuple(choice for choice in study.choices if choice in names)


def variant_name(study: Study, variant: str) -> str:
    """The canonical name of a variant, whatever the order of its choices."""
    base, choices = parse_variant(study, variant)
    return f"{base}-but-{','.join(choices)}" if choices else base


def parse_form(study: Study, folder: str) -> Form:
    """A form from the name of its folder.

    >>> parse_form(named("paper"), "as-run-20-epochs-0.1-data")
    Form(variant='as-run', epochs=20, fraction=0.1)
    """
    found = re.fullmatch(r"([a-z,-]+?)(?:-(\d+)-epochs)?(?:-([\d.e-]+)-data)?", folder)
    if not found:
        valid = ", ".join(study.forms) + ", or a reduced form of one"
        raise BadValue("folder", folder, valid)
    variant, epochs, fraction = found.groups()
    name = variant_name(study, variant)
    return Form(name, int(epochs) if epochs else None, float(fraction) if fraction else None)


def evaluate_every(epochs: int) -> int:
    """Epochs between records in a run of `epochs`.

    >>> [evaluate_every(epochs) for epochs in (1, 3, 8, 100)]
    [1, 1, 2, 5]
    """
    return max(1, min(EVALUATE_EVERY, epochs // FEWEST_RECORDS))


MEASURING = {"evaluate_every", "bias_norms", "gossip_rounds"}
"""Fields that affect what is recorded, not what is trained."""


class Match(NamedTuple):
    """What the NGC paper reports for an experiment, in percent after gossip, over three seeds."""

    cell: Cell
    accuracy: float
    std: float
    remark: str
    """How the run differs from the paper's."""


def find_cell(experiment: Experiment) -> Match | None:
    """The cell of the NGC paper with exactly this experiment, in full or reduced.

    >>> found = find_cell(cells(named("paper"))["cifar10/cnn5/ring/5/ngc"].experiment(seed=3))
    >>> found.cell.name, found.accuracy, found.remark
    ('cifar10/cnn5/ring/5/ngc', 83.36, '')
    >>> find_cell(Experiment.of(data="digits")) is None
    True
    """
    study = named("paper")
    for cell in cells(study).values():
        options = study.settings[cell.setting].options
        other = any(options[k] != getattr(experiment, k) for k in ("data", "model", "agents"))
        if other or not cell.published:
            continue
        for variant in study.forms:
            try:
                form = cell.form(variant, experiment.epochs, experiment.fraction)
            except ParleyError:
                break  # longer than the paper's
            expected = cell.experiment(form, seed=experiment.seed)
            if not set(expected.same_as(experiment)) - MEASURING:
                reduction = form.reduction(cell.usual.epochs)
                said = "" if variant == study.forms[0] else form.words
                remark = [said, f"reduced: {reduction}" if reduction else ""]
                mean, *std = cell.published
                said = ", ".join(filter(None, remark))
                return Match(cell, mean, std[0] if std else math.nan, said)
    return None


@cache
def _largest_part(spec: str, samples: int, classes: int, graph: str, agents: int) -> int:
    labels = np.arange(samples) % classes  # as many of each class
    return max(map(len, partition(spec, labels, parse_graph(graph, agents), 0).indices))
