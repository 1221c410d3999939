"""Charts: where their numbers are drawn, in every format, and the names that both share."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from parley.charts.axes import Scale
from parley.charts.chart import MARKS, Axis, Chart, Heat, Line, Spans
from parley.charts.draw import DASHES, draw, sheet, single
from parley.charts.html import figures
from parley.charts.picture import save
from parley.charts.shapes import Box, Circle, Path, Sheet, Words, hexadecimal, palette
from parley.charts.svg import stylesheet, svg
from parley.errors import BadValue

BOX = Box(0, 0, 400, 300)
CURVE = Line("NGC", [1, 2, 4], [10.0, 30.0, 20.0], [9, 25, 18], [11, 35, 22], colour=3, dash=1)
CHART = Chart("Loss", [CURVE], Axis("epoch", whole=True), Axis("loss"), about="It falls.")


def paths(chart: Chart, of: str = "NGC") -> list[Path]:
    return [s for s in draw(chart, BOX).shapes if isinstance(s, Path) and s.of == of]


def texts(shapes: object) -> list[str]:
    return [s.text for s in shapes if isinstance(s, Words)]  # type: ignore[attr-defined]


def test_points_are_where_the_axes_say() -> None:
    drawn = draw(CHART, BOX)
    band, line = paths(CHART)
    assert line.lines == [[(drawn.x.at(x), drawn.y.at(y)) for x, y in ((1, 10), (2, 30), (4, 20))]]
    assert (line.stroke, line.dash) == (3, DASHES[1])
    assert drawn.x.at(1) == drawn.frame.left and drawn.x.at(4) == drawn.frame.right
    assert drawn.y.at(drawn.y.low) == drawn.frame.bottom
    corners = [drawn.y.at(v) for v in (9, 25, 18, 22, 35, 11, 9)]
    assert [y for _, y in band.lines[0]] == corners and band.opacity < 1


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors_and_no_place_for_0() -> None:
    chart = Chart("", [Line("NGC", [1, 2, 3, 4], [1.0, 0.0, 10.0, 100.0])], y=Axis(log=True))
    y = draw(chart, BOX).y
    assert y.at(1) - y.at(10) == pytest.approx(y.at(10) - y.at(100))
    [line] = paths(chart)
    assert [len(piece) for piece in line.lines] == [2]  # the lone first point makes no line


def test_where_nothing_is_above_0_there_is_no_logarithm() -> None:
    chart = Chart("", [Line("NGC", [1, 2], [0.0, 0.0])], y=Axis(log=True))
    assert not draw(chart, BOX).y.log


@pytest.mark.parametrize("value", [0.0, 5.0, -2.0])
def test_a_flat_line_is_inside(value: float) -> None:
    drawn = draw(Chart("", [Line("NGC", [1, 2], [value, value])]), BOX)
    assert drawn.y.low <= value <= drawn.y.high and drawn.y.low < drawn.y.high


def test_shares_end_at_100() -> None:
    scale = Scale(Axis(unit="%"), [30, 99.5], 300, 0)
    assert scale.high == 100 and scale.marks[-1] == 100


def test_steps_bars_and_marks() -> None:
    stairs = replace(CURVE, low=(), high=(), steps=True)
    [line] = paths(Chart("", [stairs]))
    (a, b), (c, d), (e, f), *_ = line.lines[0]
    assert (b, c) == (d, e) and d != f and a != c
    bars = replace(CURVE, bars="y", joined=False)
    [drawn] = paths(Chart("", [bars]))
    assert len(drawn.lines) == 3 and all(p[0] == q[0] for p, q in drawn.lines)
    for mark in MARKS:
        shapes = draw(Chart("", [replace(bars, mark=mark, ends=True)]), BOX).shapes
        assert sum(bool(s.tip) for s in shapes) == 1, mark


def test_spans_are_a_timeline() -> None:
    agents = Axis("agent", names=["a", "b"], down=True)
    spans = Spans("waits", [0, 1], [2.0, 3.0], [4.0, 7.0], colour=2)
    chart = Chart("", [spans], Axis("seconds", "s"), agents)
    drawn = draw(chart, BOX)
    first, second = paths(chart, "waits")
    for path, start, end in ((first, 2, 4), (second, 3, 7)):
        assert {x for x, _ in path.lines[0]} == {drawn.x.at(start), drawn.x.at(end)}
    assert max(y for _, y in first.lines[0]) < min(y for _, y in second.lines[0])  # downwards
    assert second.tip == "waits\nb: 4 s"


def heat(rows: int, columns: int) -> Chart:
    values = [[(r + c) / (rows + columns) for c in range(columns)] for r in range(rows)]
    x, y = (Axis(names=[str(k) for k in range(n)], down=n == rows) for n in (columns, rows))
    return Chart("", [Heat(values, 0, 1)], x, y)


def test_few_cells_of_a_heat_map_have_numbers_and_many_a_scale() -> None:
    few, many = (draw(heat(n, n + 1), BOX).shapes for n in (3, 20))
    cells = [s for s in few if isinstance(s, Path) and str(s.fill).startswith("heat")]
    assert len(cells) == 12 and cells[0].fill == "heat0" and cells[0].tip
    assert "0.143" in texts(few) and "0.143" not in texts(many)
    assert texts(many)[-2:] == ["1", "0"]


def test_charts_with_a_link_share_a_legend_and_others_have_their_own() -> None:
    other = replace(CURVE, name="D-PSGD", colour=0)
    both = replace(CHART, marks=[CURVE, other])
    alone = texts(sheet([[both, both]], (300, 200)).shapes)
    shared = texts(sheet([[replace(both, link="m")] * 2], (300, 200)).shapes)
    assert alone.count("D-PSGD") == 2 and shared.count("D-PSGD") == 1


def test_svg_has_text_as_text_and_only_plain_colours() -> None:
    written = svg(sheet([[CHART]], (300, 200), "A <heading> & more"), "It falls.")
    root = ElementTree.fromstring(written)
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"A <heading> & more", "Loss", "epoch", "loss"} <= set(words)
    assert root.get("aria-label") == "It falls." and "var(" not in written
    assert hexadecimal(3) == palette()["lines"][3] and hexadecimal(3) in written


def test_a_page_has_the_same_drawing_in_colours_of_its_theme() -> None:
    written = figures([CHART])
    assert "var(--c-line3)" in written and "#" not in re.findall("<svg.*</svg>", written)[0]
    for theme in ("light", "dark"):
        assert f"--c-line3:{palette(theme)['lines'][3]};" in stylesheet()
    of_page, of_file = (
        re.findall(r' d="([^"]+)"', svg(single(CHART, 480, 290), themed=themed))
        for themed in (True, False)
    )
    assert of_page == of_file and all(d in written for d in of_page)


def test_every_colour_of_a_page_is_defined_there() -> None:
    used = set(re.findall(r"var\((--c-\w+)\)", figures([CHART, heat(3, 4), heat(20, 30)])))
    assert len(used) > 10 and all(f"{name}:" in stylesheet() for name in used)


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_matplotlib_paints_the_same_shapes(ending: str, start: bytes, tmp_path: FilePath) -> None:
    every = [
        Line(m, [1, 2], [k, k + 1], [k, k], [k + 1, k + 2], mark=m, hollow=bool(k % 2), dash=k)
        for k, m in enumerate(MARKS)
    ]
    drawn = sheet([[Chart("$x_1$ & more", every, note="a note"), heat(3, 4)]], (400, 300))
    one, two = (save(drawn, tmp_path / f"{k}.{ending}").read_bytes() for k in "ab")
    assert one.startswith(start) and one == two
    kinds = {type(shape) for shape in drawn.shapes}
    assert kinds == {Path, Circle, Words}


def test_without_matplotlib_svg_remains(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    drawn = Sheet(10, 10, [Circle(x=5, y=5)])
    assert save(drawn, tmp_path / "a.svg").exists()
    with pytest.raises(BadValue, match=r"ends in \.svg, or pip .*parley-learning\[pictures\]"):
        save(drawn, tmp_path / "a.png")
