"""Our results next to the paper's, cell by cell, from the run folders alone."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parley.errors import BadValue
from parley.files import write_atomically
from parley.reproduce import claims
from parley.reproduce.collect import (
    ACCURACIES,
    Found,
    PresetResult,
    grouped,
    title_of,
    with_variant,
)
from parley.reproduce.preset import DATASETS, METHODS
from parley.reproduce.presets import TABLES
from parley.results.paired import FEWEST
from parley.results.table import Table, mean_and_spread

BY_DATASET = ("cifar10", "datasets", "text-fullres")
"""The paper's tables, of which a report may have only some datasets."""
BEGIN, END = "<!-- parley reproduce report: begin -->", "<!-- parley reproduce report: end -->"


def _accuracy(result: PresetResult, name: str) -> str:
    return mean_and_spread(result.mean(name), result.std(name)) if result.ends else "-"


def _deviation(result: PresetResult, name: str) -> str:
    """Signed; empty where the paper has no figure, or one for a longer run."""
    value = result.deviation(name)
    return "" if value is None or result.mark else f"{round(value, 1) + 0.0:+.1f}"


DEVIATION = "Δ/std"
"""Heading of the columns that reduced runs leave empty."""
HEADINGS = [
    "method", "paper", "after gossip", DEVIATION, "averaged", DEVIATION, "own", "seeds", "",
]  # fmt: skip


def _cells(result: PresetResult) -> list[str]:
    paper = result.preset.paper
    label = with_variant(result.preset.label, result)
    cells = [label, mean_and_spread(paper.accuracy, paper.std) if paper else ""]
    for name in ACCURACIES:
        cells.append(_accuracy(result, name))
        if name != "accuracy_own":  # which the paper does not report
            cells.append(_deviation(result, name))
    mark = f"reduced: {result.mark}" if result.mark else ""
    remarks = [mark, result.chance_note, *result.unfinished]
    return [*cells, str(len(result.ends)), "; ".join(r for r in remarks if r)]


def tables(found: Found) -> Iterator[Table]:
    """For a terminal: one table per group of compared methods, reduced runs separately."""
    for table in (t for t in TABLES if t != "figures"):
        for group, members in grouped(found.results, table):
            for title, alike in itertools.groupby(members, key=title_of):
                yield _narrow(f"{group}{title}", list(alike))
    for group, order in itertools.groupby(order_rows(found.results), key=lambda row: row[0]):
        title = f"{group}: order of the methods"
        yield _without_marks(ORDER[1:], [row[1:] for row in order], range(2, 5), title)
    kept = sorted(claims.ablations(found.results), key=_circumstances)
    for (group, mark), same in itertools.groupby(kept, key=_circumstances):
        title = ", ".join(filter(None, [f"{group}: choices as printed", mark]))
        rows = [
            [a.after.preset.label, a.words, *_ablation_figures(a), a.gossiped.verdict] for a in same
        ]
        yield _without_marks(["", *ABLATION[1:-2], "n", ""], rows, range(2, 7), title)


def _circumstances(ablation: claims.Ablation) -> tuple[str, str]:
    """What the rows of one table in a terminal share."""
    return ablation.after.preset.group, ablation.after.mark


def _without_marks(
    headings: Sequence[str], rows: Iterable[Sequence[str]], figures: range, title: str
) -> Table:
    """Without bold, and with no spaces in figures: narrow enough for a terminal."""
    narrow = [
        [c.replace("**", "").replace(" ", "" if n in figures else " ") for n, c in enumerate(row)]
        for row in rows
    ]
    words = frozenset(range(len(headings))) - frozenset(figures)
    return Table(headings, narrow, words, title)


ABLATION = [
    "run", "as printed", "without", "with", "difference", "averaged", "seeds", "",
]  # fmt: skip
ORDER = ["group", "lower in the paper", "higher", "paper", "ours", "seeds", ""]


ORDER_TEXT = (
    "Accuracy after gossip: for two methods that are adjacent in the paper's order, how far the "
    "higher is above the lower, in percentage points: the paper's means, and ours with a 95 % "
    "interval (paired t over seeds). An order is claimed only if the interval excludes 0."
)
ABLATION_TEXT = (
    "The effect of the choices in which the printed paper and its authors' code differ: accuracy "
    "after gossip without and with them, the difference in percentage points with a 95 % interval "
    "(paired t: the same seeds on both sides), and the same difference for the averaged model. One "
    "interval in twenty excludes 0 by chance."
)


