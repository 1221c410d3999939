"""Records as they arrive: each byte is read once, damage is reported, memory is bounded."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.dash.series import FIELDS, MOST, NUMBERS, SEEN, Series, Strided


def record(epoch: int, **fields: Any) -> dict[str, Any]:
    return {"epoch": epoch, "loss": 1 / epoch, **fields}


def append(path: Path, *records: dict[str, Any]) -> int:
    text = "".join(json.dumps(r) + "\n" for r in records)
    with path.open("a") as file:
        file.write(text)
    return len(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


def test_only_new_bytes_are_read_and_nothing_new_is_the_same_answer(path: Path) -> None:
    first = append(path, *(record(k) for k in range(1, 200)))
    series = Series("run", path)
    told = series.told()
    assert series.bytes_read == first
    assert series.told() is told
    assert series.bytes_read == first, "a file that has not changed is not opened"
    second = append(path, record(200))
    assert series.told()["records"] == 200
    assert series.bytes_read == first + second + SEEN


def test_a_half_written_line_is_waited_for(path: Path) -> None:
    append(path, record(1))
    with path.open("a") as file:
        file.write('{"epoch": 2, "lo')
    series = Series("run", path)
    assert (series.told()["records"], series.told()["damaged"]) == (1, 0)
    with path.open("a") as file:
        file.write('ss": 0.5}\n')
    told = series.told()
    assert (told["records"], told["damaged"], told["fields"]["loss"]) == (2, 0, [1.0, 0.5])


def test_damaged_lines_are_skipped_and_told(path: Path) -> None:
    append(path, record(1))
    with path.open("ab") as file:
        file.write(b'nonsense\n\xff\xfe\n[1, 2]\n{"loss": 3}\n{"epoch": "x"}\n\n{"epoch": NaN}\n')
    append(path, record(2))
    told = Series("run", path).told()
    assert told["x"] == [1, 2]
    assert told["damaged"] == 7 and told["damaged_lines"] == [2, 3, 4, 5, 6]


def test_a_line_without_end_is_not_held_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.dash.series.LONGEST", 1000)
    append(path, record(1))
    with path.open("a") as file:
        file.write("x" * 2500 + "\n")
    append(path, record(2))
    told = Series("run", path).told()
    assert told["x"] == [1, 2] and set(told["damaged_lines"]) == {2}


@pytest.mark.parametrize("longer", [False, True])
def test_a_file_that_is_another_one_is_read_anew(path: Path, longer: bool) -> None:
    append(path, *(record(k) for k in range(1, 20)))
    series = Series("run", path)
    series.told()
    length = path.stat().st_size
    path.write_text("") if longer else path.unlink()
    append(path, *(record(k, note="x" if longer else "") for k in range(3, 40 if longer else 6)))
    assert (path.stat().st_size > length) == longer
    told = series.told()
    assert told["x"][0] == 3 and told["records"] == len(told["x"])


def test_a_file_that_goes_and_one_that_comes(path: Path) -> None:
    series = Series("run", path)
    assert series.told()["records"] == 0
    append(path, record(1))
    assert series.told()["records"] == 1
    path.unlink()
    assert series.told()["records"] == 0


def test_links_and_pipes_are_not_followed(path: Path, tmp_path: Path) -> None:
    append(tmp_path / "secret", record(1))
    path.symlink_to(tmp_path / "secret")
    series = Series("run", path)
    assert series.told()["records"] == 0
    path.unlink()
    os.mkfifo(path)
    assert series.told()["records"] == 0


@given(st.integers(0, 400), st.integers(2, 50))
def test_what_is_kept_is_evenly_spread_and_ends_with_the_last(count: int, most: int) -> None:
    kept = Strided[int](most)
    for k in range(count):
        kept.add(k)
    found = kept.all()
    assert len(found) <= most + 1 and kept.count == count
    if count:
        assert found[0] == 0 and found[-1] == count - 1
        assert set(np.diff(found[:-1])) <= {kept.stride}
    if count <= most:
        assert found == list(range(count))


def test_values_that_are_no_numbers(path: Path) -> None:
    odd = {"epoch": 1, "a": True, "b": "x", "c": None, "d": [1], "e": math.nan, "f": 10**400}
    append(path, odd, {"epoch": 2, "e": 1.5})
    told = Series("run", path).told()
    assert (told["x"], told["fields"]) == ([1, 2], {"epoch": [1, 2], "e": [None, 1.5]})
    json.dumps(told, allow_nan=False)


def test_too_many_fields_are_cut(path: Path) -> None:
    append(path, {"epoch": 1, **{f"f{k}": k for k in range(500)}})
    assert len(Series("run", path).told()["fields"]) == FIELDS


def test_answers_are_bounded_however_many_records_there_are(path: Path) -> None:
    agents = 500
    count = 2 * MOST + 7
    line = f'"loss": 0.5, "distance_agents": {[0.5] * agents}}}'
    path.write_text("".join(f'{{"epoch": {k}, {line}\n' for k in range(1, count + 1)))
    told = Series("run", path).told()
    assert told["records"] == count and told["stride"] > 1
    assert MOST / 2 <= len(told["x"]) <= MOST + 1 and told["x"][-1] == count
    assert 16 <= len(told["frames"]) <= NUMBERS // agents + 1
    assert told["frames"][-1]["epoch"] == count


def test_an_agent_that_is_absent_does_not_hide_the_others(path: Path) -> None:
    append(path, record(1, distance_agents=[0.5, None]), record(2, distance_agents=["x", 1.0]))
    assert Series("run", path).told()["frames"] == [{"epoch": 1, "distance_agents": [0.5, None]}]
