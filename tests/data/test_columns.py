"""Tables without pyarrow: CSV files read as Arrow reads them, and what names the extra."""

import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv as arrow_csv

from parley.data.columns import NUMBER, TEXT, TIME, WHOLE, YES_NO, read_csv
from parley.data.tables import opened
from parley.errors import BadValue
from parley.files import Unreadable

COLUMNS = {
    WHOLE: (["1", "-20", "3"], ["0", "0", "1"], [" 7", "8 ", "9"]),
    NUMBER: (["1.5", "2", "1e-3"], ["inf", "-0.1", "1E5"], [".5", "2.", "3"]),
    YES_NO: (["true", "False", "TRUE"],),
    TIME: (["2024-01-02", "2023-12-31", "2000-01-01"], ["10:30:00", "11:00:00", "12:00:00"]),
    TEXT: (["a", "1", "é, ü"], ["yes", "no", "yes"], ["1_000", "2", "3"], ['say "x"', "b", "c\nd"]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_are_read_as_arrow_reads_them(kind: str, tmp_path: Path) -> None:
    for cells in COLUMNS[kind]:
        for gap in (None, "", "NA", "nan"):
            filled = [gap or "", *cells] if gap is not None else cells
            quoted = ['"' + cell.replace('"', '""') + '"' for cell in filled]
            path = tmp_path / "a.csv"
            path.write_text("x,y\n" + "".join(f"{cell},1\n" for cell in quoted), "utf-8")
            options = arrow_csv.ConvertOptions(strings_can_be_null=True)
            parsing = arrow_csv.ParseOptions(newlines_in_values=True)
            theirs = arrow_csv.read_csv(path, parse_options=parsing, convert_options=options)["x"]
            found = read_csv(path)["x"]
            assert found.kind == kind
            assert found.empty == (None if gap is None else 0) and theirs.null_count == bool(
                filled[3:]
            )
            if gap is None and kind != TIME:
                assert np.array(found.values).tolist() == theirs.to_pylist()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"a,b\n1\n", "row 1 has 1 cells, and the header has 2"),
        (b"a\n\xff\n", "not in UTF-8"),
        (b'a\n"1\n', "unexpected end of data"),
    ],
)
def test_a_file_that_is_no_table(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=words):
        read_csv(path)


def test_a_mark_at_the_start_and_empty_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4\r\n")
    table = read_csv(path)
    assert table.column_names == ["a", "b"] and len(table) == 2
    assert list(table["a"].values) == [1, 3]


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    csv_file = tmp_path / "a.csv"
    csv_file.write_text("a\n1\n", "utf-8")
    assert opened(csv_file, "a.csv")["a"].kind == WHOLE
    with pytest.raises(BadValue, match=r"pip install 'parley-learning\[hub\]'") as caught:
        opened(tmp_path / "a.parquet", "a.parquet")
    assert caught.value.field == "data" and "pyarrow" in str(caught.value)
