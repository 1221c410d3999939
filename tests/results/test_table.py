"""One table in a terminal, in Markdown and in HTML."""

import io

from rich.console import Console

from parley.results.table import Table

TABLE = Table(
    ["", "MB sent\nper agent", ""], [["a & [b]", "1.5", "a long remark"]], frozenset({0, 2})
)


def printed(table: Table, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table.terminal(width))
    return [line.strip() for line in console.export_text().splitlines() if line.strip()]


def test_markdown_has_one_line_of_headings_and_aligned_columns() -> None:
    assert TABLE.markdown().splitlines() == [
        "|  | MB sent per agent |  |",
        "| --- | ---: | --- |",
        "| a & [b] | 1.5 | a long remark |",
    ]


def test_html_is_escaped_and_has_row_headings() -> None:
    text = TABLE.html("Results")
    assert '<th scope="row">a &amp; [b]</th><td>1.5</td>' in text
    assert '<th scope="col">MB sent per agent</th>' in text and 'aria-label="Results"' in text


def test_a_terminal_breaks_words_but_no_figures_and_takes_nothing_for_markup() -> None:
    wide = printed(TABLE)
    assert wide[0].split() == ["MB", "sent"] and "a & [b]" in wide[-1]
    narrow = printed(TABLE, width=30)
    assert "1.5" in " ".join(narrow) and len(narrow) > len(wide)
    assert printed(Table(["", ""], [["key", "value"]]))[0].split() == ["key", "value"]


def test_a_narrow_terminal_has_spreads_below_means_and_cuts_nothing_off() -> None:
    row = ["D-PSGD", *["0.2547 ± 0.01793"] * 4, "1.22e-07 ± 2e-08", "0.02", "0.1"]
    headings = [
        "",
        *["RMSE,\naveraged\nmodel"] * 4,
        "consensus\ndistance",
        "MB sent\nper agent",
        "",
    ]
    first, second = printed(Table(headings, [row]))[-2:]
    assert first.split() == ["D-PSGD", *["0.2547"] * 4, "1.22e-07", "0.02", "0.1"]
    assert second.split() == ["±", "0.01793"] * 4 + ["±", "2e-08"]
