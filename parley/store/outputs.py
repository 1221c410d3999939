"""The trained models, in files that need neither the run nor its checkpoints.

model.safetensors           the average of all agents' models
agents/agent-3.safetensors  the model of each agent hosted here
model.json                  how to build them, what they take, and what they answer
tokenizer.json              for models of text

The tensors have the names of the module's ``state_dict``.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from safetensors import SafetensorError
from torch import Tensor, nn

from parley.data import Transform
from parley.data.preparation import Expected, Preparation
from parley.data.tables import Form
from parley.errors import BadValue, NotWritten, shown
from parley.files import (
    SMALL,
    Unreadable,
    parse_json,
    read_text,
    sealed,
    write_atomically,
)
from parley.measures import LANGUAGE_MODEL
from parley.models import weights
from parley.models.architecture import MOST_AXES, Architecture
from parley.store.folder import CARD, MODEL, TOKENIZER, environment
from parley.training.from_python import architecture_of
from parley.training.trainer import Trainer
from parley.user_code import brief, check_allowed

MOST_VALUES = 1 << 28
"""Values of one input."""
Make = nn.Module | Callable[..., nn.Module]


class Input(BaseModel):
    """A model's inputs, and how they are prepared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: tuple[Annotated[int, Field(ge=1, le=MOST_VALUES)], ...] = Field(max_length=MOST_AXES)
    """Of one input."""
    dtype: Literal["uint8", "float32", "int32", "int64"]
    """Of raw inputs; uint8 is scaled to 0..1, and int32 and int64 are token IDs."""
    mean: tuple[FiniteFloat, ...] = ()
    """Per channel, subtracted after scaling; empty: nothing is."""
    std: tuple[Annotated[FiniteFloat, Field(gt=0)], ...] = ()
    """Per channel, by which the difference is divided."""
    resize: int = Field(0, ge=0, le=MOST_VALUES)
    """Images are scaled until their shorter side has this many pixels; 0: they must fit."""
    crop: int = Field(0, ge=0, le=MOST_VALUES)
    """Then their central square with this side is used."""
    tokenizer: str = ""
    """The file with the tokenizer, in this folder."""
    table: Form | None = None
    """How the columns of a table are encoded."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if math.prod(self.shape) > MOST_VALUES:
            raise ValueError(f"an input has more than {MOST_VALUES:,} values")
        if len(self.mean) != len(self.std) or len(self.mean) not in (0, 1, *self.shape[:1]):
            raise ValueError("mean and std are not those of the channels")
        return self


class Card(BaseModel):
    """``model.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    architecture: Architecture
    input: Input
    task: Literal[
        "classification",
        "binary",
        "multilabel",
        "regression",
        "segmentation",
        "language-model",
        "own",
    ] = "classification"
    """The task, which determines how outputs are read."""
    labels: tuple[str, ...]
    """Names of the classes, in the order of the model's outputs; numbers have their positions."""
    dtype: Literal["float32", "float64"]
    """Of the parameters."""
    average_of: tuple[int, ...] = Field(min_length=1)
    """The agents whose models ``model.safetensors`` is the average of."""
    versions: dict[str, str | None] = {}

    @classmethod
    def of(cls, run: Trainer) -> Self:
        """The card of a complete run."""
        problem, placement = run.problem, run.transport.placement
        raw = problem.test.inputs if len(problem.test) else problem.samples[0].inputs
        prepared, transform = problem.preparation, problem.transform
        known = environment()
        return cls(
            architecture=architecture_of(run.experiment, problem),
            input=Input(
                shape=tuple(raw.shape[1:]),
                dtype=str(raw.dtype).removeprefix("torch."),
                mean=transform.mean,
                std=transform.std,
                resize=prepared.resize,
                crop=prepared.crop,
                tokenizer=TOKENIZER if prepared.tokenizer else "",
                table=prepared.table,
            ),
            task=run.experiment.task,
            labels=problem.class_names,
            dtype=run.experiment.dtype,
            average_of=tuple(placement.numbers or range(placement.topology.agents)),
            versions={name: known[name] for name in ("parley", "commit", "python", "torch")},
        )

    def transform(self) -> Transform:
        """How inputs are normalised."""
        return Transform(self.input.mean, self.input.std)


def agent_file(agent: int) -> str:
    """Where the model of an agent is, below the folder of its run."""
    return f"agents/agent-{agent}.safetensors"


def write(path: Path, run: Trainer, mean_E: Tensor, keeper: bool) -> None:
    """Writes the hosted agents' models and, where records are kept, the average of all."""
    for agent, x_E in zip(run.transport.placement.hosted, run.now.models_AE, strict=True):
        _save(path / agent_file(agent), run.task.module(x_E))
    if not keeper:
        return
    if text := run.problem.preparation.tokenizer:
        write_atomically(path / TOKENIZER, text)
    _save(path / MODEL, run.task.module(mean_E))
    card = Card.of(run).model_dump(mode="json", exclude_none=True)
    write_atomically(path / CARD, sealed(card, indent=2) + "\n")


def _save(path: Path, module: nn.Module) -> None:
    try:
        weights.save(path, module.state_dict())
    except (OSError, SafetensorError) as error:
        raise NotWritten(f"out: {path} cannot be written ({error})") from None


