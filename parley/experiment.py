"""What a run is: one validated description, to and from TOML."""

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
    model_validator,
)

from parley import algorithms, data_sizes, measures, models
from parley.algorithms import AS_RUN, Algorithm, AlgorithmKind
from parley.compute import losses, precision
from parley.data import partition as partitions
from parley.data.targets import CLASSES, IGNORED
from parley.errors import BadValue, unknown_name
from parley.files import (
    SMALL,
    Unreadable,
    anchored,
    check_option,
    check_text,
    parse_toml,
    read_text,
)
from parley.graphs import MOST_AGENTS, stated_agents
from parley.models.adapters import parse_lora
from parley.schedule import parse_schedule
from parley.stopping import parse_stop
from parley.user_code import is_code
from parley.validation import Checked, first_error

ALGORITHM_OPTIONS = sorted({f for a in algorithms.WITH_OPTIONS.values() for f in a.options()})
"""Every hyper-parameter that some algorithm has."""

VARIANTS = ("as-printed", "as-run")

OWN = "own"
"""As `data` or `partition`: each agent's host says where its data are."""

MANY = 1_000_000
"""Epochs, samples of a batch: more than anybody waits for."""
LEAST_RATE, MOST_RATE = 1e-20, 1_000_000
"""Learning rates that float32 can tell from nothing, and does not overflow with."""
MOST_SEED = 2**63 - 1
YEAR = 31_536_000
"""Seconds."""
HOW = frozenset(
    {
        *("data_root", "workers", "engine", "device", "threads", "on_failure", "patience"),
        *("suspicious", "checkpoint_every", "keep"),
    }
)
"""Fields that affect how a run is executed, not what it computes: they may change on resuming."""

BY_CLASS = ("skew", "dirichlet", "classes")
"""Partitions that need one class for each sample."""

LENGTH = frozenset({"epochs", "stop_when"})
"""Fields that determine how long a run lasts: a resumed run may be extended."""