def ablation_rows(results: Sequence[PresetResult]) -> list[list[str]]:
    """The effect of choices: runs with them as printed next to runs with them as run."""
    rows = []
    for found in claims.ablations(results):
        note = ", ".join(part for part in (found.gossiped.verdict, found.after.mark) if part)
        rows.append([found.after.preset.name, found.words, *_ablation_figures(found), note])
    return rows


def _ablation_figures(found: claims.Ablation) -> list[str]:
    means = (f"{mean:.2f}" for mean in found.means)
    return [*means, str(found.gossiped), str(found.averaged), str(found.gossiped.seeds)]


def ablation_claims(results: Sequence[PresetResult]) -> list[str]:
    """The table above in sentences, claiming no more than it shows."""
    lines, undecided = [], []
    for found in claims.ablations(results):
        told, preset = found.gossiped, found.after.preset
        name = f"{preset.label}, {found.sentence}"
        if told.half is None:
            continue
        if not told.sign:
            undecided.append(name)
            continue
        ends = sorted((abs(told.mean - told.half), abs(told.mean + told.half)))
        way = "higher" if told.sign > 0 else "lower"
        how = f"{abs(told.mean):.1f} points {way}, {ends[0]:.1f} to {ends[1]:.1f}"
        lines.append(f"- {name}: {how} ({preset.group})")
    if undecided:
        lines.append(f"- Inconclusive: {'; '.join(undecided)}")
    return lines


def order_rows(results: Sequence[PresetResult]) -> list[list[str]]:
    """Adjacent methods in the paper's order, and whether ours can be told apart."""
    rows = []
    for group, pairs in claims.orders(results).items():
        for pair in (pair for pair in pairs if pair.neighbours):
            labels = (pair.lower.preset.label, pair.higher.preset.label)
            ours = (str(pair.ours), str(pair.ours.seeds))
            rows.append([group, *labels, f"{pair.paper:+.2f}", *ours, pair.verdict])
    return rows


def order_claims(results: Sequence[PresetResult]) -> list[str]:
    """How many of all pairs of methods can be told apart."""
    lines = []
    for group, pairs in claims.orders(results).items():
        signs = [pair.ours.sign for pair in pairs]
        of_paper, reversed_ = claims.corrected(pairs)
        lines.append(
            f"- {group}: of {len(pairs)} pairs of methods, {signs.count(1)} are in the paper's "
            f"order, {signs.count(-1)} the other way round, {signs.count(0)} inconclusive; "
            f"with at least {FEWEST} seeds and corrected for the number of pairs (Holm), "
            f"{of_paper} and {reversed_} remain"
        )
    return lines


def _narrow(title: str, members: Sequence[PresetResult]) -> Table:
    remarks = ((r, note) for r in members for note in (r.chance_note, *r.unfinished))
    notes = [f"{r.preset.label}: {note}" for r, note in remarks if note]
    short = {"after gossip": "gossip", "seeds": "n"}
    rows = []
    for result in members:
        label, *cells = _cells(result)[:-1]
        rows.append([label.partition(",")[0], *(cell.replace(" ", "") for cell in cells)])
    headings, rows = _without_empty([short.get(h, h) for h in HEADINGS[:-1]], rows)
    return Table(headings, rows, title=title, notes="\n".join(notes))


