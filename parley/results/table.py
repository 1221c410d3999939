"""A table for a terminal, a Markdown document or a page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

GAP = 2
"""Characters between columns in a terminal."""
SPREAD = " ± "
"""Between a mean and its standard deviation."""


@dataclass(frozen=True)
class Table:
    """Headings and rows of cells.

    >>> print(Table(["", "accuracy,\\n%"], [["NGC", "97.5"]]).markdown(), end="")
    |  | accuracy, % |
    | --- | ---: |
    | NGC | 97.5 |
    """

    headings: Sequence[str]
    """Line breaks in headings are kept in terminals, where columns are narrow. If all headings are
    empty, a terminal shows none."""
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})
    """Columns of text on the left, which may wrap in a terminal. The others hold figures, which are
    right-aligned and never wrap."""
    title: str = ""
    notes: str = ""
    """Shown below the table in a terminal."""
    extra: int = 0
    """How many columns at the end go below the table where a terminal is too narrow for them."""

    def beside(self, heading: str, cells: Sequence[str]) -> "Table":
        """With one more column, for terminals that are wide enough; in others it goes below.

        >>> table = Table(["", "accuracy"], [["D-PSGD", "97"], ["NGC", "98"], ["QGM", "97"]])
        >>> table = table.beside("momentum", ["none", "none", "0.9"])
        >>> table.headings[-1], table._narrowed().notes
        ('momentum', 'momentum: none (D-PSGD, NGC); 0.9 (QGM)')
        """
        rows = [[*row, cell] for row, cell in zip(self.rows, cells, strict=True)]
        headings = [*self.headings, heading]
        return replace(self, headings=headings, rows=rows, extra=self.extra + 1)

    def _narrowed(self) -> "Table":
        """The last column as a line below the table."""
        who: dict[str, list[str]] = {}
        for name, *_, cell in self.rows:
            if cell:
                who.setdefault(cell, []).append(name)
        said = "; ".join(f"{cell} ({', '.join(names)})" for cell, names in who.items())
        lines = [f"{self.headings[-1]}: {said}"] if said else []
        rows = [row[:-1] for row in self.rows]
        notes = "\n".join([*lines, *filter(None, [self.notes])])
        made = replace(self, headings=self.headings[:-1], rows=rows, notes=notes)
        return replace(made, extra=self.extra - 1)

    def _stacked(self) -> "Table":
        """With each standard deviation on a line below its mean."""
        rows = [[cell.replace(SPREAD, f"\n{SPREAD.lstrip()}") for cell in row] for row in self.rows]
        return replace(self, rows=rows)

    def _width(self) -> int:
        """Characters in which it can be read: figures never wrap, names at spaces."""
        columns = zip(self.headings, *self.rows, strict=True)
        found = GAP * (len(self.headings) - 1)
        for number, cells in enumerate(columns):
            pieces = [p for c in cells for p in (c.split() if number in self.words else [c])]
            found += max((len(line) for p in pieces for line in p.split("\n")), default=0)
        return found

    def terminal(self, width: int | None = None) -> RichTable:
        """For `rich`; narrow enough that nine columns of figures fit into 80 characters. `width` is
        the terminal's: where it is too narrow, extra columns go below, then spreads below means."""
        if width is not None and self._width() > width:
            if self.extra:
                return self._narrowed().terminal(width)
            return self._stacked().terminal()
        shown = RichTable(
            title=Text(self.title) if self.title else None,
            caption=Text(self.notes) if self.notes else None,
            title_justify="left",
            caption_justify="left",
            show_header=any(self.headings),
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        for number, heading in enumerate(self.headings):
            figures = number not in self.words
            side = "right" if figures else "left"
            shown.add_column(Text(heading), justify=side, no_wrap=figures, overflow="fold")  # type: ignore[arg-type]
        for row in self.rows:
            shown.add_row(*map(Text, row))
        return shown

    def markdown(self) -> str:
        """For a document, without the title and notes."""
        rule = ["---" if number in self.words else "---:" for number in range(len(self.headings))]
        lines = [self._one_line(), rule, *self.rows]
        return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)

    def html(self, label: str) -> str:
        """For a page: the first cell of each row is its heading; wide tables scroll."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self._one_line())
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
            + "</tr>"
            for first, *rest in self.rows
        )
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _one_line(self) -> list[str]:
        return [heading.replace("\n", " ") for heading in self.headings]


def mean_and_spread(
    mean: float, std: float | None, form: str = ".2f", form_of_std: str | None = None
) -> str:
    """A figure for a table, with its standard deviation if there are several seeds.

    >>> mean_and_spread(97.531, 0.214), mean_and_spread(97.531, None, ".1f")
    ('97.53 ± 0.21', '97.5')
    """
    return f"{mean:{form}}" + ("" if std is None else f"{SPREAD}{std:{form_of_std or form}}")