class Experiment(Checked, BaseModel):
    """Everything that determines a run.

    >>> experiment = Experiment.of(algorithm="ngc", alpha=0.0, agents=4)
    >>> experiment.algorithm.label, experiment.topology
    ('NGC α=0', 'ring')
    >>> Experiment.from_toml(experiment.to_toml()) == experiment
    True
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    data: str = "digits"
    """A dataset by name (parley data lists them), by its hub ID owner/name, or as a folder; or own:
    each host specifies its agents' data."""
    data_options: dict[str, int | float | str | bool] = {}
    """Options of the dataset, for example length = 64 or tokenizer = "folder"."""
    model: str = "mlp"
    """Network: logistic, mlp, lenet5, cnn5, vgg11, resnet20, resnet18, mobilenetv2, bert-mini,
    distilbert, hf:FOLDER, or your own as module:function."""
    model_options: dict[str, int | float | str | bool] = {}
    """Options of the network, for example hidden = 64 or evonorm = "s0"."""
    task: str = measures.CLASSIFICATION
    """The kind of problem: classification, binary (one or two logits), multilabel, regression,
    segmentation (a class for each pixel), language-model (the next token), or own, with your own
    loss, for which the loss itself may stand: module:function."""
    loss: str = losses.AUTO
    """The loss: auto, the task's default; for regression also mse, mae or huber; or your own
    function of (outputs, targets), as module:function."""
    metrics: str = ""
    """Metrics, comma-separated, for example f1,auroc or rmse,r2, or your own function as
    module:function, with :lower at the end if lower is better. The first metric decides which model
    is better. By default, accuracy or the usual metrics of the task."""
    class_weights: str = ""
    """How much each class counts in the loss, for example 1,5; or balanced: rarer classes count
    more."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """The share of each target that is spread over all classes."""
    ignore_index: int = Field(IGNORED, ge=-1_000_000, le=1_000_000)
    """Pixels or tokens with this target do not count, in segmentation and language models."""
    agents: int = Field(10, ge=1, le=MOST_AGENTS)
    """Number of agents."""
    topology: str = "ring"
    """The communication graph: name or name:arguments, for example circulant:1,5 or
    file:graph.txt."""
    weights: str = "auto"
    """Mixing weights: uniform, metropolis, sinkhorn, push, or auto."""
    partition: str = "skew:1"
    """How samples are split: iid, skew:S, dirichlet:A, classes:K, quantity:B, column:NAME,
    feature:noise=S, feature:contrast=S, feature:rotation, file:PATH, or own (each host has its own
    data)."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the training samples to use, equal for every class."""
    validation: float = Field(0.0, ge=0, lt=1)
    """Share of the training samples, equal for every class, that is held out and used instead of
    the test set, for choosing settings."""
    test_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the test samples to evaluate on, the same samples for every seed."""
    algorithm: SerializeAsAny[Algorithm] = algorithms.NGC()
    """The optimizer and its hyper-parameters; or parts joined by +, such as ngc+qgm."""
    epochs: int = Field(20, ge=1, le=MANY)
    """Passes over the data, by default those of the agent with the most samples."""
    epoch_length: Literal["largest", "smallest"] = "largest"
    """The agent whose data are passed over once in an epoch: the one with the most samples, or the
    one with the fewest. Other agents repeat samples, or do not use all of them."""
    steps_per_epoch: int | None = Field(None, ge=1, le=MANY)
    """Steps per epoch, regardless of how many samples the agents have."""
    max_steps: int | None = Field(None, ge=1, le=MANY * 1000)
    """Ends the run after this many steps, even if it has epochs left."""
    objective: Literal["equal", "size"] = "equal"
    """The loss that the agents minimise together: equal, the mean over agents; or size, the mean
    over samples, so that an agent with more data counts more."""
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    """How an agent draws its batches: shuffled, each sample once per pass; or balanced, every class
    that it has equally often."""
    batch: int = Field(32, ge=1, le=MANY)
    """Batch size of each agent."""
    lr: float = Field(0.1, ge=LEAST_RATE, le=MOST_RATE)
    """η, the learning rate."""
    lr_decay: str = "constant"
    """How the learning rate changes: constant, step (times 0.1 at 50 % and 75 % of the epochs),
    step:0.1,0.5,0.75, exponential:0.981 (after every epoch), cosine or linear (in every step, down
    to 0 or to=0.01); each with a warm-up, for example cosine:warmup=5."""
    gamma_decay: str = "constant"
    """How the averaging rate γ changes, written like lr_decay."""
    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Seed of all random choices."""
    evaluate_every: int | None = Field(None, ge=1, le=MANY)
    """Epochs between records; the last epoch always has one. By default, the averaged model is
    evaluated after every epoch; the agents' own models are too if that is little work, and
    otherwise only as often as keeps evaluation to about a tenth of the time, but at least every
    50 epochs and at the end."""
    stop_when: str = ""
    """Ends the run early, after the first record that meets one of these comma-separated
    conditions: for example accuracy>=0.9, loss:patience=5 (no improvement for 5 records),
    seconds>=600 or megabytes>=50."""
    gossip_rounds: int = Field(51, ge=0, le=100_000)
    """Extra gossip rounds before the accuracy "after gossip" is measured (51: as run)."""
    bias_norms: Literal["off", "printed", "run"] = "off"
    """Also record the norms of NGC's bias terms ε and ω: printed, the norm of the mean over
    neighbours; run, the mean over neighbours of ‖·‖₁/d."""
    links: str = ""
    """A simulated network, for example delay=0.05,bandwidth=10M,drop=0.01 or file:links.toml;
    records then include the time that the run would take on it."""
    init: str = ""
    """Weights to start from: a .safetensors file, the folder of a complete run, or hf: and a folder
    or hub ID. Tensors that do not fit the model are listed and not loaded."""
    lora: str = ""
    """Low-rank adapters: only they are trained and sent; the network's own weights are frozen. For
    example r=8,alpha=16,targets=q_proj,v_proj; also dropout=0.05, targets=all-linear, and
    train=classifier for parts that are trained in full."""
    buffers: Literal["local", "mixed"] = "local"
    """Running statistics of BatchNorm layers: local, each agent keeps its own; or mixed, they are
    sent and averaged along with the models."""
    start_agent: int = Field(0, ge=0, lt=MOST_AGENTS)
    """Agent whose initial model all agents start from."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of parameters and messages."""
    precision: Literal["full", "bf16"] = "full"
    """What torch multiplies with: full, the numbers of dtype; or bf16, bfloat16 in the network's
    products (autocast), while parameters, losses, messages and sums stay float32."""
    data_root: str | None = None
    """Folder with local copies of datasets, laid out as on the hub (owner/name)."""
    workers: int = Field(1, ge=1, le=10_000)
    """Processes that share the agents. By default one per core, or only one if the network is small
    or has compiled kernels, which use all cores by themselves."""
    engine: str = "auto"
    """How gradients are computed: fused (compiled), stacked (dense layers of all agents at once),
    vmap, loop, or auto: the fastest that fits, found by a short trial."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, …"""
    threads: int | None = Field(None, ge=1, le=1024)
    """Threads of each worker. By default, compiled kernels use one per core, and everything else
    uses one, because more threads rarely pay off."""
    on_failure: Literal["stop", "heal"] = "stop"
    """What the others do when a peer (parley join) dies or stops responding: stop, or heal, which
    continues without it. Workers of parley train always stop, and torchrun can restart them."""
    patience: float = Field(600.0, ge=0.1, le=YEAR)
    """Seconds after which an unresponsive worker is considered lost, also at the start."""
    suspicious: Literal["warn", "stop", "drop"] = "warn"
    """What to do if an agent of another host sends a message that no honest agent would: warn,
    stop, or, with on_failure heal, drop its peer and continue. The workers of one command trust
    each other."""
    checkpoint_every: int = Field(1, ge=1, le=MANY)
    """Epochs between checkpoints; the last epoch always has one."""
    keep: int = Field(2, ge=1, le=MANY)
    """How many of the newest checkpoints are kept."""
    from_python: tuple[
        Literal["model", "data", "loss", "metrics", "lr_decay", "gamma_decay"], ...
    ] = ()
    """What came from a Python program, which alone can repeat the run: it cannot be stored."""

    @classmethod
    def of(cls, **options: Any) -> "Experiment":
        """From plain options; hyper-parameters of the algorithm may be among them.

        ``variant="as-run"`` sets every choice in which the NGC authors' code differs from their
        paper to the code's, ``"as-printed"`` to the paper's; explicit options override it.

        >>> Experiment.of(algorithm="cga", momentum=0.9, variant="as-run").algorithm.qp_floor
        0.5
        """
        flat = flatten(options)
        algorithm = flat.pop("algorithm", cls.model_fields["algorithm"].default.kind)
        variant = flat.pop("variant", None)
        if variant not in (None, *VARIANTS):
            raise unknown_name("variant", str(variant), VARIANTS)
        if variant == "as-run":
            flat = algorithm.choices_as_run() | flat
        own_model = "model" in _list(flat.get("from_python", ()))
        model = flat.get("model", "mlp")
        if not isinstance(model, str):
            raise BadValue("model", model, ", ".join(models.MODELS))
        if variant and not own_model and "evonorm" in models.options(model):
            evonorm = "hard-swish" if variant == "as-run" else "s0"
            flat["model_options"] = {"evonorm": evonorm, **flat.get("model_options", {})}
        if flat.get("data") == OWN:
            flat.setdefault("partition", OWN)
        elif flat.get("task", measures.CLASSIFICATION) not in CLASSES:
            flat.setdefault("partition", "iid")
        if is_code(str(task := flat.get("task"))):  # short for the task own, and this loss
            if flat.get("loss", losses.AUTO) not in (losses.AUTO, task):
                raise BadValue("loss", flat["loss"], "none: the task is a loss already")
            flat |= {"task": OWN, "loss": task}
        if "loss" in _list(flat.get("from_python", ())):
            flat["loss"] = OWN
        if "agents" not in flat and isinstance(flat.get("topology"), str):
            stated = stated_agents(flat["topology"])
            flat |= {"agents": stated} if stated else {}
        _check_own(algorithm)
        names = {*ALGORITHM_OPTIONS, *algorithm.options()}
        inner = {name: flat.pop(name) for name in list(flat) if name in names}
        for name in flat:
            if name not in cls.model_fields:
                written = {*cls.model_fields, *names, "variant"} - {"from_python"}
                raise unknown_name("option", name, written)
        try:
            return cls(**flat, algorithm=algorithms.make(algorithm, inner))
        except ValidationError as error:
            raise first_error(error, cls.model_fields) from None

    @field_serializer("algorithm")
    def _with_name(self, value: Algorithm) -> dict[str, Any]:
        return {"name": value.name, **value.settings()}

    @model_validator(mode="after")
    def _texts_and_options_are_bounded(self) -> "Experiment":
        for name, value in self:
            if isinstance(value, str):
                check_text(name, value)
            elif isinstance(value, dict):
                for option, of_it in value.items():
                    check_option(f"{name}.{option}", of_it)
        return self

    @model_validator(mode="after")
    def _specs_are_known(self) -> "Experiment":
        for field in ("lr_decay", "gamma_decay"):
            self._check_schedule(field, getattr(self, field))
        if self.gamma_decay != "constant" and (why := self.algorithm.fixed_rate):
            raise BadValue("gamma_decay", self.gamma_decay, "constant for this algorithm", why)
        precision.check_fits(self.precision, self.dtype, self.engine)
        self._check_task()
        if self.lora:
            parse_lora(self.lora)
        parse_stop(self.stop_when, self.measures, bool(self.links))
        if self.partition != OWN:
            partitions.parse(self.partition)
        lengths = (self.epoch_length, self.steps_per_epoch, self.max_steps)
        data_sizes.check(self.algorithm, self.task, self.objective, self.sampling, *lengths)
        if self.start_agent >= self.agents:
            raise BadValue("start_agent", self.start_agent, f"0 to {self.agents - 1}")
        if self.suspicious == "drop" and self.on_failure != "heal":
            valid = "warn or stop; or drop together with --on-failure heal"
            raise BadValue("suspicious", "drop", valid, "the others would not continue without it")
        return self

    @property
    def measures(self) -> tuple[measures.Measure, ...]:
        """What is measured; the first metric decides which model is better."""
        return measures.parse(self.task, self.metrics)

    def _check_task(self) -> None:
        found = self.measures
        if self.task == OWN and not found and "metrics" not in self.from_python:
            valid = "at least one function of (outputs, targets), as module:function"
            raise BadValue("metrics", self.metrics, valid, "the task own has no default metrics")
        named = [measure.name for measure in found if measure.name not in measures.KNOWN]
        unnamed = [m.name for m in found if m.name in named and not m.function]
        if unnamed and "metrics" not in self.from_python:
            raise BadValue("metrics", unnamed[0], "your own function, as module:function")
        own = is_code(self.loss) or self.loss == OWN
        if not own:
            losses.named_loss(self.task, self.loss, losses.Settings())
        elif self.loss == OWN and "loss" not in self.from_python:
            raise BadValue("loss", OWN, "your own function, as module:function")
        losses.check_settings(self.task, own, self.class_weights, self.label_smoothing)
        if self.ignore_index != IGNORED and self.task not in (*measures.EACH_PLACE, OWN):
            because = f"the task {self.task} has neither pixels nor tokens"
            raise BadValue("ignore_index", self.ignore_index, str(IGNORED), because)
        losses.parse_weights(self.class_weights)
        if self.algorithm.needs_accuracy and self.task not in measures.KNOWN["accuracy"].tasks:
            listed = ", ".join(measures.KNOWN["accuracy"].tasks)
            because = f"{self.algorithm.name} compares accuracies"
            raise BadValue("task", self.task, listed, because)
        kind = self.partition.partition(":")[0]
        if kind in BY_CLASS and self.task not in CLASSES:
            valid = "iid, quantity:B, column:NAME, feature:F, file:PATH, or own"
            because = f"in the task {self.task} a sample does not have one class"
            raise BadValue("partition", self.partition, valid, because)

    def _check_schedule(self, field: str, spec: str) -> None:
        if field in self.from_python:
            if spec != OWN:
                raise BadValue(field, spec, OWN, "a Python function was given")
            return
        schedule = parse_schedule(spec, field)
        if schedule.warmup > self.epochs:
            because = f"the warm-up is longer than the run of {self.epochs} epochs"
            raise BadValue(field, spec, f"warmup up to {self.epochs}, or more epochs", because)
        last = schedule.last_factor(self.epochs)
        if field == "gamma_decay" and schedule.grows:
            raise BadValue(field, spec, "a factor of 1 or less", "γ would grow beyond its value")
        if field == "lr_decay" and self.lr * last > MOST_RATE:
            because = f"the learning rate would grow beyond {MOST_RATE}"
            raise BadValue(field, spec, "a decay", because)
        if not last:
            because = f"within {self.epochs} epochs the rate would fall to 0"
            raise BadValue(field, spec, "a factor closer to 1, or fewer epochs", because)

    def to_toml(self) -> str:
        """Every field, defaults included."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    @classmethod
    def from_toml(
        cls, text: str, where: str = "experiment", own: AlgorithmKind | None = None
    ) -> "Experiment":
        """From TOML; see `read_toml`. `own` is as in `with_own`."""
        return cls.of(**with_own(read_toml(text, where), own))

    def same_as(self, other: "Experiment") -> list[str]:
        """Fields in which what is computed differs; empty if one may resume the other, perhaps for
        longer."""
        mine, theirs, free = self.model_dump(), other.model_dump(), HOW | LENGTH
        if {self.evaluate_every, other.evaluate_every} == {None, 1}:
            free |= {"evaluate_every"}  # 1 was the default, which older folders have in writing
        return [name for name in mine if name not in free and mine[name] != theirs[name]]

    def replace(self, **changes: Any) -> "Experiment":
        """The same with some options changed, by the rules of `on_top`."""
        mine = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).of(**on_top(mine, changes))


def flatten(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the algorithm as its kind and its hyper-parameters among them.

    >>> flat = flatten({"algorithm": {"name": "ngc", "alpha": 0.5}, "lr": 0.1})
    >>> flat.pop("algorithm").title, flat
    ('NGC', {'alpha': 0.5, 'lr': 0.1})
    """
    flat = dict(options)
    chosen = flat.pop("algorithm", None)
    inner: dict[str, Any] = {}
    if isinstance(chosen, Algorithm):
        inner = chosen.settings(given=True)
        chosen = chosen.kind
    elif isinstance(chosen, Mapping):  # a table of TOML
        inner = dict(chosen)
        chosen = inner.pop("name", None)
        if "algorithm" in inner:
            raise BadValue("algorithm", inner["algorithm"], 'its name as name = "ngc"')
    if isinstance(chosen, type) and issubclass(chosen, Algorithm):
        inner = {"algorithm": chosen, **inner}
    elif chosen is not None:
        inner = {"algorithm": algorithms.find(str(chosen)), **inner}
    for field in ("model_options", "data_options"):
        if not isinstance(flat.get(field, {}), Mapping):
            raise BadValue(field, flat[field], "a table, for example hidden = 64")
    return inner | flat


