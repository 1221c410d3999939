"""Using a trained model: its predictions, and its export to other formats.

Axes: n inputs, C scores that the model gives, h w rows and columns of pixels.
"""

import json
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parley.data.images import save_grey
from parley.data.tables import Form
from parley.errors import BadValue, ParleyError, needed
from parley.files import make_folder, replacing
from parley.measures import (
    BINARY,
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTILABEL,
    OWN,
    REGRESSION,
    SEGMENTATION,
    TASKS,
)
from parley.store.outputs import Card
from parley.user_code import brief

ANSWERED = tuple(task for task in TASKS if task != OWN)
"""Tasks whose outputs can be read."""
MOST_GREY = 255
CHUNK = 256
"""Inputs in one batch."""
NEAR = 1e4
"""Deviations from zero at which single precision begins to blur a column."""
OUTPUTS = {
    CLASSIFICATION: "scores; softmax makes probabilities of the classes of them",
    BINARY: "scores; sigmoid of one score, or softmax of two, is the probability of the last class",
    MULTILABEL: "scores; sigmoid makes the probability of each class of them",
    REGRESSION: "numbers",
    SEGMENTATION: "scores of the classes of each pixel; the largest is the class",
    LANGUAGE_MODEL: "scores of the next token after each position",
    OWN: "what the model returns",
}
FORMATS: dict[str, str] = {"onnx": ".onnx", "torch-export": ".pt2"}
"""Export formats, and the suffixes of their files."""
ABOUT = "about.json"
"""What a file for `torch.export` says about the model, among its extra files."""


