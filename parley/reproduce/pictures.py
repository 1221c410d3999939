"""Pictures of a reproduction: ours next to the paper's, curves, and the paper's figures."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure as Canvas

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
from parley.results.curves import Description, Seeds, curves_picture, draw_lines, series_of
from parley.results.group import curve, field_of
from parley.results.style import INK, LINES, plain_axes, save

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
    canvas = Canvas(figsize=(9, 1.2 + 0.38 * len(rows)), layout="constrained")
    axes = canvas.subplots()
    for row, result in enumerate(rows):
        if isinstance(result, str):
            continue
        paper = result.preset.paper
        assert paper is not None
        axes.errorbar(
            paper.accuracy, row - 0.3, xerr=paper.std, fmt="D", ms=4, color=INK,
            label="paper" if row == 1 else None,
        )  # fmt: skip
        for number, (name, words) in enumerate(ACCURACIES.items()):
            colour = LINES[number]
            axes.errorbar(
                result.mean(name), row - 0.1 + 0.2 * number, xerr=result.std(name) or 0.0, fmt="o",
                ms=5, color=colour, mfc="white" if result.mark else colour,
                label=words if row == 1 else None,
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), map(_row_name, rows), fontsize=8)
    for tick, shown in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_fontweight("bold" if isinstance(shown, str) else "normal")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("test accuracy, %")
    plain_axes(axes)
    canvas.legend(loc="outside upper center", ncols=4, frameon=False)
    return save(canvas, path)


def _row_name(row: PresetResult | str) -> str:
    if isinstance(row, str):
        return row
    reduced = f"\nreduced: {row.mark}" if row.mark else ""
    return with_variant(row.preset.label, row) + reduced


def draw_figure(figure: Figure, results: Sequence[PresetResult], path: Path) -> Path | None:
    """One of the paper's figures from our runs, if there are any. Dashed: reduced runs."""
    share = "accuracy" in figure.field
    take = field_of(figure.field, 100 if share else 1)
    series: list[Description] = []
    for slot, (label, name) in enumerate(figure.lines.items()):
        for result in (r for r in results if r.preset.name == name):
            found = curve(result.runs.values(), take)
            if found is not None:
                words = with_variant(label, result)
                words += f" (reduced: {result.mark})" if result.mark else ""
                series.append(series_of(words, found, slot) | {"dash": int(bool(result.mark))})
    if not series:
        return None
    x: Description = {"name": "epoch", "integer": True}
    y: Description = {"name": figure.axis, "log": not share}
    canvas = Canvas(figsize=(6.4, 4.4), layout="constrained")
    draw_lines(canvas.subplots(), {"title": figure.title, "x": x, "y": y, "series": series})
    return save(canvas, path)
