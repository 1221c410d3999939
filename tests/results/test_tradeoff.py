"""The picture of costs against gains."""

from pathlib import Path

from parley.results.tradeoff import Point, front, tradeoff_picture


def test_what_diverges_with_some_seeds_beats_nothing() -> None:
    steady, lost = Point("steady", (2.0,), 70, 1.0), Point("lost", (1.0,), 90, None, diverged=True)
    assert front([steady, lost], 0) == [steady]


def test_names_do_not_cover_each_other_and_what_is_far_below_is_told(
    tmp_path: Path, monkeypatch
) -> None:
    figures = []
    monkeypatch.setattr("parley.results.tradeoff.save", lambda figure, out: figures.append(figure))
    points = [Point(f"method {k}", (10.0 * 1.2**k,), 80 + k / 100, None) for k in range(6)]
    points.append(Point("far below", (10.0,), 10, None))
    tradeoff_picture({"a setting": points}, ["cost"], "gain", tmp_path / "x.png")
    [axes] = figures[0].axes
    assert axes.get_ylim()[0] > 70
    names = [text for text in axes.texts if text.get_text().startswith("method")]
    assert len(names) == 6
    boxes = [name.get_window_extent() for name in names]
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])
    assert "below: far below (10.0)" in [text.get_text() for text in axes.texts]
