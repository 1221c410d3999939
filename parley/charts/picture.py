"""Drawings as files: SVG by `parley.charts.svg`, PNG and PDF by matplotlib from the same shapes.

matplotlib is used without pyplot, so drawing neither needs a display nor touches global state, and
the same drawing always gives the same file.
"""

import io
from pathlib import Path as FilePath
from typing import Any

from parley.charts.shapes import Circle, Path, Shape, Sheet, Words, hexadecimal
from parley.charts.svg import svg
from parley.errors import BadValue, needed

PICTURE_FORMATS = ("png", "svg", "pdf")
POINTS = 0.75
"""In a pixel: 72 to an inch, which has 96 pixels."""


def checked_path(path: str | FilePath, field: str = "out") -> FilePath:
    """The path, if its suffix is a format that can be written here."""
    out = FilePath(path)
    ending = out.suffix.lower().lstrip(".")
    if ending not in PICTURE_FORMATS:
        valid = "a file that ends in " + ", ".join(f".{e}" for e in PICTURE_FORMATS)
        raise BadValue(field, str(path), valid)
    if ending != "svg":
        needed("matplotlib", "pictures", field, str(path), instead="a file that ends in .svg")
    return out


def save(sheet: Sheet, path: str | FilePath) -> FilePath:
    """Writes a drawing; the suffix says in which format."""
    out = checked_path(path)
    ending = out.suffix.lower().lstrip(".")
    content = svg(sheet).encode() if ending == "svg" else painted(sheet, ending)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(content)
    return out


class Picture:
    """A drawing that notebooks display and that can be saved."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet

    def save(self, path: str | FilePath) -> FilePath:
        """Saves it; the suffix decides the format: png, svg or pdf."""
        return save(self.sheet, path)

    def _repr_svg_(self) -> str:
        return svg(self.sheet)


def painted(sheet: Sheet, ending: str) -> bytes:
    """The content of a PNG or PDF file, by matplotlib; PDF has real text too."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width / 96, sheet.height / 96), facecolor=hexadecimal("paper"))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, sheet.width)
    axes.set_ylim(sheet.height, 0)
    for order, shape in enumerate(sheet.shapes):
        artist = _artist(shape)
        artist.set_zorder(order)
        if shape.clip:
            from matplotlib.patches import Rectangle

            left, top, width, height = shape.clip
            axes.add_artist(artist)
            clip = Rectangle((left, top), width, height, transform=axes.transData)
            artist.set_clip_path(clip)
        else:
            axes.add_artist(artist)
            artist.set_clip_on(False)
    drawn = io.BytesIO()
    undated = {"pdf": {"CreationDate": None}}.get(ending)
    with mpl.rc_context({"pdf.fonttype": 42}):
        figure.savefig(drawn, format=ending, dpi=144, metadata=undated)
    return drawn.getvalue()


def _artist(shape: Shape) -> Any:
    from matplotlib import patches, patheffects
    from matplotlib.path import Path as Outline
    from matplotlib.text import Text

    match shape:
        case Path():
            points = [point for line in shape.lines for point in line]
            codes = [Outline.MOVETO if k == 0 else Outline.LINETO
                     for line in shape.lines for k in range(len(line))]  # fmt: skip
            made: Any = patches.PathPatch(
                Outline(points, codes), capstyle="butt", joinstyle="round", **_paint(shape)
            )
            if shape.dash:
                made.set_linestyle((0, [part / shape.width for part in shape.dash]))
            return made
        case Circle():
            return patches.Circle((shape.x, shape.y), shape.radius, **_paint(shape))
        case Words():
            made = Text(
                shape.x, shape.y, shape.text, color=hexadecimal(shape.colour),
                fontsize=shape.size * POINTS, parse_math=False, va="baseline",
                ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                fontweight="bold" if shape.bold else "normal",
                rotation=90 if shape.upright else 0, rotation_mode="anchor",
            )  # fmt: skip
            if shape.halo:
                paper = hexadecimal("paper")
                made.set_path_effects([patheffects.withStroke(linewidth=2.5, foreground=paper)])
            return made
    raise TypeError(type(shape))


def _paint(shape: Path | Circle) -> dict[str, Any]:
    return {
        "facecolor": "none" if shape.fill is None else hexadecimal(shape.fill),
        "edgecolor": "none" if shape.stroke is None else hexadecimal(shape.stroke),
        "linewidth": shape.width * POINTS if shape.stroke is not None else 0.0,
        "alpha": shape.opacity,
    }
