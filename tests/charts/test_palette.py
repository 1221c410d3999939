"""The colours of pages and pictures: everyone can tell them apart, and read what is written."""

import json
from pathlib import Path

import pytest

import parley

PALETTE = json.loads(
    Path(parley.__file__).with_name("web").joinpath("palette.json").read_text(encoding="utf-8")
)


# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as others see it.
SEEN_BY = {
    "most": [(1, 0, 0), (0, 1, 0), (0, 0, 1)],
    "protanopes": [
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ],
    "deuteranopes": [
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ],
}


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def luminance(colour: str) -> float:
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def lab(colour: str, eyes: str) -> list[float]:
    """CIE L*a*b*, D65."""
    light = linear(colour)
    seen = [sum(w * c for w, c in zip(row, light, strict=True)) for row in SEEN_BY[eyes]]
    seen = [min(1.0, max(0.0, c)) for c in seen]
    to_xyz = [
        (0.4124, 0.3576, 0.1805, 0.95047),
        (0.2126, 0.7152, 0.0722, 1.0),
        (0.0193, 0.1192, 0.9505, 1.08883),
    ]
    x, y, z = ((a * seen[0] + b * seen[1] + c * seen[2]) / white for a, b, c, white in to_xyz)
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return [116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)]


@pytest.mark.parametrize("eyes", SEEN_BY)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_can_be_told_apart_by_all(theme: str, eyes: str) -> None:
    """The first six, as many as the paper has methods, by colour alone; dashes help further."""
    lines = PALETTE[theme]["lines"][:6]
    seen = [lab(colour, eyes) for colour in lines]
    apart = {
        (lines[i], lines[j]): sum((a - b) ** 2 for a, b in zip(seen[i], seen[j], strict=True))
        ** 0.5
        for i in range(6)
        for j in range(i)
    }
    assert min(apart.values()) > 20, {k: round(v) for k, v in apart.items() if v <= 20}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_and_text_stand_out_from_the_paper(theme: str) -> None:
    """WCAG: 3:1 for graphics, 4.5:1 for text."""
    palette = PALETTE[theme]
    paper = luminance(palette["paper"])

    def contrast(colour: str) -> float:
        low, high = sorted((paper, luminance(colour)))
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(colour) >= 3 for colour in palette["lines"])
    assert all(contrast(palette[name]) >= 4.5 for name in ("ink", "faint"))
