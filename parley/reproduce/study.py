"""A study as data: settings × methods × seeds, and the published figures beside them, in one file.

A study is a TOML file, in ``studies/`` here or a user's own. This module says what such a file may
hold and reads it; ``cells.py`` makes experiments of it. docs/studies.md shows how to write one.

>>> study = named("paper")
>>> study.settings["fashion_mnist/lenet5/ring/10"].runs["ngc"].published
(87.24, 0.23)
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from parley.errors import BadValue, nearest, unknown_name
from parley.experiment import read_file
from parley.validation import Checked, kind_of

Options = dict[str, Any]
"""Fields of an experiment and hyper-parameters, as on the command line."""
Published = tuple[float] | tuple[float, float]
"""A published figure, and its standard deviation if that is published too."""


class Section(Checked, BaseModel):
    """A table of a study's file: unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MethodEntry(Section):
    """A row of the tables."""

    algorithm: str
    """As for ``parley compare --algorithms``: ``ngc:alpha=0``."""
    label: str = ""
    """By default the algorithm's, with the settings that are given."""


class RunEntry(Section):
    """One method in one setting, where that needs more than both say."""

    method: str = ""
    """By default the name of the entry itself."""
    options: Options = {}
    """Written into the entry directly, without a table of their own."""
    published: Published | dict[str, Published] | None = None
    """In percent where that is what columns have; for studies that vary something, by value."""

    @model_validator(mode="before")
    @classmethod
    def _options_are_the_rest(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "options" in given:
            return given
        own = {name: given[name] for name in ("method", "published") if name in given}
        return own | {"options": {k: v for k, v in given.items() if k not in own}}


class Setting(Section):
    """Who learns what from whom."""

    title: str = ""
    about: str = ""
    """What was run, for the page."""
    section: str = ""
    """Which section of the page it belongs to; by default it is one itself."""
    options: Options = {}
    runs: dict[str, RunEntry] = {}
    """By default every method of the study, with nothing of its own."""


class Variant(Section):
    """One reading of what was published."""

    options: Options = {}
    """Left out where a run's algorithm or network does not have them."""
    instead: dict[str, dict[str, Any]] = {}
    """For options, values that stand for others."""


class Choice(Section):
    """One of the choices in which two variants differ."""

    options: Options
    needs: str = ""
    """An option of the algorithm that must not be 0 for the choice to matter."""


class Tuning(Section):
    """A search over the learning rate (and γ, if that is below 1 by default), alike for all."""

    trials: int = Field(4, ge=1)
    epochs: int = Field(20, ge=1)
    rates: dict[Literal["sgd", "momentum", "adaptive"], tuple[float, float]]
    """The range for methods without momentum, with momentum, and with adaptive rates."""


class Columns(Section):
    """The tables of the page."""

    columns: dict[str, str] = {"accuracy_mean_model": "averaged\nmodel, %"}
    """Figures of the last records with their headings: fields of a record, or those of `FIGURES` in
    ``collect.py``."""
    published: list[str] = []
    """The columns that the published figures are compared with."""
    spread: Literal["std", "interval"] = "std"
    """Beside means: the standard deviation over seeds, or half a 95 % interval."""
    digits: int = Field(2, ge=0, le=6)
    best_first: bool = False
    across: str = ""
    """Something that is varied: its values become the columns, of the first figure."""
    worst: bool = False
    """With `across`: also the worst of them, by which rows are ordered if the best come first."""


class Picture(Section):
    """A picture besides the curves of every setting and the figures beside published ones."""

    title: str = ""
    kind: Literal["lines", "tradeoff"] = "lines"
    field: str = "accuracy_mean_model"
    """What is drawn: a field of a record."""
    axis: str = ""
    over: str = "epoch"
    """Of lines: what is on the other axis, a field of a record."""
    lines: dict[str, str] = {}
    """Labels and names of runs."""
    costs: dict[str, str] = {}
    """Of a trade-off: figures, one for each panel, with their names."""
    subject: str = ""
    """A method that is named wherever it is."""
    chance: float = Field(0.0, ge=0)
    """What needs no learning."""


class Facts(Section):
    """A dataset, as far as costs depend on it."""

    title: str = ""
    samples: int = Field(ge=1)
    test: int = Field(10_000, ge=1)
    shape: tuple[int, ...]
    classes: int = Field(10, ge=1)


class Study(Section):
    """A whole study."""

    name: str
    file: str = ""
    """How commands name it: by its name, or by its file."""
    title: str = ""
    about: str = ""
    """The first paragraph of the page."""
    out: str = ""
    """The folder of the results."""
    seeds: int = Field(3, ge=1)
    options: Options = {}
    """Of every run. Those that an algorithm does not have are left out."""
    methods: dict[str, MethodEntry]
    reference: list[str] = []
    """Algorithms that are shown but not compared, such as those with a server."""
    sections: dict[str, str] = {}
    settings: dict[str, Setting]
    vary: dict[str, dict[str, Options]] = {}
    """What is varied beyond methods: every run is made with each of these options."""
    variants: dict[str, Variant] = {}
    choices: dict[str, Choice] = {}
    tune: Tuning | None = None
    table: Columns = Columns()
    pictures: dict[str, Picture] = {}
    data: dict[str, Facts] = {}

    @model_validator(mode="before")
    @classmethod
    def _methods_are_named(cls, given: Any) -> Any:
        found = given.get("methods")
        if isinstance(found, list):
            found = {spec: spec for spec in found}
        if isinstance(found, dict):
            entries = {k: {"algorithm": v} if isinstance(v, str) else v for k, v in found.items()}
            given = given | {"methods": entries}
        return given

    @model_validator(mode="after")
    def _names_are_known(self) -> "Study":
        for field, names in (("methods", self.methods), ("settings", self.settings)):
            if not names:
                raise BadValue(field, {}, "at least one")
        for name, setting in self.settings.items():
            where = f"settings.{name}"
            _check(f"{where}.section", [setting.section] if setting.section else [], self.sections)
            used = (run.method or key for key, run in setting.runs.items())
            _check(f"{where}.runs", used, self.methods)
        _check("table.published", self.table.published, self.table.columns)
        _check("table.across", [self.table.across] if self.table.across else [], self.vary)
        if self.choices and not self.variants:
            raise BadValue("choices", list(self.choices), "none without variants")
        if self.tune and (self.vary or self.variants):
            raise BadValue("tune", "given", "a study without vary and variants")
        return self

    def __hash__(self) -> int:
        return id(self)  # one file is read once, and its tables cannot be hashed

    @property
    def presets(self) -> bool:
        """Whether its cells are presets, which are named without the study's name before them."""
        return bool(self.variants) and self.file == self.name

    @property
    def forms(self) -> list[str]:
        """The readings of what was published; the first is the usual one."""
        return list(self.variants) or ["run"]

    def section_of(self, setting: str) -> tuple[str, str]:
        """The section that a setting belongs to, and that section's title."""
        found = self.settings[setting]
        if found.section:
            return found.section, self.sections[found.section]
        return setting, found.title or setting


def _check(field: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown_name(field, name, known)


def shipped() -> list[str]:
    """The studies that come with Parley."""
    folder = resources.files(__package__).joinpath("studies")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir())


@cache
def named(name: str) -> Study:
    """One of the studies that come with Parley."""
    folder = resources.files(__package__).joinpath("studies")
    with resources.as_file(folder.joinpath(f"{name}.toml")) as path:
        return read(path).model_copy(update={"file": name})


def find(name: str, setting: str | None = None) -> tuple[Study, str]:
    """The study that a command means, and the part of it: a study's name, a file, or the name of
    a preset, which is one of the paper's unless it begins with the name of another study."""
    if name.endswith(".toml"):
        return read(Path(name)), setting or ""
    first = name.partition("/")[0]
    if name in shipped():
        return named(name), setting or ""
    if setting is not None:
        raise BadValue("setting", setting, "none, since NAME is a preset, not a study")
    study = named(first if first in shipped() else "paper")
    return study, "" if name == "all" else name


def read(path: Path) -> Study:
    """The study in a file; an error says which entry is wrong, and what would be right."""
    found = read_file(path, "study")
    try:
        usual = {"name": path.stem, "file": str(path), "out": f"results-{path.stem}"}
        return Study.model_validate(usual | found)
    except ValidationError as error:
        refused = _in_words(error)
    except BadValue as error:
        refused = error
    raise refused.saying(f"{path.name}: {refused}")


def _in_words(error: ValidationError) -> BadValue:
    """The first of pydantic's complaints, with the path of the entry."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    field = ".".join(place)
    if first["type"] == "extra_forbidden":
        known = _fields_at(place[:-1])
        near = nearest(place[-1], known)
        because = f"did you mean {near[0]!r}?" if near else "there is no such entry"
        return BadValue(field, first["input"], f"one of {', '.join(known)}", because)
    if first["type"] == "missing":
        return BadValue(field, None, "an entry of that name")
    message = first["msg"].removeprefix("Input should be ")
    return BadValue(field, first["input"], message)


def _fields_at(place: Iterable[str]) -> list[str]:
    """The names that the table at this place may have."""
    kind: Any = Study
    for part in place:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind_of(kind.model_fields[part])
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
    fields: Mapping[str, Any] = getattr(kind, "model_fields", {})
    return list(fields)
