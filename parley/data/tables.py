"""Tables with named columns: CSV, Parquet, pandas frames and Hugging Face datasets.

Columns of numbers are standardised and columns of text become one input for each value that occurs.
How is kept as a `Form`, so that others than the run can prepare their tables alike. Numbers are
read as they are; `parley.data.standard` standardises them, once it is known which rows are for
training. Axes: n rows, f inputs."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley import measures
from parley.data.columns import (
    NUMBER,
    NUMBERS,
    TEXT,
    WHOLE,
    YES_NO,
    Cells,
    Table,
    from_arrow,
    read_csv,
)
from parley.data.targets import CLASSES
from parley.errors import BadValue
from parley.files import Unreadable

FILES = (".csv", ".parquet")
MOST_VALUES = 100
"""Different texts in a column that becomes inputs."""
FEW_NUMBERS = 10
"""Different numbers in a column of text that may be codes; if there are more, it is a column of
numbers in which something else was written, such as ? for what is not known."""
MOST_CLASSES = 10_000
ONE_ROW_EACH = "a table with a header and one row per sample"
DROP = "; --data-option drop={} leaves the column out"
"""A remedy, where a column is only an input."""


@dataclass(frozen=True)
class Column:
    """A column of a table, and what becomes of it."""

    name: str
    mean: float = 0.0
    """Subtracted from its numbers."""
    std: float = 1.0
    """By which the difference is divided."""
    values: tuple[str, ...] = ()
    """For a column of text: the values that it may have, each an input that is 0 or 1."""


@dataclass(frozen=True)
class Form:
    """How a table becomes inputs: its columns, in this order; others are left alone."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(column.name for column in self.columns)

    def inputs(self, table: Table, where: str) -> Tensor:
        """float32 [n, f]; `where` the table comes from is for errors."""
        return self.values(table, where).to(torch.float32)

    def values(self, table: Table, where: str) -> Tensor:
        """The same in doubles."""
        made = []
        for column in self.columns:
            if column.name not in table.column_names:
                valid = f"a table with the columns {', '.join(self.names)}"
                raise BadValue("data", where, valid, f"it has no column {column.name}")
            found = _column(table, column.name, where)
            if not column.values:
                numbers = _numbers(found, column.name, where)
                made.append((numbers - column.mean) / column.std)
                continue
            known = {value: place for place, value in enumerate(column.values)}
            texts = found.texts()
            strange = next((row for row, text in enumerate(texts) if text not in known), None)
            if strange is not None:
                valid = f"one of {', '.join(column.values[:10])}" + ", …" * (len(known) > 10)
                raise _wrong(where, strange, column.name, valid, f"it is {texts[strange]!r}")
            made += list(np.eye(len(known))[:, [known[text] for text in texts]])
        return torch.from_numpy(np.stack(made, 1).astype(np.float64))


class Told(NamedTuple):
    """What options say about tables."""

    targets: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    """Columns that are neither inputs nor targets."""
    standardise: bool = True
    """Whether numbers are, or are used as they are."""
    labels: tuple[str, ...] = ()
    """All classes, if tables may lack some; without them, those that occur."""

    @classmethod
    def of(cls, target: str, drop: str, standardise: bool = True, labels: str = "") -> "Told":
        """From comma-separated names."""
        targets, dropped, classes = (
            tuple(name.strip() for name in names.split(",") if name.strip())
            for names in (target, drop, labels)
        )
        return cls(targets, dropped, standardise, classes)


class Read(NamedTuple):
    """Tables as samples: one pair of inputs and targets for each. Inputs that are still to be
    standardised are doubles: single precision would lose columns whose values differ by little."""

    pairs: list[tuple[Tensor, Tensor]]
    class_names: tuple[str, ...]
    form: Form


def is_frame(given: Any) -> bool:
    """Whether it is a pandas frame."""
    return type(given).__name__ == "DataFrame" and hasattr(given, "columns")


def files_in(place: Path | str) -> list[Path]:
    """A file, or those of a folder for training and for testing; none if it is laid out in
    another way."""
    if not isinstance(place, Path) or place.is_file():
        return [place] if isinstance(place, Path) else []
    found = {
        split: [file for end in FILES if (file := place / f"{split}{end}").is_file()]
        for split in ("train", "test", "validation")
    }
    both = found["train"], found["test"] or found["validation"]
    return [file for files in both for file in files] if len(both[0]) == 1 >= len(both[1]) else []


