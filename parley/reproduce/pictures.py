"""Pictures of a reproduction: ours next to the paper's, curves, and the paper's figures."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from parley.charts.chart import Axis, Chart, Colour, Line
from parley.charts.draw import sheet
from parley.charts.picture import save
from parley.reproduce.collect import (
    ACCURACIES,
    Found,
    PresetResult,
    grouped,
    title_of,
    with_variant,
)
from parley.reproduce.preset import LABELS
from parley.reproduce.presets import TABLES, Figure, figures
from parley.results.curves import EPOCHS, Seeds, curves_picture, line_of
from parley.results.group import curve, field_of

SLOTS = {label: slot for slot, label in enumerate(LABELS.values())}
"""A method has the same colour in every picture."""


def draw_all(found: Found, folder: Path) -> dict[str, Path]:
    """Draws every picture for which there are runs: tables, curves, the paper's figures.

    A run with a single record has no curve.

    Returns their names, which begin with the table, and files.
    """
    made: dict[str, Path] = {}
    for table in TABLES:
        if compared := _fullest(r for r in found.results if r.preset.table == table):
            path = folder / f"{table}.png"
            made[f"{table}/against the paper"] = beside_paper(compared, path)
        if table == "figures":
            continue
        for group, members in grouped(found.results, table):
            for title, lines in _forms(members):
                stem = re.sub(r"[^A-Za-z0-9._]+", "-", f"{group}{title}")
                if any(len(records) > 1 for seeds in lines.values() for records in seeds):
                    path = curves_picture(lines, folder / f"{stem}.png", SLOTS)
                    made[f"{table}/curves of {group}{title}"] = path
    for figure in figures().values():
        path = folder / f"{figure.name.replace('/', '-')}.png"
        if draw_figure(figure, found.results, path):
            made[f"{figure.name}"] = path
    return made


def _fullest(results: Iterable[PresetResult]) -> list[PresetResult]:
    """The finished cells of the paper, each in its least reduced form."""
    chosen: dict[tuple[str, str], PresetResult] = {}
    for result in (r for r in results if r.ends and r.preset.paper and not r.is_ablation):
        key = (result.preset.name, result.variant)
        if key not in chosen or result.share > chosen[key].share:
            chosen[key] = result
    return list(chosen.values())


def _forms(members: Sequence[PresetResult]) -> Iterator[tuple[str, dict[str, Seeds]]]:
    """The curves of each variant and reduction separately; titles mark reduced ones."""
    forms: dict[str, dict[str, Seeds]] = {}
    for result in members:
        if result.runs:
            runs = list(result.runs.values())
            forms.setdefault(title_of(result), {})[result.preset.label] = runs
    yield from forms.items()


def beside_paper(results: Sequence[PresetResult], path: Path) -> Path:
    """Our accuracies and the paper's, one row per cell below the name of its group; hollow markers
    are reduced runs."""
    rows: list[PresetResult | str] = []
    for group, members in itertools.groupby(results, key=lambda r: r.preset.group):
        rows += [group, *members]
    cells = [(row, r) for row, r in enumerate(rows) if not isinstance(r, str)]
    marks = [_column("paper", cells, -0.3, [_paper(r) for _, r in cells], "ink", "D")]
    for number, (name, words) in enumerate(ACCURACIES.items()):
        for whole in (True, False):
            some = [(row, r) for row, r in cells if bool(r.mark) != whole]
            found = [(r.mean(name), r.std(name) or 0.0) for _, r in some]
            column = _column(words, some, 0.2 * number - 0.1, found, number, "o")
            marks.append(replace(column, hollow=not whole))
    names = Axis(names=[_row_name(row) for row in rows], down=True)
    chart = Chart("", [mark for mark in marks if mark.x], Axis("test accuracy, %", "%"), names)
    return save(sheet([[chart]], (860, 110 + 36 * len(rows))), path)


def _paper(result: PresetResult) -> tuple[float, float]:
    paper = result.preset.paper
    assert paper is not None
    return paper.accuracy, paper.std


def _column(
    name: str,
    cells: Sequence[tuple[int, PresetResult]],
    shift: float,
    found: Sequence[tuple[float, float]],
    colour: Colour,
    mark: str,
) -> Line:
    """Means with their standard deviations, each in its row."""
    means, low, high = (
        zip(*((m, m - s, m + s) for m, s in found), strict=True) if found else ((),) * 3
    )
    rows = [row + shift for row, _ in cells]
    return Line(name, means, rows, low, high, "x", colour, mark=mark, joined=False)


def _row_name(row: PresetResult | str) -> str:
    if isinstance(row, str):
        return row
    reduced = f" (reduced: {row.mark})" if row.mark else ""
    return with_variant(row.preset.label, row) + reduced


def draw_figure(figure: Figure, results: Sequence[PresetResult], path: Path) -> Path | None:
    """One of the paper's figures from our runs, if there are any. Dashed: reduced runs."""
    share = "accuracy" in figure.field
    take = field_of(figure.field, 100 if share else 1)
    lines: list[Line] = []
    for slot, (label, name) in enumerate(figure.lines.items()):
        for result in (r for r in results if r.preset.name == name):
            found = curve(result.runs.values(), take)
            if found is not None:
                words = with_variant(label, result)
                words += f" (reduced: {result.mark})" if result.mark else ""
                lines.append(replace(line_of(words, found, slot), dash=int(bool(result.mark))))
    if not lines:
        return None
    chart = Chart(figure.title, lines, EPOCHS.axis, Axis(figure.axis, log=not share))
    return save(sheet([[chart]], (620, 430)), path)
