"""The picture of costs against gains."""

from itertools import combinations
from pathlib import Path as FilePath

import pytest

from parley.charts import draw
from parley.charts.shapes import Box, Circle, Sheet, Words, boxes_of
from parley.results import tradeoff
from parley.results.tradeoff import Point, front, tradeoff_picture


def test_what_diverges_with_some_seeds_beats_nothing() -> None:
    steady, lost = Point("steady", (2.0,), 70, 1.0), Point("lost", (1.0,), 90, None, diverged=True)
    assert front([steady, lost], 0) == [steady]


@pytest.fixture
def sheets(monkeypatch: pytest.MonkeyPatch) -> list[Sheet]:
    """The drawings, instead of files."""
    seen: list[Sheet] = []
    monkeypatch.setattr(tradeoff, "save", lambda sheet, out: seen.append(sheet) or out)
    return seen


def names(sheet: Sheet) -> dict[str, Words]:
    return {s.text: s for s in sheet.shapes if isinstance(s, Words) and s.halo}


def test_names_do_not_cover_each_other_and_what_is_far_below_is_told(
    tmp_path: FilePath, sheets: list[Sheet], monkeypatch: pytest.MonkeyPatch
) -> None:
    def overlaps() -> int:
        """Of the names."""
        tradeoff_picture({"a setting": points}, ["cost"], "gain", tmp_path / "x.png")
        found = names(sheets[-1])
        assert found.keys() == {f"method {k}" for k in range(30)}
        words = [s.text for s in sheets[-1].shapes if isinstance(s, Words)]
        assert "below: far below (10.0)" in words
        marks = [float(text) for text in words if text.replace(".", "").isdecimal()]
        assert not any(1 < mark < 70 and mark != 10 * round(mark / 10) for mark in marks[:5])
        return sum(a.overlaps(b) for a, b in combinations(boxes_of(found.values()), 2))

    points = [Point(f"method {k}", (10.0 * 1.11**k,), 80 + k / 100, None) for k in range(30)]
    points.append(Point("far below", (10.0,), 10, None))
    assert overlaps() == 0
    monkeypatch.setattr(
        draw,
        "placed",
        lambda labels, *_: [
            Words(x=l.place[0] + 5, y=l.place[1], text=l.text, size=10, halo=True) for l in labels
        ],
    )
    assert overlaps() > 5


def test_names_stand_beside_their_points_and_cover_none(
    tmp_path: FilePath, sheets: list[Sheet]
) -> None:
    lone = Point("lone", (1000.0,), 80, None)
    crowd = [Point(f"crowd {k}", (10.0,), 70 + k, None, named=k in (3, 5)) for k in range(9)]
    tradeoff_picture({"a setting": [lone, *crowd]}, ["cost"], "gain", tmp_path / "x.png")
    found = names(sheets[0])  # the best, and those to be found
    assert found.keys() == {"lone", "crowd 3", "crowd 5", "crowd 8"}
    points = {s.of: s for s in sheets[0].shapes if isinstance(s, Circle)}
    marks = [Box(point.x, point.y, 0, 0) for point in points.values()]
    for name, words in found.items():
        [box] = boxes_of([words])
        assert not any(box.overlaps(mark) for mark in marks)
        point = points[name]
        assert box.top - box.height <= point.y <= box.bottom + box.height, name
        assert min(abs(box.left - point.x), abs(box.right - point.x)) < 20, name
