"""Records as they come: each byte is read once, extremes survive, and answers stay small."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.dash.tail import SEEN, Cursor, Frames, Tail, Thinned


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


def test_only_new_bytes_are_read(path: Path) -> None:
    first = append(path, *(record(k) for k in range(1, 200)))
    tail = Tail(path)
    tail.read()
    assert tail.bytes_read == first
    tail.read()
    assert tail.bytes_read == first + SEEN, "only whether it is the same file"
    second = append(path, record(200))
    tail.read()
    assert tail.bytes_read == first + second + 2 * SEEN
    assert tail.thinned.records == 200


def test_a_half_written_line_is_waited_for(path: Path) -> None:
    append(path, record(1))
    with path.open("a") as file:
        file.write('{"epoch": 2, "lo')
    tail = Tail(path)
    tail.read()
    assert (tail.thinned.records, tail.damaged_lines) == (1, 0)
    with path.open("a") as file:
        file.write('ss": 0.5}\n')
    tail.read()
    assert (tail.thinned.records, tail.damaged_lines) == (2, 0)
    assert tail.news(Cursor())["fields"]["loss"] == [1.0, 0.5]


def test_damaged_lines_are_passed_over_and_told(path: Path) -> None:
    append(path, record(1))
    with path.open("ab") as file:
        file.write(b'nonsense\n\xff\xfe\n[1, 2]\n{"loss": 3}\n{"epoch": "x"}\n\n')
    append(path, record(2))
    tail = Tail(path)
    tail.read()
    told = tail.news(Cursor())
    assert told["x"] == [1, 2]
    assert told["damaged"] == 6 and told["damaged_lines"] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("same_size", [False, True])
def test_a_file_that_is_another_one_is_read_anew(path: Path, same_size: bool) -> None:
    append(path, *(record(k) for k in range(1, 20)))
    tail = Tail(path)
    tail.read()
    told = Cursor.parse(tail.news(Cursor())["cursor"])
    length = path.stat().st_size
    path.unlink() if not same_size else path.write_text("")
    append(
        path, *(record(k, note="x" if same_size else "") for k in range(3, 40 if same_size else 6))
    )
    assert (path.stat().st_size > length) == same_size
    tail.read()
    news = tail.news(told)
    assert news["from"] == 0 and news["x"][0] == 3 and news["records"] == len(news["x"])


def test_a_file_that_goes_and_one_that_comes(path: Path) -> None:
    tail = Tail(path)
    tail.read()
    assert tail.news(Cursor())["records"] == 0
    append(path, record(1))
    tail.read()
    assert tail.news(Cursor())["records"] == 1
    path.unlink()
    tail.read()
    assert tail.news(Cursor())["records"] == 0


def test_links_and_pipes_are_not_followed(path: Path, tmp_path: Path) -> None:
    import os

    append(tmp_path / "secret", record(1))
    path.symlink_to(tmp_path / "secret")
    tail = Tail(path)
    tail.read()
    assert tail.thinned.records == 0
    path.unlink()
    os.mkfifo(path)
    tail.read()
    assert tail.thinned.records == 0


def follow(tail: Tail, shown: dict[str, Any], told: Cursor) -> Cursor:
    """What the page does with what it is told."""
    news = tail.news(told)
    kept = news["from"] * (1 if news["stride"] == 1 else 2)
    shown["x"] = shown.get("x", [])[:kept] + news["x"]
    for name, values in news["fields"].items():
        shown[name] = shown.get(name, [])[:kept] + values
    frames = news["frames"]
    shown["frames"] = shown.get("frames", [])[: frames["from"]] + frames["new"]
    return Cursor.parse(news["cursor"])


def test_told_piece_by_piece_it_is_the_same_as_told_at_once(path: Path) -> None:
    pick = random.Random(0)
    tail, shown, told, epoch = Tail(path), {}, Cursor(), 0
    while epoch < 5000:
        count = pick.choice([1, 3, 40, 700])
        agents = [pick.random() for _ in range(20)]
        new = [
            record(epoch + k, wild=pick.gauss(0, 1), distance_agents=agents)
            for k in range(1, count + 1)
        ]
        if epoch > 2000:
            new[0]["late"] = pick.random()
        append(path, *new)
        epoch += count
        tail.read()
        told = follow(tail, shown, told)
    whole = Tail(path)
    whole.read()
    at_once: dict[str, Any] = {}
    follow(whole, at_once, Cursor())
    assert shown.keys() == at_once.keys() and "late" in shown
    assert shown["frames"] == at_once["frames"]
    for name in shown:
        assert shown[name] == at_once[name], name


@given(
    st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=300),
    st.integers(1, 50),
)
def test_extremes_survive_thinning(values: list[float | None], step: int) -> None:
    thinned = Thinned(buckets=8)
    records = [{"epoch": k, "v": v} for k, v in enumerate(values)]
    for start in range(0, len(records), step):
        thinned.add(records[start : start + step])
    assert thinned.buckets <= 8 and thinned.records == len(values)
    points = thinned.points()
    known = [v for v in values if v is not None]
    if not known:
        assert "v" not in points["fields"]
        return
    drawn = points["fields"]["v"]
    assert len(drawn) == len(points["x"]) <= 16
    assert points["x"] == sorted(points["x"])
    # Every bucket tells the lowest and the highest of its records, in the order they came in.
    pair = 1 if thinned.stride == 1 else 2
    for bucket in range(len(drawn) // pair):
        inside = values[bucket * thinned.stride : (bucket + 1) * thinned.stride]
        told = [v for v in drawn[bucket * pair : (bucket + 1) * pair] if v is not None]
        there = [v for v in inside if v is not None]
        assert bool(told) == bool(there)
        if there:
            assert min(told) == pytest.approx(min(there), rel=1e-5)
            assert max(told) == pytest.approx(max(there), rel=1e-5)


def test_the_order_of_a_buckets_extremes() -> None:
    thinned = Thinned(buckets=4)
    up_and_down = [0, 1, 2, 3, 9, 8, 7, 6, 0, 5, 0, 5, 1, 1, 1, 1]
    thinned.add([{"epoch": k, "v": v} for k, v in enumerate(up_and_down)])
    assert thinned.stride == 4
    assert thinned.points()["fields"]["v"] == [0, 3, 9, 6, 0, 5, 1, 1]


def test_numbers_that_are_none() -> None:
    thinned = Thinned()
    odd = {"epoch": 1, "a": True, "b": "x", "c": None, "d": [1], "e": math.nan, "f": 10**400}
    thinned.add([odd, {"epoch": 2, "e": 1.5}])
    assert thinned.points() == {"x": [1, 2], "fields": {"epoch": [1, 2], "e": [None, 1.5]}}


def test_too_many_fields_are_cut() -> None:
    thinned = Thinned()
    thinned.add([{"epoch": 1, **{f"f{k}": k for k in range(500)}}])
    assert len(thinned.names) == 48


def test_frames_are_spread_over_the_whole_run_and_bounded() -> None:
    frames = Frames(numbers=200)
    for epoch in range(1, 1001):
        frames.add([{"epoch": epoch, "distance_agents": [epoch, 2.0, 3.0, 4.0, 5.0]}])
    epochs = [frame["epoch"] for frame in frames.kept]
    assert 20 <= len(epochs) <= 40
    assert set(np.diff(epochs)) == {frames.stride} and epochs[0] == 1
    assert epochs[-1] > 1000 - frames.stride
    assert frames.latest is not None and frames.latest["epoch"] == 1000
    frames.add([{"epoch": 1001, "distance_agents": ["x"]}, {"epoch": 1002}])
    assert frames.latest["epoch"] == 1000


def test_a_million_records(path: Path) -> None:
    """Bounded answers; the second request reads the new bytes only."""
    line = '"loss": 0.5, "distance_agents": [0.5, 0.25]}'
    with path.open("w") as file:
        for start in range(0, 1_000_000, 50_000):
            file.write("".join(f'{{"epoch": {k}, {line}\n' for k in range(start, start + 50_000)))
    spike = append(path, record(1_000_000, loss=99.0))
    size = path.stat().st_size
    tail = Tail(path)
    rounds = 0
    while rounds == 0 or tail.behind:
        tail.read()
        rounds += 1
        assert rounds < 50
    assert rounds > 1, "the first answer does not wait for all"
    assert tail.thinned.records == 1_000_001 and tail.offset == size
    told = tail.news(Cursor())
    assert len(json.dumps(told)) < 150_000
    assert max(told["fields"]["loss"]) == 99.0 and spike < 100
    before = tail.bytes_read
    new = append(path, record(1_000_001))
    tail.read()
    assert tail.bytes_read - before == new + SEEN
    again = tail.news(Cursor.parse(told["cursor"]))
    assert len(json.dumps(again)) < 1500
    assert len(again["x"]) <= 4