def opened(given: Any, where: str) -> Table:
    """A file, a pandas frame or a Hugging Face dataset as a table."""
    try:
        if is_frame(given) and (twice := _twice(map(str, given.columns))):
            raise Unreadable(f"it has two columns {twice}")
        is_csv = isinstance(given, Path) and given.suffix == ".csv"
        found = read_csv(given) if is_csv else from_arrow(given, "data", where)
        if twice := _twice(found.column_names):
            raise Unreadable(f"it has two columns {twice}")
    except Unreadable as error:
        raise BadValue("data", where, ONE_ROW_EACH, str(error)) from None
    return found


def _twice(names: Iterable[str]) -> str | None:
    """A name that occurs more than once, if one does."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def read(tables: Mapping[str, Table], told: Told, task: str, alone: bool = False) -> Read:
    """Tables by where they come from. If others have tables of their own elsewhere (`alone`), text
    is refused: which values the others have is not known here."""
    left = _input_columns(tables, told)
    form = Form(tuple(_formed(name, tables, alone) for name in left))
    targets, class_names = _targets(tables, told, task)
    made = form.values if told.standardise else form.inputs
    inputs = [made(table, where) for where, table in tables.items()]
    return Read(list(zip(inputs, targets, strict=True)), class_names, form)


def _input_columns(tables: Mapping[str, Table], told: Told) -> list[str]:
    """The columns that become inputs, in the order of the first table; all tables have them."""
    (first, start), *_ = tables.items()
    everywhere = {name for table in tables.values() for name in table.column_names}
    left = [name for name in start.column_names if name not in (*told.targets, *told.dropped)]
    for where, table in tables.items():
        names = table.column_names
        if not len(table):
            raise BadValue("data", where, ONE_ROW_EACH, "it is empty")
        for name in (*told.targets, *told.dropped):
            if name not in (names if name in told.targets else everywhere):
                option = "target" if name in told.targets else "drop"
                raise BadValue(f"data.{option}", name, f"columns of {where}: {', '.join(names)}")
        inputs = {*names} - {*told.targets, *told.dropped}
        if strange := sorted(inputs ^ {*left}):
            has, other = (where, first) if strange[0] in inputs else (first, where)
            because = f"column {strange[0]} of {has} is not in {other}"
            valid = f"the same columns as {first}{DROP.format(strange[0])}"
            raise BadValue("data", where, valid, because)
    if not left:
        raise BadValue("data.target", ",".join(told.targets), "at least one other column")
    return left


def _formed(name: str, tables: Mapping[str, Table], alone: bool) -> Column:
    """What becomes of a column, before it is standardised."""
    found = [(where, _column(table, name, where, DROP)) for where, table in tables.items()]
    texts = [where for where, column in found if column.kind == TEXT]
    remedy = DROP.format(name)
    if texts and len(texts) < len(found):
        numbers = next(where for where, _ in found if where not in texts)
        because = f"column {name} is text, but not in {numbers}"
        raise BadValue("data", texts[0], f"text or numbers in all tables{remedy}", because)
    if texts:
        where = texts[0]
        if alone:
            because = "is text, and its values in the other agents' tables are not known here"
            raise BadValue("data", where, f"numbers{remedy}", f"column {name} {because}")
        values = sorted({t for where, column in found for t in column.texts()})
        digits = [value for value in values if _is_number(value)]
        if FEW_NUMBERS < len(digits) < len(values) < 2 * len(digits):
            odd = next(value for value in values if not _is_number(value))
            where, row = _first(found, odd)
            valid = f"a number in every cell{remedy}"
            raise _wrong(where, row, name, valid, f"it is {odd!r}, and most others are numbers")
        if len(values) > MOST_VALUES:
            because = f"column {name} is text with {len(values)} different values"
            valid = f"numbers, or text with at most {MOST_VALUES} values{remedy}"
            raise BadValue("data", where, valid, because)
        return Column(name, values=tuple(values))
    for where, column in found:
        _numbers(column, name, where, DROP)  # which refuses what is none
    return Column(name)


def _targets(
    tables: Mapping[str, Table], told: Told, task: str
) -> tuple[list[Tensor], tuple[str, ...]]:
    """The targets of each table as the task has them, and what they are called."""
    names = told.targets
    if task in CLASSES:
        if len(names) > 1:
            valid = "one column, the class of each row; or the task multilabel"
            raise BadValue("data.target", ",".join(names), valid)
        each = [
            _labels(_column(t, names[0], where), names[0], where) for where, t in tables.items()
        ]
        known = list(told.labels) or named_classes(each)
        for where, labels in zip(tables, each, strict=True):
            if strange := next((label for label in labels if label not in known), None):
                because = f"in {where} it has the class {strange}"
                raise BadValue("data.target", names[0], f"the classes {', '.join(known)}", because)
        if len(known) > MOST_CLASSES:
            because = f"it has {len(known)} different values"
            raise BadValue("data.target", names[0], "classes; or --task regression", because)
        place = {label: number for number, label in enumerate(known)}
        return [torch.tensor([place[v] for v in labels]) for labels in each], tuple(known)
    if told.labels:
        because = f"in the task {task} the target columns {', '.join(names)} are what has names"
        raise BadValue("data.labels", ", ".join(told.labels), "none", because)
    if task not in (measures.REGRESSION, measures.MULTILABEL, measures.OWN):
        raise BadValue("task", task, "classification, binary, multilabel, regression or own")
    made = [
        np.stack([_numbers(_column(t, name, where), name, where) for name in names], 1)
        for where, t in tables.items()
    ]
    return [torch.from_numpy(values.astype(np.float32)) for values in made], tuple(names)


def named_classes(parts: Iterable[Iterable[str | None]]) -> list[str]:
    """The classes that occur, whole numbers by their size and before others.

    >>> named_classes([["10", "9", None], ["b"]])
    ['9', '10', 'b']
    """
    return sorted({label for part in parts for label in part if label is not None}, key=_in_order)


def _in_order(label: str) -> tuple[bool, float, str]:
    """Numbers by their size, before texts."""
    whole = label.removeprefix("-").isdecimal()
    return not whole, float(label) if whole else 0.0, label


def _labels(column: Cells, name: str, where: str) -> list[str]:
    """Classes in words, whole numbers among them."""
    if column.kind == NUMBER:  # as pandas writes whole numbers if another column had a gap
        numbers = _numbers(column, name, where)
        if not bool((numbers == np.rint(numbers)).all()):
            valid = "whole numbers, yes/no or text; or --task regression"
            raise BadValue("data.target", name, valid, f"in {where} it has fractions")
        return [str(int(number)) for number in numbers]
    if column.kind in (TEXT, WHOLE, YES_NO):
        return column.texts()
    raise _strange_kind(column, name, where, "whole numbers, yes/no or text")


def _column(table: Table, name: str, where: str, remedy: str = "") -> Cells:
    """One column, without a cell that is empty."""
    column = table[name]
    if column.empty is not None:
        valid = f"a value in every cell{remedy.format(name)}"
        raise _wrong(where, column.empty, name, valid, "it is empty")
    return column


def _numbers(column: Cells, name: str, where: str, remedy: str = "") -> np.ndarray:
    """A column of numbers, or of yes and no, in doubles."""
    if column.kind not in NUMBERS:
        valid = f"numbers, yes/no or text{remedy.format(name)}" if remedy else "numbers or yes/no"
        raise _strange_kind(column, name, where, valid)
    values = np.asarray(column.values, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        found = "it is empty" if np.isnan(values[bad[0]]) else "it is infinite"
        valid = f"a value in every cell{remedy.format(name)}"
        raise _wrong(where, int(bad[0]), name, valid, found)
    return values


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _first(found: Iterable[tuple[str, Cells]], text: str) -> tuple[str, int]:
    """Where a text occurs, and in which row."""
    each = ((where, column.texts()) for where, column in found)
    return next((where, texts.index(text)) for where, texts in each if text in texts)


def _strange_kind(column: Cells, name: str, where: str, valid: str) -> BadValue:
    return BadValue("data", where, valid, f"column {name} has the type {column.kind}")


def _wrong(where: str, row: int, name: str, valid: str, because: str) -> BadValue:
    """Rows are counted from 1, without the header."""
    return BadValue("data", where, valid, f"row {row + 1}, column {name}: {because}")


def columns_in(tables: Iterable[Table]) -> str:
    """The names of the first table's columns."""
    return ", ".join(next(iter(tables)).column_names)
