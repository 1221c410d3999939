"""Drawings as SVG, with text as text: for pages, in the colours of their theme, and for files."""

from html import escape

from parley.charts.chart import Colour
from parley.charts.shapes import (
    FONT,
    Box,
    Circle,
    Path,
    Shape,
    Sheet,
    Words,
    colour_name,
    hexadecimal,
    named_colours,
)

FAMILY = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def svg(sheet: Sheet, about: str = "", themed: bool = False) -> str:
    """The drawing. With `themed` its colours are those of `stylesheet`, which change with the
    page's theme; without, it is a file of its own."""
    made = _Writer(themed)
    size = f'width="{_n(sheet.width)}" height="{_n(sheet.height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(sheet.width)} '
    head += f'{_n(sheet.height)}" font-size="{_n(FONT)}"'
    head += "" if themed else f' {size} font-family="{FAMILY}"'
    head += f' role="img" aria-label="{escape(about)}">' if about else ">"
    paper = "" if themed else f'<rect {size} fill="{hexadecimal("paper")}"/>'
    written = head + paper + "".join(map(made.shape, sheet.shapes)) + "</svg>"
    return written if themed else f'<?xml version="1.0" encoding="UTF-8"?>\n{written}\n'


def stylesheet() -> str:
    """The colours of both themes as CSS."""
    light, dark = (
        "".join(f"--c-{name}:{colour};" for name, colour in named_colours(theme).items())
        for theme in ("light", "dark")
    )
    return (
        f":root{{{light}}}\n@media not print{{\n@media (prefers-color-scheme: dark)"
        f'{{:root:not([data-theme="light"]){{{dark}}}}}\n:root[data-theme="dark"]{{{dark}}}\n}}\n'
    )


class _Writer:
    def __init__(self, themed: bool) -> None:
        self.themed = themed

    def colour(self, colour: Colour | None) -> str:
        if colour is None:
            return "none"
        name = colour_name(colour)
        if not self.themed or name.startswith("#"):
            return hexadecimal(name)
        return f"var(--c-{name})"

    def shape(self, shape: Shape) -> str:
        match shape:
            case Path():
                tag, rest, inner = "path", self._path(shape), ""
            case Circle():
                rest = f' cx="{_n(shape.x)}" cy="{_n(shape.y)}" r="{_n(shape.radius)}"'
                tag, rest, inner = "circle", rest + self._painted(shape), ""
            case Words():
                tag, rest, inner = "text", self._words(shape), escape(shape.text, quote=False)
            case _:
                raise TypeError(type(shape))
        of = f' data-of="{escape(shape.of)}"' if shape.of else ""
        tip = f"<title>{escape(shape.tip, quote=False)}</title>" if shape.tip else ""
        inner = tip + inner
        made = f"<{tag}{of}{rest}>{inner}</{tag}>" if inner else f"<{tag}{of}{rest}/>"
        return _clipped(made, shape.clip) if shape.clip else made

    def _painted(self, shape: Path | Circle) -> str:
        made = f' fill="{self.colour(shape.fill)}"'
        if shape.stroke is not None:
            made += f' stroke="{self.colour(shape.stroke)}" stroke-width="{_n(shape.width)}"'
        return made + (f' opacity="{_n(shape.opacity)}"' if shape.opacity != 1 else "")

    def _path(self, path: Path) -> str:
        pieces = []
        for line in path.lines:
            closed = len(line) > 2 and line[0] == line[-1]
            points = " ".join(f"{_n(x)},{_n(y)}" for x, y in (line[:-1] if closed else line))
            pieces.append(f"M{points}{'Z' * closed}")
        made = f' d="{"".join(pieces)}"' + self._painted(path)
        if path.stroke is not None and path.fill is None:
            made += ' stroke-linejoin="round"'
        dashes = " ".join(map(_n, path.dash))
        return made + (f' stroke-dasharray="{dashes}"' if path.dash else "")

    def _words(self, words: Words) -> str:
        made = f' x="{_n(words.x)}" y="{_n(words.y)}" fill="{self.colour(words.colour)}"'
        made += f' font-size="{_n(words.size)}"' if words.size != FONT else ""
        made += f' text-anchor="{words.anchor}"' if words.anchor != "start" else ""
        made += ' font-weight="bold"' if words.bold else ""
        made += f' transform="rotate(-90 {_n(words.x)} {_n(words.y)})"' if words.upright else ""
        if words.halo:
            made += f' stroke="{self.colour("paper")}" stroke-width="3" paint-order="stroke"'
        return made


def _clipped(made: str, box: Box) -> str:
    """A drawing within a drawing cuts off what is outside of it, in the same coordinates."""
    left, top, width, height = map(_n, box)
    place = f'x="{left}" y="{top}" width="{width}" height="{height}"'
    return f'<svg {place} viewBox="{left} {top} {width} {height}">{made}</svg>'


def _n(number: float) -> str:
    """Two digits after the point are enough, and zeros there are none."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if number % 1 else f"{number:.0f}"