def on_top(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Options overridden by others: flags over a file, changes over an experiment.

    A different algorithm keeps the hyper-parameters that it also has; a different model keeps none
    of the old one's; a variant resets the choices it covers.

    >>> sorted(on_top({"algorithm": "ngc", "alpha": 0, "momentum": 0.9}, {"algorithm": "cga"}))
    ['algorithm', 'momentum']
    """
    below, above = flatten(below), flatten(above)
    old, new = below.get("algorithm"), above.get("algorithm")
    if new and new != old:
        gone = {*ALGORITHM_OPTIONS, *(old.options() if old else ())} - set(new.options())
        below = {name: value for name, value in below.items() if name not in gone}
    if left := [name for name in below.pop("from_python", ()) if name not in above]:
        below["from_python"] = left
    network, source = below.pop("model_options", {}), below.pop("data_options", {})
    if "model" in below and above.get("model", below["model"]) != below["model"]:
        network = {}
    if "data" in below and above.get("data", below["data"]) != below["data"]:
        source = {}
    if "variant" in above:
        below = {name: value for name, value in below.items() if name not in AS_RUN}
        network = {name: value for name, value in network.items() if name != "evonorm"}
    network = {**network, **above.get("model_options", {})}
    source = {**source, **above.get("data_options", {})}
    tables = {"model_options": network, "data_options": source}
    return below | above | {name: table for name, table in tables.items() if table}


def with_own(options: Mapping[str, Any], own: AlgorithmKind | None) -> dict[str, Any]:
    """Options from a file, in which the name of the user's algorithm `own` stands for it. Only
    Parley's own algorithms can be found by name."""
    chosen = options.get("algorithm")
    if own and isinstance(chosen, Mapping) and chosen.get("name") == own.name:
        return {**options, "algorithm": {**chosen, "name": own}}
    return dict(options)


def _check_own(kind: AlgorithmKind) -> None:
    """Refuses a user's class whose runs would be read as those of a different algorithm."""
    for word in ("name", "title"):
        if not isinstance(getattr(kind, word, None), str):
            said = getattr(kind, "__name__", str(kind))
            raise BadValue("algorithm", said, f"a class with a {word}", f"it has no {word}")
    if isinstance(kind, type) and algorithms.ALGORITHMS.get(kind.name, kind) is not kind:
        because = "Parley has a different algorithm of that name"
        raise BadValue("algorithm", kind.name, "a name that no other algorithm has", because)


def _list(values: Any) -> tuple[Any, ...]:
    """A list of things, or nothing where it is none: pydantic will say so."""
    return tuple(values) if isinstance(values, list | tuple) else ()


def read_toml(text: str, where: str) -> dict[str, Any]:
    """Options from a TOML text."""
    if not text.strip():  # what a power cut may leave of a file, and not the default experiment
        raise BadValue("experiment", where, "a TOML file", "it is empty")
    try:
        return parse_toml(text)
    except Unreadable as error:
        raise BadValue("experiment", where, "a TOML file", str(error)) from None


def read_file(path: Path, field: str = "experiment") -> dict[str, Any]:
    """Options from a TOML file; paths in it are relative to that file. `field` is what errors call
    it."""
    try:
        found = read_toml(read_text(path, SMALL, pipe=True), str(path))
    except Unreadable as error:
        raise BadValue(field, str(path), "a TOML file", str(error)) from None
    return found | anchored(found, path.parent)