def _without_empty(
    headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Without the columns of deviations if all of them are empty."""
    empty = {column for column, heading in enumerate(headings) if heading == DEVIATION}
    if any(row[column] for row in rows for column in empty):
        return list(headings), [list(row) for row in rows]
    kept = [column for column in range(len(headings)) if column not in empty]
    return [headings[k] for k in kept], [[row[k] for k in kept] for row in rows]


def markdown(found: Found, pictures: Mapping[str, str]) -> str:
    """For a document; `pictures` maps names to paths relative to it."""
    lines = [_introduction(found, pictures), ""]
    for table, whole_title in TABLES.items():
        groups = list(grouped(found.results, table))
        if not groups:
            continue
        title = _datasets(m for _, m in groups) if table in BY_DATASET else whole_title
        lines += [f"### {title}", ""]
        if table != "figures":
            rows = [
                ["" if number else group, *_cells(member)]
                for group, members in groups
                for number, member in enumerate(members)
            ]
            lines += _rows(*_without_empty(["preset", *HEADINGS], rows), words=2)
            lines += _commands([member for _, members in groups for member in members])
        else:
            rows = [
                [r.preset.name, *_cells(r)[2:8:2], *_cells(r)[7:]] for _, m in groups for r in m
            ]
            lines += _rows(["run", *ACCURACIES.values(), "seeds", ""], rows)
        shown = {n: p for n, p in pictures.items() if n.partition("/")[0] == table}
        for name, path in shown.items():
            lines += [f"![{title}: {name.partition('/')[2]}]({path})", ""]
    if rows := order_rows(found.results):
        lines += ["### Order of the methods", "", ORDER_TEXT, "", *_rows(ORDER, rows)]
        lines += [*order_claims(found.results), ""]
    if rows := ablation_rows(found.results):
        lines += ["### Some choices as printed, the rest as run", "", ABLATION_TEXT, ""]
        lines += _rows(ABLATION, rows)
        claims = ablation_claims(found.results)
        lines += ["In words:", "", *claims, ""] if claims else []
        lines += _commands([r for r in found.results if r.is_ablation])
    if found.refused:
        lines += ["Left out:", "", *(f"- {reason}" for reason in found.refused), ""]
    return "\n".join(lines)


def _introduction(found: Found, pictures: Mapping[str, str]) -> str:
    """What the columns and curves are, as far as there are any."""
    parts = [
        "Accuracies in percent, mean ± standard deviation over seeds. *After gossip*: 51 further "
        "gossip rounds, then every agent's model is tested (the protocol of the paper's tables); "
        "*averaged*: the mean of all models; *own*: the agents' models as they are."
    ]
    if any(result.preset.paper and not result.mark for result in found.results):
        parts.append("Δ/std: ours minus the paper's, in units of the paper's standard deviation.")
    if any(result.mark for result in found.results):
        parts.append("A run marked *reduced* is shorter or uses less data than the paper's.")
    if pictures:
        parts.append("In curves, a band is one standard deviation either side of the mean.")
    return " ".join(parts)


def _datasets(groups: Iterable[Sequence[PresetResult]]) -> str:
    """The datasets of some groups, by name; one that is not the paper's as it is written."""
    data = [result.preset.data for members in groups for result in members]
    return ", ".join(dict.fromkeys(DATASETS.get(name, name) for name in data))


def _rows(headings: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """The first columns, as many as `words`, and the last one are text."""
    text = frozenset({*range(words), len(headings) - 1})
    return [*Table(headings, list(rows), text).markdown().splitlines(), ""]


def _commands(results: Sequence[PresetResult]) -> list[str]:
    """Commands that repeat these runs: one for all methods that were run in the same way."""
    forms: dict[tuple[str, str], list[str]] = {}
    for result in (r for r in results if r.runs):
        flags = f" --seeds {max(result.runs) + 1}"
        if result.variant != "as-run":
            flags += f" --variant {result.variant}"
        if result.reduction.epochs is not None:
            flags += f" --epochs {result.reduction.epochs}"
        if result.reduction.fraction is not None:
            flags += f" --fraction {result.reduction.fraction:g}"
        forms.setdefault((result.preset.group, flags), []).append(result.preset.method)
    lines = []
    for (group, flags), methods in forms.items():
        some = "" if set(methods) == set(METHODS) else f" --methods {','.join(methods)}"
        lines.append(f"parley reproduce {group}{some}{flags}")
    return ["```sh", *lines, "```", ""] if lines else []


def write_markdown(path: Path, text: str) -> None:
    """Writes a new file, or between the two marks of an existing one; otherwise refuses."""
    marked = f"{BEGIN}\n{text.strip()}\n{END}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{marked}\n")
        return
    present = path.read_text(encoding="utf-8")
    before, begin, rest = present.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise BadValue(
            "markdown", str(path), f"a new file, or one with the lines {BEGIN} and {END}"
        )
    write_atomically(path, before + marked + after)


def as_json(found: Found) -> str:
    """The same as one JSON object."""
    rows = []
    for r in found.results:
        row: dict[str, Any] = {"name": r.preset.name, "table": r.preset.table, "variant": r.variant}
        row |= {"reduced": r.mark or None, "seeds": len(r.ends), "unfinished": list(r.unfinished)}
        row["at_chance"] = list(r.at_chance)
        if r.preset.paper:
            row |= {"paper": r.preset.paper.accuracy, "paper_std": r.preset.paper.std}
        for name in ACCURACIES if r.ends else ():
            row |= {name: r.mean(name), f"{name}_std": r.std(name)}
            row[f"{name}_deviation"] = r.deviation(name)
        rows.append(row)
    ablations = [
        {
            "name": a.after.preset.name,
            "reduced": a.after.mark or None,
            "as_printed": list(a.choices),
            "also_as_printed": list(a.others),
            "difference": a.gossiped.mean,
            "interval": a.gossiped.half,
            "difference_averaged": a.averaged.mean,
            "interval_averaged": a.averaged.half,
            "seeds": a.gossiped.seeds,
        }
        for a in claims.ablations(found.results)
    ]
    return json.dumps({"results": rows, "ablations": ablations, "refused": list(found.refused)})