def misfits(module: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """In which ways tensors do not fit a module, in words; none if they do.

    >>> misfits(nn.Linear(2, 1), {"weight": torch.zeros(1, 3), "slope": torch.zeros(1)})
    ['bias is only in the model', 'slope is only in the file',
     'weight has shape [1, 2] in the model and [1, 3] in the file']
    """
    mine = module.state_dict()
    found = [f"{name} is only in the model" for name in mine if name not in tensors]
    found += [f"{shown(name)} is only in the file" for name in tensors if name not in mine]
    for name, tensor in tensors.items():
        if name in mine and mine[name].shape != tensor.shape:
            shapes = f"{list(mine[name].shape)} in the model and {list(tensor.shape)} in the file"
            found.append(f"{name} has shape {shapes}")
    return found


class Trained:
    """The models of a complete run, as read from its folder."""

    def __init__(self, path: Path, card: Card) -> None:
        self.path = path
        self.card = card

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What the folder has, if it has a model."""
        if not os.path.lexists(path / CARD) or not os.path.lexists(path / MODEL):
            return None
        try:
            return cls(path, Card.model_validate(parse_json(read_text(path / CARD, SMALL))))
        except (Unreadable, ValidationError) as error:
            why = str(error)
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                where = ".".join(shown(part) for part in first["loc"])
                why = ": ".join(filter(None, [where, first["msg"]]))
            valid = "the folder of a run that this version understands"
            raise BadValue("run", str(path), valid, f"{CARD}: {why}") from None

    def module(
        self,
        agent: int | None = None,
        build: Make | None = None,
        allow_code: Collection[str] = (),
        remedy: str = "",
    ) -> nn.Module:
        """The average of all agents' models, or one agent's own, ready to be used."""
        tensors = self._tensors(agent)
        made = self.card.architecture
        if build is None and made.kind == "name" and not made.reads_weights:
            # Looked at before it is built: a file may ask for more memory than there is.
            with torch.device("meta"):
                self._check_fit(self._built(build, allow_code, remedy), tensors)
        module = self._built(build, allow_code, remedy).to(getattr(torch, self.card.dtype))
        self._check_fit(module, tensors)
        module.load_state_dict(tensors)
        return module.eval()

    def _check_fit(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        if strange := misfits(module, tensors):
            more = f", and {len(strange) - 1} more" * (len(strange) > 1)
            name = self.card.architecture.model
            raise BadValue("model", name, "the model that was trained", f"{strange[0]}{more}")

    def _built(self, build: Make | None, allow_code: Collection[str], remedy: str) -> nn.Module:
        made = self.card.architecture
        if build is not None:
            from parley.training.from_python import builder_of

            return builder_of(build)()
        if made.kind == "python":
            valid = "model(build) with the nn.Module that was trained"
            raise BadValue("model", made.model, valid, "a Python program gave it")
        if made.kind == "code":
            module = made.model.partition(":")[0]
            allowed = [allow_code] if isinstance(allow_code, str) else allow_code
            check_allowed(made.model, allowed, remedy or f"model(allow_code={module!r})")
        try:
            return made.build()
        except (ArithmeticError, RuntimeError, TypeError, ValueError, MemoryError) as error:
            why = f"{CARD}: {brief(error)}"
            raise BadValue("model", made.model, "a model that can be built", why) from error

    def _tensors(self, agent: int | None) -> Mapping[str, Tensor]:
        path = self.path / (MODEL if agent is None else agent_file(agent))
        if agent is not None and not os.path.lexists(path):
            held = sorted(
                int(file.stem.removeprefix("agent-"))
                for file in self.path.glob("agents/agent-*.safetensors")
                if file.stem.removeprefix("agent-").isdecimal()
            )
            valid = f"one of {', '.join(map(str, held))}" if held else "none"
            raise BadValue("agent", agent, valid, "only agents hosted here have their models here")
        try:
            tensors = weights.load(path)
        except (OSError, SafetensorError, ValueError, MemoryError) as error:
            why = f"{path.name}: {shown(error, 200)}"
            raise BadValue("run", str(self.path), "a run whose files are intact", why) from None
        return tensors

    def expected(self, resize: bool = False) -> Expected:
        """What the models take; `resize`: images of any size are scaled and cropped to fit."""
        about = self.card.input
        text = ""
        if about.tokenizer:
            try:
                text = read_text(self.path / TOKENIZER)
            except Unreadable as error:
                valid = f"a run with {TOKENIZER}"
                raise BadValue("run", str(self.path), valid, str(error)) from None
        side, crop = about.resize, about.crop
        if resize and not side:
            if len(about.shape) != 3 or about.shape[1] != about.shape[2]:
                because = f"the inputs have shape {list(about.shape)}"
                raise BadValue("resize", True, "for models of square images only", because)
            side = crop = about.shape[1]
        shorter = self.card.task == LANGUAGE_MODEL and len(about.shape) == 1
        how = Preparation(side, crop, text, about.table)
        return Expected(about.shape, about.dtype, how, shorter)


def found(path: Path) -> Trained:
    """The models of a complete run; refuses a folder that has none."""
    trained = Trained.read(path)
    if trained is None:
        valid = "the folder of a complete run"
        raise BadValue("run", str(path), valid, f"it has no {CARD} and {MODEL}")
    return trained