class Prepared(nn.Module):
    """A model with its preparation inside: raw inputs in, scores out."""

    factor: Tensor
    shift: Tensor

    def __init__(self, module: nn.Module, card: Card) -> None:
        super().__init__()
        self.module = module
        self.encoded = Encoded(card.input.table) if card.input.table else None
        self.tokens = card.input.dtype in ("int32", "int64")
        self.dtype = getattr(torch, card.dtype)
        scale = 1 / 255 if card.input.dtype == "uint8" else 1.0
        mean, std = card.input.mean or (0.0,), card.input.std or (1.0,)
        mean_C, std_C = (torch.tensor(v, dtype=torch.float64) for v in (mean, std))
        axes = (-1, *[1] * max(0, len(card.input.shape) - 1)) if card.input.mean else ()
        self.register_buffer("factor", (scale / std_C).to(self.dtype).reshape(axes))
        self.register_buffer("shift", (mean_C / std_C).to(self.dtype).reshape(axes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of raw inputs, as images, tables or arrays hold them; of token IDs for text."""
        if self.encoded is not None:
            inputs = self.encoded(inputs)
        if self.tokens:
            scores: Tensor = self.module(inputs.to(torch.int64))
        else:
            scores = self.module(inputs.to(self.dtype) * self.factor - self.shift)
        return scores


class Encoded(nn.Module):
    """What `Form.inputs` makes of rows, in which texts are the numbers of their values."""

    column_f: Tensor
    value_f: Tensor
    mean_f: Tensor
    std_f: Tensor
    count_f: Tensor

    def __init__(self, form: Form) -> None:
        super().__init__()
        each = [
            (place, value, column.mean, column.std, len(column.values))
            for place, column in enumerate(form.columns)
            for value in range(len(column.values) or 1)
        ]
        names = ("column_f", "value_f", "mean_f", "std_f", "count_f")
        for name, values in zip(names, zip(*each, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        self.column_f = self.column_f.long()

    def forward(self, rows_nc: Tensor) -> Tensor:
        """Inputs [n, f]; NaN for a number that no value of a column of text has."""
        cells_nf = rows_nc.double()[:, self.column_f]
        known_nf = (cells_nf == cells_nf.floor()) & (cells_nf >= 0) & (cells_nf < self.count_f)
        hot_nf = torch.where(known_nf, (cells_nf == self.value_f).double(), math.nan)
        numbers_nf = (cells_nf - self.mean_f) / self.std_f
        return torch.where(self.count_f > 0, hot_nf, numbers_nf).float()


def raw_type(card: Card) -> str:
    """The type of raw inputs. Rows of tables are in double precision where a column's values
    differ by too little for single precision."""
    form = card.input.table
    fine = form and any(abs(c.mean) > NEAR * c.std for c in form.columns if not c.values)
    return "float64" if fine else card.input.dtype


def described(card: Card) -> dict[str, str]:
    """What other programs must know about an exported model: sentences, and JSON lists."""
    about, form = card.input, card.input.table
    said = [f"{raw_type(card)}, any number of inputs of shape {list(raw_shape(card))}"]
    if form is not None:
        said.append("the columns in this order, as the table has them")
        if any(column.values for column in form.columns):
            said.append("in place of a text, its number in the column's list of values, from 0")
    elif about.dtype == "uint8":
        said.append("pixels from 0 to 255, channels before rows before columns")
    elif about.dtype in ("int32", "int64"):
        said.append(
            "token IDs" + f", which {about.tokenizer} makes of texts" * bool(about.tokenizer)
        )
    if about.resize or about.crop:
        scale = f"scale the shorter side to {about.resize}, then " * bool(about.resize)
        square = f"crop the central square of {about.crop or about.resize} pixels"
        said.append(f"prepare images as the run did: {scale}{square}")
    found = {"task": card.task, "input": "; ".join(said), "output": OUTPUTS[card.task]}
    if form is not None:
        found["columns"] = json.dumps(form.names)
        found["values"] = json.dumps({c.name: c.values for c in form.columns if c.values})
    named = "outputs" if card.task == REGRESSION else "classes"
    return {**found, named: json.dumps(card.labels), "versions": json.dumps(card.versions)}


def raw_shape(card: Card) -> tuple[int, ...]:
    """The shape of one raw input: a row has one value per column."""
    return (len(card.input.table.columns),) if card.input.table else card.input.shape


class Answer(NamedTuple):
    """A model's prediction for one input."""

    input: str
    label: str
    """The likeliest class, or the likeliest next token; in a multilabel task every label above one
    half, comma-separated; in a segmentation the class of most pixels."""
    probabilities: dict[str, float]
    """Of each class or next token, the likeliest first; empty for a regression or segmentation."""
    numbers: dict[str, float] | None = None
    """The numbers that a regression predicts."""
    shares: dict[str, float] | None = None
    """The share of the pixels that each class has in a segmentation, the largest first."""
    mask: NDArray[np.int64] | None = None
    """The class of each pixel in a segmentation, [h, w]."""

    def described(self) -> dict[str, Any]:
        """For JSON."""
        if self.numbers:
            return {"input": self.input, "numbers": self.numbers}
        if self.shares:
            return {"input": self.input, "label": self.label, "shares": self.shares}
        return {"input": self.input, "label": self.label, "probabilities": self.probabilities}


@torch.no_grad()
def answers(
    module: nn.Module, card: Card, names: Sequence[str], raw: Tensor, top: int | None = None
) -> list[Answer]:
    """The probability of every class, or of the likeliest few, for each input; the numbers that a
    regression gives; the classes of pixels; the probabilities of the token that comes next."""
    if card.task not in ANSWERED:
        because = f"the model was trained for the task {card.task}"
        valid = f"a run with the task {', '.join(ANSWERED)}; else parley.load(run).model()"
        raise BadValue("run", card.architecture.model, valid, because)
    scores = _outputs(module, card, raw)
    if card.task == SEGMENTATION:
        return [_segmented(n, card.labels, mask) for n, mask in zip(names, scores, strict=True)]
    # A model may have more outputs than there are classes; tokens have no names, but numbers.
    kind = "token" if card.task == LANGUAGE_MODEL else "output"
    labels = [*card.labels, *(f"{kind} {k}" for k in range(len(card.labels), scores.shape[1]))]
    if card.task == REGRESSION:
        each = zip(names, scores.tolist(), strict=True)
        return [Answer(name, "", {}, dict(zip(labels, of, strict=True))) for name, of in each]
    p_nC = _probabilities(scores, card.task)
    found = []
    for name, p_C in zip(names, p_nC, strict=True):
        order = p_C.argsort(descending=True, stable=True).tolist()
        chosen = labels[order[0]]
        if card.task == MULTILABEL:
            chosen = ", ".join(labels[k] for k in order if p_C[k] > 0.5)
        found.append(Answer(name, chosen, {labels[k]: float(p_C[k]) for k in order[:top]}))
    return found


def _outputs(module: nn.Module, card: Card, raw: Tensor) -> Tensor:
    """What is needed of the outputs for each input: the scores [n, C], those of the last position
    of a language model; in a segmentation the classes of pixels [n, h, w]."""
    normalise, dtype = card.transform().normalise, getattr(torch, card.dtype)
    found = []
    for part in raw.split(CHUNK):
        try:
            scores = module(normalise(part, dtype))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            valid = f"a model that takes inputs of shape {list(card.input.shape)}"
            raise BadValue("model", card.architecture.model, valid, brief(error)) from error
        if scores.ndim == 1 and card.task in (BINARY, REGRESSION):
            scores = scores[:, None]
        axes = {SEGMENTATION: 4, LANGUAGE_MODEL: 3}.get(card.task, 2)
        if scores.ndim != axes or len(scores) != len(part):
            because = f"for {len(part)} inputs it gives a tensor of shape {list(scores.shape)}"
            valid = f"a model whose outputs fit the task {card.task}"
            raise BadValue("model", card.architecture.model, valid, because)
        if card.task == SEGMENTATION:
            found.append(scores.argmax(1))
        else:
            found.append((scores[:, -1] if card.task == LANGUAGE_MODEL else scores).double())
    return torch.cat(found)


def _segmented(name: str, labels: Sequence[str], mask_hw: Tensor) -> Answer:
    counts = mask_hw.flatten().bincount(minlength=len(labels))
    named = [*labels, *(f"output {k}" for k in range(len(labels), len(counts)))]
    order = counts.argsort(descending=True, stable=True).tolist()
    shares = {named[k]: float(counts[k]) / mask_hw.numel() for k in order}
    return Answer(name, named[order[0]], {}, shares=shares, mask=mask_hw.numpy())


def write_masks(found: Sequence[Answer], folder: Path) -> list[Path]:
    """Writes the classes of each input's pixels as a grey image, whose values are their numbers."""
    places: list[Path] = []
    for answer in found:
        if answer.mask is None:
            raise BadValue("masks", str(folder), "only for the task segmentation")
        stem, _, number = answer.input.removesuffix("]").rpartition("[")
        name = f"{Path(stem).stem}-{number}" if stem else Path(answer.input).stem
        places.append(folder / f"{name}-mask.png")  # never the input itself
        if answer.mask.max() > MOST_GREY:
            valid = f"at most {MOST_GREY + 1} classes; else parley.load(run).predict(...)[0].mask"
            raise BadValue("masks", str(folder), valid)
        if places.index(places[-1]) < len(places) - 1:
            valid = "inputs whose files have different names"
            raise BadValue("masks", str(places[-1]), valid, "two inputs would be written to it")
    try:
        make_folder(folder)
        for answer, path in zip(found, places, strict=True):
            with replacing(path, path.with_suffix(".partial")):
                assert answer.mask is not None
                save_grey(answer.mask.astype(np.uint8), path.with_suffix(".partial"))
    except OSError as error:
        raise ParleyError(f"masks: {folder} cannot be written ({error})") from None
    return places


def _probabilities(scores_nC: Tensor, task: str) -> Tensor:
    if task == MULTILABEL:
        return scores_nC.sigmoid()
    if task == BINARY and scores_nC.shape[1] == 1:
        return torch.cat([(-scores_nC).sigmoid(), scores_nC.sigmoid()], 1)
    return scores_nC.softmax(1)


def export(module: nn.Module, card: Card, form: str, path: Path) -> None:
    """Writes a model, with its preparation inside and for any number of inputs at once."""
    if form not in FORMATS:
        raise BadValue("to", form, ", ".join(FORMATS))
    if path.suffix != FORMATS[form]:
        raise BadValue("out", str(path), f"a file that ends in {FORMATS[form]}")
    if path.is_dir() or not path.parent.is_dir():
        raise BadValue("out", str(path), "a file in a folder that exists")
    if form == "onnx":
        for package in ("onnx", "onnxscript"):
            needed(package, "onnx", "to", form, instead="torch-export")
    dtype = getattr(torch, raw_type(card))
    example = torch.zeros(2, *raw_shape(card), dtype=dtype)
    prepared = Prepared(module, card).eval()
    batch = torch.export.Dim("inputs", min=1)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(prepared, (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # the exporter has many, all of which mean that it cannot
        valid = "a model that torch.export can follow"
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise BadValue("model", card.architecture.model, valid, why) from error
    temporary = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        with replacing(path, temporary):
            _written(program, form, temporary, described(card))
    except OSError as error:
        raise ParleyError(f"out: {path} cannot be written ({error})") from None


def _written(program: Any, form: str, path: Path, about: dict[str, str]) -> None:
    if form == "torch-export":
        # Given a file, torch aborts the process if the disk is full or the name is not in UTF-8.
        content = BytesIO()
        torch.export.save(program, content, extra_files={ABOUT: json.dumps(about)})
        path.write_bytes(content.getbuffer())
        return
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            program, input_names=["input"], output_names=["scores"], dynamo=True, verbose=False
        )
        assert made is not None
        made.model.metadata_props.update(about)
        made.save(str(path))


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silences a library's list of optional packages."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
