"""Pictures of a study: ours next to the published figures, curves, and what its file names."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

from parley.charts.chart import Axis, Chart, Colour, Line
from parley.charts.draw import sheet
from parley.charts.picture import save
from parley.reproduce.cells import cells
from parley.reproduce.collect import Found, Result, figure
from parley.reproduce.study import Picture, Study
from parley.results.curves import EPOCHS, Seeds, curves_picture, line_of
from parley.results.seeds import curve
from parley.results.seeds import slots as place_of
from parley.results.tradeoff import Point, tradeoff_picture

FORMS = {"_mean_model": "averaged model", "_own": "own models", "_after_gossip": "after gossip"}
"""What the forms of a metric are called in a legend."""


def slots(study: Study) -> dict[str, int]:
    """A method has the same colour in every picture."""
    return place_of(dict.fromkeys(_line(cell.label, cell.values) for cell in cells(study).values()))


def _line(label: str, values: Sequence[str]) -> str:
    return ", ".join([label, *values])


def draw_all(found: Found, folder: Path, only: Path | None = None) -> dict[str, Path]:
    """Draws every picture for which there are runs, and returns their names, which begin with the
    section if they belong to one, and their files. A run with a single record has no curve.

    `only` is the file of the study's own picture, if it has one."""
    made: dict[str, Path] = {}
    study = found.study
    for section, _, settings in found.sections():
        results = [result for _, members in settings for result in members]
        if compared := fullest(results):
            path = folder / f"{section}.png"
            made[f"{section}/against the paper"] = beside_published(compared, path)
        lines = {line for picture in study.pictures.values() for line in picture.lines.values()}
        for setting, members in settings:
            if study.tune or any(result.cell.name in lines for result in members):
                continue
            for title, seeds in _forms(members):
                stem = re.sub(r"[^A-Za-z0-9._]+", "-", f"{setting}{title}")
                if any(len(records) > 1 for runs in seeds.values() for records in runs):
                    path = curves_picture(seeds, folder / f"{stem}.png", slots(study))
                    made[f"{section}/curves of {setting}{title}"] = path
    for name, picture in study.pictures.items():
        path = only or folder / f"{name.replace('/', '-')}.png"
        draw = draw_lines_of if picture.kind == "lines" else draw_tradeoff
        if draw(picture, found, path):
            made[name] = path
    return made


def fullest(results: Iterable[Result]) -> list[Result]:
    """The finished cells with published figures, each in its least reduced form."""
    chosen: dict[tuple[str, str], Result] = {}
    for result in (r for r in results if r.runs and r.cell.published and not r.form.choices):
        if not result.cell.study.table.published:
            continue
        key = (result.cell.name, result.form.variant)
        if key not in chosen or result.share > chosen[key].share:
            chosen[key] = result
    return list(chosen.values())


def _forms(members: Sequence[Result]) -> Iterator[tuple[str, dict[str, Seeds]]]:
    """The curves of each variant and reduction separately; titles mark reduced ones."""
    forms: dict[str, dict[str, Seeds]] = {}
    for result in members:
        if result.runs:
            line = _line(result.cell.label, result.cell.values)
            forms.setdefault(result.title, {})[line] = list(result.runs.values())
    yield from forms.items()


def beside_published(results: Sequence[Result], path: Path) -> Path:
    """Our figures and the published ones, one row per cell below the name of its setting; hollow
    markers are reduced runs."""
    rows: list[Result | str] = []
    for setting, members in itertools.groupby(results, key=lambda r: r.cell.setting):
        rows += [setting, *members]
    placed = [(row, r) for row, r in enumerate(rows) if not isinstance(r, str)]
    marks = [_column("paper", placed, -0.3, [r.cell.published for _, r in placed], "ink", "D")]
    for number, name in enumerate(results[0].cell.study.table.columns):
        words = next((words for end, words in FORMS.items() if name.endswith(end)), name)
        for whole in (True, False):
            some = [(row, r) for row, r in placed if bool(r.mark) != whole]
            found = [(r.mean(name) or nan, r.std(name) or 0.0) for _, r in some]
            column = _column(words, some, 0.2 * number - 0.1, found, number, "o")
            marks.append(replace(column, hollow=not whole))
    names = Axis(names=[_row_name(row) for row in rows], down=True)
    chart = Chart("", [mark for mark in marks if mark.x], Axis("test accuracy, %", "%"), names)
    return save(sheet([[chart]], (860, 110 + 36 * len(rows))), path)


def _column(
    name: str,
    placed: Sequence[tuple[int, Result]],
    shift: float,
    found: Sequence[tuple[float, ...] | None],
    colour: Colour,
    mark: str,
) -> Line:
    """Means with their standard deviations, each in its row."""
    both = [(m, s[0] if s else 0.0) for m, *s in filter(None, found)]
    means, low, high = (
        zip(*((m, m - s, m + s) for m, s in both), strict=True) if both else ((),) * 3
    )
    rows = [row + shift for row, _ in placed]
    return Line(name, means, rows, low, high, "x", colour, mark=mark, joined=False)


def _row_name(row: Result | str) -> str:
    if isinstance(row, str):
        return row
    return row.label + (f" (reduced: {row.mark})" if row.mark else "")


def draw_lines_of(picture: Picture, found: Found, path: Path) -> Path | None:
    """Lines over epochs or something else, if there are any. Dashed: reduced runs."""
    over = None if picture.over == "epoch" else figure(picture.over).take
    lines: list[Line] = []
    for slot, (label, name) in enumerate(picture.lines.items()):
        for result in (r for r in found.results if r.cell.name == name):
            line = curve(result.runs.values(), figure(picture.field).take, over)
            if line is not None:
                words = result.label.replace(result.cell.label, label, 1)
                words += f" (reduced: {result.mark})" if result.mark else ""
                lines.append(replace(line_of(words, line, slot), dash=int(bool(result.mark))))
    if not lines:
        return None
    x = Axis(picture.over) if over else EPOCHS.axis
    y = Axis(picture.axis or picture.field, log="accuracy" not in picture.field)
    return save(sheet([[Chart(picture.title, lines, x, y)]], (620, 430)), path)


def draw_tradeoff(picture: Picture, found: Found, path: Path) -> Path | None:
    """What methods reach against what they cost, if there are any."""
    settings: dict[str, list[Point]] = {}
    for _, _, sections in found.sections():
        for setting, members in sections:
            title = found.study.settings[setting].title or setting
            points = [_point(picture, result) for result in members if result.runs]
            settings |= {title: points} if points else {}
    if not settings:
        return None
    names = list(picture.costs.values())
    return tradeoff_picture(settings, names, picture.axis, path, floor=picture.chance)


def _point(picture: Picture, result: Result) -> Point:
    # A simulated network does not include a server.
    hidden = {"milliseconds"} if result.is_reference else set()
    costs = (None if name in hidden else result.mean(name) for name in picture.costs)
    return Point(
        result.label,
        tuple(nan if cost is None else cost for cost in costs),
        result.mean(picture.field) or 0.0,
        result.std(picture.field),
        compared=not result.is_reference,
        diverged=result.lost > 0,
        named=result.label == picture.subject,
    )
