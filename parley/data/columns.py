"""Columns of a table by name: read from CSV with Python alone, or taken from Arrow's tables.

Only what Arrow holds (Parquet, pandas frames, Hugging Face datasets) needs pyarrow, which is in the
extra `hub`.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parley.errors import needed
from parley.files import Unreadable, regular

TEXT, WHOLE, NUMBER, YES_NO, TIME = "text", "whole", "number", "yes/no", "time"
NUMBERS = (WHOLE, NUMBER, YES_NO)
EMPTY = {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
EMPTY |= {"N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"}
"""What counts as an empty cell of a CSV file, as it does for Arrow and pandas."""
WORDS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
A_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|Inf)\s*")
A_WHOLE = re.compile(r"\s*-?\d{1,18}\s*")
A_TIME = re.compile(r"(\d{4}-\d\d-\d\d)?([ T]?\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?")


class Cells(NamedTuple):
    """The cells of one column."""

    kind: str
    """One of those above, or what Arrow calls another one."""
    values: Sequence[Any] | NDArray[Any]
    """An array of numbers, or a list; nothing if a cell is empty."""
    empty: int | None = None
    """The first row with an empty cell, if there is one."""

    def texts(self) -> list[str]:
        """Every cell in words."""
        values = self.values
        return [str(v) for v in (values.tolist() if isinstance(values, np.ndarray) else values)]


class Table:
    """Columns by name, each converted when it is asked for."""

    def __init__(self, names: Sequence[str], rows: int, column: Callable[[str], Cells]) -> None:
        self.column_names = list(names)
        self._rows = rows
        self._column = column

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, name: str) -> Cells:
        return self._column(name)


def read_csv(path: Path) -> Table:
    """A file of UTF-8 with a header, whose cells are separated by commas.

    >>> file = Path(getfixture("tmp_path")) / "a.csv"
    >>> _ = file.write_text("age,sick\\n71,true\\n,false\\n")
    >>> table = read_csv(file)
    >>> len(table), table["age"].empty, table["sick"].texts()
    (2, 1, ['True', 'False'])
    """
    try:
        with regular(path) as file:
            lines = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
            header, *rows = [line for line in lines if line] or [[]]
    except UnicodeDecodeError:
        raise Unreadable("it is not in UTF-8") from None
    except csv.Error as error:
        raise Unreadable(str(error)) from None
    if not header:
        raise Unreadable("the file is empty")
    odd = next((number for number, row in enumerate(rows, 1) if len(row) != len(header)), None)
    if odd is not None:
        count = len(rows[odd - 1])
        raise Unreadable(f"row {odd} has {count} cells, and the header has {len(header)}")
    cells = dict(zip(header, zip(*rows, strict=True) if rows else [()] * len(header), strict=True))
    return Table(header, len(rows), lambda name: _typed(cells[name]))


def _typed(cells: Sequence[str]) -> Cells:
    """The narrowest kind that all cells have in common."""
    filled = [cell for cell in cells if cell not in EMPTY]
    empty = None
    if len(filled) < len(cells):
        empty = next(row for row, cell in enumerate(cells) if cell in EMPTY)
    for kind, fits, made in KINDS:
        if all(map(fits, filled)):
            return Cells(kind, made(cells) if empty is None else (), empty)
    return Cells(TEXT, cells if empty is None else (), empty)


KINDS: tuple[tuple[str, Callable[[str], object], Callable[[Sequence[str]], Any]], ...] = (
    (WHOLE, A_WHOLE.fullmatch, lambda cells: np.array(cells, dtype=object).astype(np.int64)),
    (YES_NO, WORDS.__contains__, lambda cells: np.array([WORDS[cell] for cell in cells])),
    (NUMBER, A_NUMBER.fullmatch, lambda cells: np.array([float(cell) for cell in cells])),
    (TIME, A_TIME.fullmatch, list),
)


def from_arrow(given: Any, field: str, name: str) -> Table:
    """A Parquet file, a pandas frame or a Hugging Face dataset; `field` and `name` are what was
    given, for errors."""
    arrow = needed("pyarrow", "hub", field, name)
    try:
        if isinstance(given, Path):
            from pyarrow import parquet

            found = parquet.read_table(given)
        elif hasattr(given, "with_format"):
            found = given.with_format("arrow")[:]
        else:
            found = arrow.Table.from_pandas(given, preserve_index=False)
    except (arrow.ArrowException, OSError) as error:
        # Of the two messages that pandas' columns cause, the second one names the column.
        why = str(error.args[-1] if error.args else "").splitlines()
        raise Unreadable((why or [type(error).__name__])[0]) from None
    return Table(found.column_names, len(found), lambda column: _of_arrow(arrow, found[column]))


def _of_arrow(arrow: Any, column: Any) -> Cells:
    is_a = arrow.types
    if is_a.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = str(column.type)
    for name, tests in (
        (TEXT, (is_a.is_string, is_a.is_large_string)),
        (WHOLE, (is_a.is_integer,)),
        (YES_NO, (is_a.is_boolean,)),
        (NUMBER, (is_a.is_floating, is_a.is_decimal)),
    ):
        kind = name if any(test(column.type) for test in tests) else kind
    if column.null_count:
        return Cells(kind, (), column.is_null().to_pylist().index(True))
    if kind == NUMBER:
        column = column.cast(arrow.float64(), safe=False)
    return Cells(kind, column.to_numpy() if kind in NUMBERS else column.to_pylist())
