"""The report's charts as PNG and SVG: the same as on the page."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from parley.charts.chart import Chart
from parley.charts.draw import sheet
from parley.charts.picture import save
from parley.charts.shapes import Sheet
from parley.results.page import heading, settings
from parley.results.sections import Section, measures_of, sections
from parley.results.seeds import Group


def pictures(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Every section as a picture, and an overview, as SVG and, if matplotlib is there, as PNG."""
    endings = ("png", "svg") if find_spec("matplotlib") else ("svg",)
    made = sections(groups)
    drawn = {section.name: section_sheet(section) for section in made if section.charts}
    return [
        save(one, folder / f"{name}.{ending}")
        for name, one in {"overview": overview(groups, made), **drawn}.items()
        for ending in endings
    ]


def section_sheet(section: Section) -> Sheet:
    """All charts of a section side by side."""
    first = section.charts[0]
    columns, size = 3, (450.0, 340.0)
    if section.small:
        columns, size = 5, (230.0, 180.0)
    elif first.network or first.heat:
        columns, size = 2, (560.0, 440.0)
    return sheet(_rows(section.charts, columns), size, section.title, small=section.small)


def overview(groups: Sequence[Group], made: Sequence[Section] | None = None) -> Sheet:
    """The graph, accuracies, distance and cost on one sheet."""
    by_name = {section.name: section.charts for section in made or sections(groups)}
    first = measures_of(groups)[0].name
    wanted = ("graph", first, "distance", "bytes", "loss")
    charts = [chart for name in wanted for chart in by_name[name][: 1 + (name == first)]][:6]
    return sheet(_rows(charts, 3), (470, 365), heading(groups), settings(groups))


def _rows(charts: Sequence[Chart], columns: int) -> list[Sequence[Chart]]:
    return [charts[k : k + columns] for k in range(0, len(charts), columns)] or [[]]
