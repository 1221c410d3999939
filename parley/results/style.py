"""How pictures look and how they are saved: colours, axes, names, files.

Figures are made without pyplot, so drawing neither needs a display nor touches global state,
and the same input gives the same file.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from parley.errors import BadValue
from parley.results import PICTURE_FORMATS

# The same colours as on the pages. Classes use Paul Tol's "muted" scheme, which is distinct for
# readers with any common colour blindness; a test checks the same for lines.
THEME: dict[str, Any] = json.loads(
    resources.files("parley").joinpath("web", "palette.json").read_text(encoding="utf-8")
)["light"]
PALETTE, LINES = THEME["classes"], THEME["lines"]
DASHES = ("-", "--", ":", "-.")
INK, EDGE, NODE = THEME["ink"], THEME["edge"], THEME["node"]
BAR = LINES[0]


def line_style(slot: int, dash: int) -> dict[str, Any]:
    """How a method's curve is drawn: the first six differ in colour, further ones in dashes.

    >>> line_style(6, 1) == {"color": LINES[6], "ls": "--"}
    True
    """
    return {"color": LINES[slot % len(LINES)], "ls": DASHES[dash % len(DASHES)]}


def plain_axes(axes: Axes) -> None:
    """A light grid, and no frame at the top and right."""
    axes.grid(color=THEME["line"], linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def plain_numbers(axis: Axis) -> None:
    """0.5, 1, 2 on a logarithmic axis, not powers of ten."""
    axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(mpl.ticker.NullFormatter())


def colours(classes: int) -> list[str]:
    """One colour per class: up to ten that all readers can tell apart, or else a graded scale.

    >>> colours(2)
    ['#332288', '#88CCEE']
    >>> len(set(colours(100)))
    100
    """
    if classes <= len(PALETTE):
        return list(PALETTE[:classes])
    scale = mpl.colormaps["viridis"]
    return [mpl.colors.to_hex(scale(k / (classes - 1))) for k in range(classes)]


def every(n: int, room: int) -> list[int]:
    """Round numbers below n, about as many as there is room for.

    >>> every(5, 9), every(100, 10)
    ([0, 1, 2, 3, 4], [0, 10, 20, 30, 40, 50, 60, 70, 80, 90])
    """
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100) if n <= s * max(room, 1)), n)
    return list(range(0, n, step))


def short(name: str, length: int = 24) -> str:
    """A name shortened to at most `length` characters."""
    return name if len(name) <= length else name[: length - 1] + "…"


def checked_path(path: str | Path) -> Path:
    """The path, if its suffix is a format that can be written."""
    out = Path(path)
    if out.suffix.lower().lstrip(".") not in PICTURE_FORMATS:
        raise BadValue(
            "out", str(path), "a file that ends in " + ", ".join(f".{e}" for e in PICTURE_FORMATS)
        )
    return out


def save(figure: Figure, out: Path) -> Path:
    """Saves the figure; the same figure always gives the same file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    ending = out.suffix.lower().lstrip(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    with mpl.rc_context({"svg.hashsalt": "parley"}):  # otherwise every SVG would have different IDs
        figure.savefig(out, format=ending, dpi=150, metadata=undated)
    return out
