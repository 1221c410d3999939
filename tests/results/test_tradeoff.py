"""The picture of costs against gains."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from parley.results import tradeoff
from parley.results.tradeoff import Point, front, tradeoff_picture


def test_what_diverges_with_some_seeds_beats_nothing() -> None:
    steady, lost = Point("steady", (2.0,), 70, 1.0), Point("lost", (1.0,), 90, None, diverged=True)
    assert front([steady, lost], 0) == [steady]


def test_names_do_not_cover_each_other_and_what_is_far_below_is_told(
    tmp_path: Path, monkeypatch
) -> None:
    def boxes() -> list[Bbox]:
        """Of the names, after the picture was saved."""
        tradeoff_picture({"a setting": points}, ["cost"], "gain", tmp_path / "x.png")
        [axes] = figures[-1].axes
        assert axes.get_ylim()[0] > 70
        assert "below: far below (10.0)" in [text.get_text() for text in axes.texts]
        names = [text for text in axes.texts if text.get_text().startswith("method")]
        assert len(names) == 30
        return [Text.get_window_extent(name) for name in names]

    def overlaps(found: list[Bbox]) -> int:
        return sum(a.overlaps(b) for k, a in enumerate(found) for b in found[:k])

    figures: list[Figure] = []
    save = tradeoff.save
    monkeypatch.setattr(
        "parley.results.tradeoff.save",
        lambda figure, out: figures.append(figure) or save(figure, out),
    )
    points = [Point(f"method {k}", (10.0 * 1.11**k,), 80 + k / 100, None) for k in range(30)]
    points.append(Point("far below", (10.0,), 10, None))
    assert overlaps(boxes()) == 0
    monkeypatch.setattr("parley.results.tradeoff._keep_apart", lambda names: None)
    assert overlaps(boxes()) > 5


def test_names_stand_beside_their_points_and_cover_none(tmp_path: Path, monkeypatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(
        "parley.results.tradeoff.save", lambda figure, out: figures.append(figure) or out
    )
    lone = Point("lone", (1000.0,), 80, None)
    crowd = [Point(f"crowd {k}", (10.0,), 70 + k, None, named=k in (3, 5)) for k in range(9)]
    tradeoff_picture({"a setting": [lone, *crowd]}, ["cost"], "gain", tmp_path / "x.png")
    [axes] = figures[0].axes
    named = {text.get_text(): text for text in axes.texts}
    assert set(named) == {
        "lone",
        "crowd 3",
        "crowd 5",
        "crowd 8",
    }  # the best, and those to be found
    marks = [axes.transData.transform((p.costs[0], p.gain)) for p in [lone, *crowd]]
    for name, text in named.items():
        box = Text.get_window_extent(text)
        assert not any(box.contains(*mark) for mark in marks)
        x, y = axes.transData.transform(text.xy)
        assert abs(box.y0 - y) <= box.height, name
        assert min(abs(box.x0 - x), abs(box.x1 - x)) < 20, name
