"""What a model was prepared for that another run continues: its columns, classes and tokenizer.

Weights alone come from a file; a run's folder also says how its inputs were made, and a model that
learns on from there must see them made alike. Axes: n samples, f inputs.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import BaseModel, ValidationError

from parley import measures
from parley.data import Samples, standard
from parley.data.from_python import numbered
from parley.data.preparation import Preparation
from parley.data.tables import Form
from parley.data.targets import CLASSES
from parley.errors import BadValue
from parley.files import SMALL, Unreadable, parse_json, read_text, user_path
from parley.training.initial_weights import CARD, WEIGHTS

log = logging.getLogger(__name__)


class _Input(BaseModel):
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    tokenizer: str = ""
    table: Form | None = None


class _Card(BaseModel):
    input: _Input
    labels: tuple[str, ...]


class Parts(NamedTuple):
    """Samples, what their classes are called, and how their inputs were made."""

    samples: list[Samples]
    names: tuple[str, ...]
    how: Preparation


class Preceding(NamedTuple):
    """A run whose model is continued."""

    source: str
    labels: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    table: Form | None
    tokenizer: str = ""
    """The folder with its tokenizer, if it has one."""

    def prepared(self, parts: Parts, task: str) -> Parts:
        """Samples made as that run made its own; `parts` are not standardised yet."""
        samples, names = self._numbered(parts, task)
        if parts.how.tokenizer and self.tokenizer:
            self._check_tokenizer(parts.how.tokenizer)
        given, kept = parts.how.table, self.table
        if (given is None) != (kept is None):
            because = "its inputs are {}, and these data are {}".format(
                *("a table's columns" if form else "no table" for form in (kept, given))
            )
            raise self._wrong("data of the same kind", because)
        if given is None or kept is None:
            return Parts(samples, names, parts.how)
        place_f = torch.tensor(self._places(given, kept))
        made = []
        for part in samples:
            rows_nf = torch.nn.functional.pad(part.inputs.double(), (0, 1))[:, place_f]
            made.append(standard.standardised(Samples(rows_nf, part.targets), kept))
        return Parts(made, names, Preparation(table=kept))

    def _numbered(self, parts: Parts, task: str) -> tuple[list[Samples], tuple[str, ...]]:
        """With the classes of the run, of which there may be fewer here."""
        names, labels = parts.names, self.labels
        if names == labels:
            return list(parts.samples), labels
        known = set(names) <= set(labels)
        if task in CLASSES and known:
            return numbered(parts.samples, names, labels, "data"), labels
        if task in (measures.SEGMENTATION, measures.OWN) and labels[: len(names)] == names:
            return list(parts.samples), labels
        because = f"it was trained on {_listed(labels)}, and the data have {_listed(names)}"
        raise self._wrong(f"data with its {'classes' if task in CLASSES else 'targets'}", because)

    def _places(self, given: Form, kept: Form) -> list[int]:
        """For each input of the run, which one it is here; the one behind the last is always 0."""
        if strange := sorted(set(given.names) ^ set(kept.names)):
            there = strange[0] in kept.names
            because = f"column {strange[0]} is only {'there' if there else 'here'}"
            valid = f"its columns, {_listed(kept.names)}"
            remedy = "" if there else f"; --data-option drop={strange[0]} leaves the column out"
            raise self._wrong(valid + remedy, because)
        each = {(c.name, value): None for c in given.columns for value in (c.values or ("",))}
        place = {key: number for number, key in enumerate(each)}
        for column in kept.columns:
            here = next(c for c in given.columns if c.name == column.name)
            odd = [value for value in here.values if value not in column.values]
            if odd or bool(here.values) != bool(column.values):
                found = f"the value {odd[0]!r}" if odd and column.values else "another type"
                because = f"column {column.name} has {found} here"
                raise self._wrong(
                    f"columns as there: {_listed(column.values) or 'numbers'}", because
                )
        wanted = ((c.name, value) for c in kept.columns for value in (c.values or ("",)))
        return [place.get(key, len(place)) for key in wanted]

    def _check_tokenizer(self, text: str) -> None:
        path = Path(self.tokenizer) / "tokenizer.json"
        if parse_json(read_text(path)) != parse_json(text):
            raise self._wrong("its tokenizer, as without data.tokenizer", "the texts have another")

    def _wrong(self, valid: str, because: str) -> BadValue:
        alone = Path(self.source) / WEIGHTS
        return BadValue("init", self.source, f"{valid}; or {alone}, its weights alone", because)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + ", …" * (len(names) > 10)


def preceding(source: str) -> Preceding | None:
    """What the run in a folder says about its inputs; None for weights alone."""
    path = user_path(source)
    if not source or source.startswith("hf:"):
        return None
    if path.name == WEIGHTS and (path.parent / CARD).is_file():
        log.info(
            "init: the weights of %s alone; its folder's name also continues with its preparation "
            "and classes", source,
        )  # fmt: skip
    if not (path / CARD).is_file():
        return None
    try:
        card = _Card.model_validate(parse_json(read_text(path / CARD, SMALL)))
    except (Unreadable, ValidationError) as error:
        because = f"{CARD}: {str(error).splitlines()[0]}"
        raise BadValue("init", source, "the folder of a complete run", because) from None
    about = card.input
    folder = str(path) if about.tokenizer else ""
    return Preceding(source, card.labels, about.mean, about.std, about.table, folder)
