"""Charts as parts of a page: drawings with their titles, legends and numbers.

``web/charts.js`` adds what moves: values at the pointer, series that are switched off, tables.
"""

import json
from collections.abc import Sequence
from html import escape

from parley.charts.chart import Chart, Line, Spans
from parley.charts.draw import draw
from parley.charts.shapes import Box, Sheet, colour_name
from parley.charts.svg import svg

SIZES = {1: (480.0, 290.0), 3: (360.0, 250.0)}
"""Of one or two charts side by side, and of more."""
SMALL = (230.0, 150.0)
WHOLE = (560.0, 380.0)
"""Of graphs and heat maps."""


def figures(charts: Sequence[Chart], small: bool = False) -> str:
    """Charts side by side; small ones share one legend above them."""
    longest = max(charts, key=lambda chart: len(chart.named))
    above = legend(longest) if small else ""
    size = SMALL if small else SIZES[3 if len(charts) > 2 else 1]
    drawn = "".join(figure(chart, size, small) for chart in charts)
    return f'{above}<div class="charts{" small" * small}">{drawn}</div>'


def figure(chart: Chart, size: tuple[float, float], small: bool = False) -> str:
    """One chart with its title."""
    kind = "graph" if chart.network else "heat" if chart.heat else "line"
    width, height = size if kind == "line" else WHOLE
    drawn = draw(chart, Box(0, 0, width, height), small)
    picture = svg(Sheet(width, height, drawn.shapes), chart.about or chart.title, themed=True)
    x, values = drawn.x, chart.values()
    values["frame"] = [*drawn.frame, width, height, x.low, x.high, x.log]
    # A "<" in a name must not close the script.
    data = json.dumps(values, allow_nan=False).replace("<", "\\u003c") if chart.lines else ""
    if data:
        data = f'<script type="application/json">{data}</script>'
    shown = "" if small else legend(chart)
    numbers = '<details class="numbers"><summary>Numbers</summary></details>'
    numbers = numbers if data and not small else ""
    return (
        f'<figure class="{kind}" data-link="{escape(chart.link or chart.title)}">'
        f"<figcaption>{escape(chart.title)}</figcaption>{shown}"
        f'<div class="parley-canvas">{picture}</div>{data}{numbers}</figure>'
    )


def legend(chart: Chart) -> str:
    """Buttons that show and hide series, here and in the charts with the same link."""
    if len(chart.named) < 2 or not chart.legend:
        return ""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-series="{escape(one.name)}">'
        f'<i style="border-top:{_stroke(one)} var(--c-{colour_name(one.colour)})"></i>'
        f"{escape(one.name)}</button>"
        for one in chart.named
    )
    link = escape(chart.link or chart.title)
    return f'<div class="parley-legend" data-link="{link}">{buttons}</div>'


def _stroke(one: Line | Spans) -> str:
    if isinstance(one, Spans):
        return ".7em solid"
    return "3px dashed" if one.dash else "3px solid"
