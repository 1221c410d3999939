"""What a run is: one validated description, in and out of TOML."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from parley import algorithms
from parley.algorithms import AS_RUN, Algorithm
from parley.errors import BadValue, ParleyError, first_error, unknown_name
from parley.schedule import parse_decay

ALGORITHM_OPTIONS = sorted({f for a in algorithms.ALGORITHMS.values() for f in a.model_fields})
"""Every hyper-parameter that some algorithm has."""

HOW = frozenset({"data_root", "workers", "engine", "device", "threads"})
"""Fields that say how a run is carried out, not what it computes: they may change on resuming."""


class Experiment(BaseModel):
    """Everything that determines a run.

    >>> experiment = Experiment.of(algorithm="ngc", alpha=0.0, agents=4)
    >>> experiment.algorithm.label, experiment.topology
    ('NGC α=0', 'ring')
    >>> Experiment.from_toml(experiment.to_toml()) == experiment
    True
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    data: str = "digits"
    """Dataset: digits, fashion_mnist, cifar10, a hub id owner/name, or a folder."""
    model: str = "mlp"
    """Network: mlp, logistic, lenet5, cnn5."""
    model_options: dict[str, int | float | str | bool] = {}
    """Options of the network, for example hidden = 64 or evonorm = "s0"."""
    agents: int = Field(10, ge=1)
    """Number of peers."""
    topology: str = "ring"
    """Who talks with whom: name or name:arguments, for example circulant:1,5 or file:graph.txt."""
    weights: str = "auto"
    """Mixing weights: uniform, metropolis, sinkhorn, or auto."""
    partition: str = "skew:1"
    """Who holds what: iid, skew:S, dirichlet:A, classes:K or file:PATH."""
    algorithm: SerializeAsAny[Algorithm] = algorithms.NGC()
    """The optimizer and its hyper-parameters."""
    epochs: int = Field(20, ge=1)
    """Passes over the data (of the agent that has most)."""
    batch: int = Field(32, ge=1)
    """Samples of a batch, for each agent."""
    lr: float = Field(0.1, gt=0)
    """η, the learning rate."""
    lr_decay: str = "constant"
    """constant, step (times 0.1 at 50 % and 75 % of the epochs), step:0.1,0.5,0.75, or
    exponential:0.981 (after every epoch)."""
    seed: int = Field(0, ge=0)
    """Everything random follows from it."""
    evaluate_every: int = Field(1, ge=1)
    """Epochs from one record to the next; the last epoch always has one."""
    gossip_rounds: int = Field(51, ge=0)
    """Further gossip rounds before the accuracy "after gossip" is taken (51: as run)."""
    bias_norms: Literal["off", "printed", "run"] = "off"
    """Also record the norms of NGC's bias terms ε and ω: of the mean over neighbours as printed,
    or as run the mean over neighbours of ‖·‖₁/d."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of parameters and messages."""
    data_root: str | None = None
    """Folder with local copies of datasets, laid out as on the hub (owner/name)."""
    workers: int = Field(1, ge=1)
    """Processes that share the agents."""
    engine: str = "auto"
    """How gradients are computed: loop, vmap, or auto."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, …"""
    threads: int = Field(1, ge=1)
    """Threads of each worker; more than one rarely pays for small models."""

    @classmethod
    def of(cls, **options: Any) -> "Experiment":
        """From plain options; hyper-parameters of the algorithm may stand among the others.

        ``variant="as-run"`` sets every choice in which the NGC authors' code differs from their
        paper to the code's, ``"as-printed"`` to the paper's; options given beside it win.
        """
        inner = {name: options.pop(name) for name in ALGORITHM_OPTIONS if name in options}
        variant = options.pop("variant", None)
        chosen = options.get("algorithm", cls.model_fields["algorithm"].default)
        if isinstance(chosen, str):
            chosen = {"name": chosen}
        if isinstance(chosen, Mapping):
            options["algorithm"] = _with_variant(variant, {**chosen, **inner})
        elif inner or variant:
            options["algorithm"] = _with_variant(
                variant, {"name": chosen.name, **chosen.model_dump(exclude_unset=True), **inner}
            )
        if variant and options.get("model") == "cnn5":
            evonorm = "hard-swish" if variant == "as-run" else "s0"
            options["model_options"] = {"evonorm": evonorm, **options.get("model_options", {})}
        try:
            return cls(**options)
        except ValidationError as error:
            unknown = next((e for e in error.errors() if e["type"] == "extra_forbidden"), None)
            if unknown:
                names = [*cls.model_fields, *ALGORITHM_OPTIONS, "variant"]
                raise unknown_name("option", str(unknown["loc"][0]), names) from None
            raise first_error(error, cls.model_fields) from None

    @field_validator("algorithm", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            options = dict(value)
            return algorithms.build(str(options.pop("name", "")), options)
        return value

    @field_serializer("algorithm")
    def _with_name(self, value: Algorithm) -> dict[str, Any]:
        return {"name": value.name, **value.model_dump()}

    @model_validator(mode="after")
    def _decay_is_known(self) -> "Experiment":
        parse_decay(self.lr_decay)
        return self

    def to_toml(self) -> str:
        """Every field, defaults included."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    @classmethod
    def from_toml(cls, text: str, where: str = "experiment") -> "Experiment":
        """From TOML; see `read_toml`."""
        return cls.of(**read_toml(text, where))

    def same_as(self, other: "Experiment") -> list[str]:
        """Fields in which what is computed differs; empty if one may resume the other."""
        mine, theirs = self.model_dump(), other.model_dump()
        return [name for name in mine if name not in HOW and mine[name] != theirs[name]]

    def replace(self, **changes: Any) -> "Experiment":
        """The same with some fields changed."""
        return type(self).of(
            **({name: getattr(self, name) for name in self.model_fields_set} | changes)
        )


def read_toml(text: str, where: str) -> dict[str, Any]:
    """Options from a TOML text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ParleyError(f"{where}: not valid TOML: {error}") from None


def read_file(path: Path) -> dict[str, Any]:
    """Options from a TOML file."""
    if not path.is_file():
        raise BadValue("experiment", str(path), "a TOML file that exists")
    return read_toml(path.read_text(encoding="utf-8"), str(path))


def _with_variant(variant: str | None, options: dict[str, Any]) -> dict[str, Any]:
    if variant not in (None, "as-printed", "as-run"):
        raise unknown_name("variant", str(variant), ["as-printed", "as-run"])
    known = algorithms.ALGORITHMS.get(str(options.get("name")))
    if variant == "as-run" and known:
        return {n: v for n, v in AS_RUN.items() if n in known.model_fields} | options
    return options
