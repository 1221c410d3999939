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
