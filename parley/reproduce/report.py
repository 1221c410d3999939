"""Ours beside the paper's, cell by cell, from the run folders alone."""

import itertools
import json
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure as Canvas
from rich import box
from rich.table import Table

from parley.errors import BadValue, ParleyError
from parley.files import write_atomically
from parley.reproduce import paired
from parley.reproduce.campaign import read_experiment, version_of
from parley.reproduce.presets import (
    METHODS,
    TABLES,
    Figure,
    Preset,
    Reduction,
    figures,
    presets,
    variant_name,
    variant_words,
    variants,
)
from parley.results import draw
from parley.store.folder import EXPERIMENT, RunFolder
from parley.sweep.compare import DIVERGED_FILE
from parley.version import __version__

ACCURACIES = {
    "accuracy_after_gossip": "after gossip",
    "accuracy_mean_model": "averaged model",
    "accuracy_own": "own models",
}
"""What is compared. The first is the protocol of the paper's tables (older code of its authors)."""
BEGIN, END = "<!-- parley reproduce report: begin -->", "<!-- parley reproduce report: end -->"
SMALLER = 0.95
"""Steps of an epoch, relative to the paper's, below which a run counts as one on less data."""


@dataclass(frozen=True)
class Result:
    """What there is of one preset in one form: a variant, whole or reduced."""

    preset: Preset
    variant: str
    reduction: Reduction
    runs: Mapping[int, Sequence[Mapping[str, Any]]]
    """All records of every finished run, by seed."""
    unfinished: Sequence[str] = ()
    """For example ``seed 2 at epoch 40``, or why a run failed."""

    @property
    def ends(self) -> Sequence[Mapping[str, Any]]:
        """The last record of every finished run."""
        return [records[-1] for records in self.runs.values()]

    @property
    def is_ablation(self) -> bool:
        """Whether it is as run but for some choices."""
        return "-but-" in self.variant

    @property
    def mark(self) -> str:
        """In what it is not the paper's run; empty if in nothing."""
        parts = [self.reduction.words(self.preset.epochs)] if self.reduction else []
        if self.ends and self.reduction.fraction is None:
            steps = self.ends[0]["step"] / self.ends[0]["epoch"]
            share = steps / self.preset.steps_per_epoch
            if share < SMALLER:
                parts.append(f"{share:.0%} of the paper's steps an epoch")
        return ", ".join(parts)

    @property
    def share(self) -> float:
        """How much of the paper's training it is."""
        epochs = self.reduction.epochs or self.preset.epochs
        return epochs / self.preset.epochs * (self.reduction.fraction or 1.0)

    def mean(self, name: str) -> float:
        """Over seeds, in percent."""
        return 100 * statistics.fmean(float(end[name]) for end in self.ends)

    def std(self, name: str) -> float | None:
        """Over seeds (n - 1), in percent; None with one seed."""
        values = [100 * float(end[name]) for end in self.ends]
        return statistics.stdev(values) if len(values) > 1 else None

    def deviation(self, name: str) -> float | None:
        """How far ours is above the paper's mean, in units of the paper's std."""
        if not self.ends or self.preset.paper is None:
            return None
        return (self.mean(name) - self.preset.paper.accuracy) / self.preset.paper.std


@dataclass(frozen=True)
class Found:
    """Everything below a results folder."""

    results: Sequence[Result]
    refused: Sequence[str] = field(default=())
    """Folders that were left out, each with the reason."""


def collect(out: Path) -> Found:
    """Reads all runs of presets below `out`."""
    if not out.is_dir():
        raise BadValue("out", str(out), "a folder with results", "there is none")
    results, refused = [], []
    for preset in presets().values():
        for form in sorted(p for p in (out / preset.folder).glob("*") if p.is_dir()):
            try:
                variant, reduction = parse_form(form.name)
                results.append(_result(preset, variant, reduction, form))
            except ParleyError as error:
                refused.append(f"{form}: {error}")
    return Found([r for r in results if r.ends or r.unfinished], refused)


def parse_form(name: str) -> tuple[str, Reduction]:
    """A variant and a reduction from a folder's name.

    >>> parse_form("as-run-20-epochs-0.1-data")
    ('as-run', Reduction(epochs=20, fraction=0.1))
    """
    match = re.fullmatch(r"(as-[a-z,-]+?)(?:-(\d+)-epochs)?(?:-([\d.e-]+)-data)?", name)
    if not match:
        raise BadValue("folder", name, ", ".join(variants()) + ", or one of them reduced")
    variant, epochs, fraction = match.groups()
    return variant_name(variant), Reduction(
        int(epochs) if epochs else None, float(fraction) if fraction else None
    )


def _result(preset: Preset, variant: str, reduction: Reduction, form: Path) -> Result:
    runs, unfinished = {}, []
    for path in sorted(form.glob("seed-*"), key=_seed):
        if not (path / EXPERIMENT).exists():
            continue
        folder, experiment = RunFolder(path), read_experiment(path)
        expected = preset.experiment(variant, reduction, seed=_seed(path))
        differing = expected.same_as(experiment)
        if differing:
            version = version_of(path)
            by = f", made by parley {version}" if version not in (None, __version__) else ""
            raise ParleyError(
                f"{path.name} holds another experiment than {preset.name}{by} "
                f"(it differs in {', '.join(differing)})"
            )
        records = folder.records()
        if folder.summary() is not None and records:
            runs[_seed(path)] = records
        elif (path / DIVERGED_FILE).exists():
            reason = (path / DIVERGED_FILE).read_text(encoding="utf-8").strip()
            unfinished.append(f"seed {_seed(path)}: {reason}")
        else:
            epoch = records[-1]["epoch"] if records else 0
            unfinished.append(f"seed {_seed(path)} at epoch {epoch}")
    return Result(preset, variant, reduction, runs, unfinished)


def _seed(path: Path) -> int:
    digits = path.name.removeprefix("seed-")
    return int(digits) if digits.isdecimal() else 0


def _accuracy(result: Result, name: str) -> str:
    if not result.ends:
        return "-"
    std = result.std(name)
    return f"{result.mean(name):.2f}" + (f" ± {std:.2f}" if std is not None else "")


def _deviation(result: Result, name: str) -> str:
    """Signed; empty where the paper has no figure."""
    value = result.deviation(name)
    return "" if value is None else f"{value:+.1f}"


HEADINGS = [
    "method", "paper", "after gossip", "Δ/std", "averaged", "Δ/std", "own", "Δ/std", "seeds", "",
]  # fmt: skip


def _with_variant(label: str, result: Result) -> str:
    words = variant_words(result.variant)
    return f"{label}, {words}" if words else label


def _cells(result: Result) -> list[str]:
    paper = result.preset.paper
    label = _with_variant(result.preset.label, result)
    cells = [label, f"{paper.accuracy:.2f} ± {paper.std:.2f}" if paper else ""]
    for name in ACCURACIES:
        cells += [_accuracy(result, name), _deviation(result, name)]
    mark = f"reduced: {result.mark}" if result.mark else ""
    remarks = [mark, *result.unfinished]
    return [*cells, str(len(result.ends)), "; ".join(r for r in remarks if r)]


def grouped(results: Sequence[Result], table: str) -> Iterator[tuple[str, list[Result]]]:
    """The results of a table, by what is compared; whole runs before reduced ones. Runs in which
    one choice is another are compared apart."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.preset.table == table and not result.is_ablation:
            groups.setdefault(result.preset.group, []).append(result)
    for group, members in groups.items():
        yield (
            group,
            sorted(members, key=lambda r: (r.variant != "as-run", r.reduction.suffix, r.mark)),
        )


def tables(found: Found) -> Iterator[Table]:
    """For a terminal: a table for every group of methods that are compared, reduced ones apart."""
    for table in (t for t in TABLES if t != "figures"):
        for group, members in grouped(found.results, table):
            for title, alike in itertools.groupby(members, key=_title):
                yield _table(f"{group}{title}", list(alike))
    if rows := order_rows(found.results):
        yield _narrow_table("order of the methods", ORDER, rows, figures=range(3, 6))
    if rows := ablation_rows(found.results):
        yield _narrow_table("choices as printed", ABLATION, rows, figures=range(2, 7))


def _narrow_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], figures: range
) -> Table:
    """Names and remarks may take several lines; figures are shown whole."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column, heading in enumerate(headings):
        side: Literal["left", "right"] = "right" if column in figures else "left"
        shown.add_column(heading, justify=side, no_wrap=column in figures, overflow="fold")
    for row in rows:
        cells = (cell.replace("**", "") for cell in row)
        shown.add_row(*(c.replace(" ", "") if n in figures else c for n, c in enumerate(cells)))
    return shown


ABLATION = [
    "run", "as printed", "without", "with", "difference", "averaged", "seeds", "",
]  # fmt: skip
ORDER = ["group", "lower in the paper", "higher", "paper", "ours", "seeds", ""]


ORDER_TEXT = (
    "Accuracy after gossip: how far the higher of two methods that are neighbours in the paper's "
    "order is above the lower, in percentage points: the paper's means, and ours with a 95 % "
    "interval (paired t over seeds). Only what lies outside it is an order."
)
ABLATION_TEXT = (
    "What the choices in which the printed paper and its authors' code differ do: accuracy after "
    "gossip without and with them, the difference in percentage points with a 95 % interval "
    "(paired t: the same seeds on both sides), and the same difference of the averaged model. One "
    "interval in twenty leaves out 0 by chance."
)


def ablation_rows(results: Sequence[Result]) -> list[list[str]]:
    """What choices do: runs in which they are as printed beside those in which they are as run."""
    rows = []
    for found in paired.ablations(results):
        means = (f"{mean:.2f}" for mean in found.means)
        differences = (str(found.gossiped), str(found.averaged), str(found.gossiped.seeds))
        note = ", ".join(part for part in (found.gossiped.verdict, found.after.mark) if part)
        rows.append([found.after.preset.name, found.words, *means, *differences, note])
    return rows


def ablation_claims(results: Sequence[Result]) -> list[str]:
    """What the table above says, in sentences, and no more than it says."""
    lines, undecided = [], []
    for found in paired.ablations(results):
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
        lines.append(f"- Not told apart from no difference: {'; '.join(undecided)}")
    return lines


def order_rows(results: Sequence[Result]) -> list[list[str]]:
    """Neighbours in the paper's order of the methods, and whether ours are told apart."""
    rows = []
    for group, pairs in paired.orders(results).items():
        for pair in (pair for pair in pairs if pair.neighbours):
            labels = (pair.lower.preset.label, pair.higher.preset.label)
            ours = (str(pair.ours), str(pair.ours.seeds))
            rows.append([group, *labels, f"{pair.paper:+.2f}", *ours, pair.verdict])
    return rows


def order_claims(results: Sequence[Result]) -> list[str]:
    """How many of all pairs of methods are told apart."""
    lines = []
    for group, pairs in paired.orders(results).items():
        signs = [pair.ours.sign for pair in pairs]
        lines.append(
            f"- {group}: of {len(pairs)} pairs of methods {signs.count(1)} stand in the paper's "
            f"order, {signs.count(-1)} the other way round, {signs.count(0)} not told apart"
        )
    return lines


def _title(result: Result) -> str:
    words = variant_words(result.variant)
    title = f", {words}" if words else ""
    return title + (f", reduced: {result.mark}" if result.mark else "")


def _table(title: str, members: Sequence[Result]) -> Table:
    notes = [f"{r.preset.label}: {note}" for r in members for note in r.unfinished]
    shown = Table(
        title=title,
        caption="\n".join(notes) or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    narrow = {"after gossip": "gossiped", "seeds": "n"}
    for column, heading in enumerate(narrow.get(h, h) for h in HEADINGS[:-1]):
        shown.add_column(heading, justify="right" if column else "left", no_wrap=True)
    for result in members:
        label, *cells = _cells(result)[:-1]
        shown.add_row(label.partition(",")[0], *(cell.replace(" ", "") for cell in cells))
    return shown


def markdown(found: Found, pictures: Mapping[str, str]) -> str:
    """For a document; `pictures` are names and where they are, as seen from it."""
    lines = [
        "Accuracies in percent, mean ± standard deviation over seeds. *After gossip*: 51 further "
        "gossip rounds, then every agent's model is tested (the protocol of the paper's tables); "
        "*averaged*: the mean of all models; *own*: the agents' models as they are. Δ/std: ours "
        "minus the paper's, in units of the paper's standard deviation. A run marked *reduced* is "
        "shorter or on less data than the paper's, so that its difference says little.",
        "",
    ]
    for table, title in TABLES.items():
        groups = list(grouped(found.results, table))
        if not groups:
            continue
        lines += [f"### {title}", ""]
        if table != "figures":
            for group, members in groups:
                lines += [f"**{group}**", "", *_rows(HEADINGS, map(_cells, members))]
                lines += _commands(members)
        else:
            rows = [
                [r.preset.name, *_cells(r)[2:8:2], *_cells(r)[8:]] for _, m in groups for r in m
            ]
            lines += _rows(["run", *ACCURACIES.values(), "seeds", ""], rows)
        shown = {n: p for n, p in pictures.items() if n.partition("/")[0] == table}
        for name, path in shown.items():
            lines += [f"![{name}]({path})", ""]
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


def _rows(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---", *("---:" for _ in headings[1:-1]), "---"]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows)] + [""]


def _commands(results: Sequence[Result]) -> list[str]:
    """What gives these runs again: a command for all methods that were run in the same way."""
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
    """As a new file, or between the two marks of one that has them; else nothing is written."""
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


def draw_all(found: Found, folder: Path) -> dict[str, Path]:
    """Every picture that there are runs for: tables, curves of each group, the paper's figures.

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
                    path = draw.curves_picture(lines, folder / f"{stem}.png")
                    made[f"{table}/{group}{title}"] = path
    for figure in figures().values():
        path = folder / f"{figure.name.replace('/', '-')}.png"
        if draw_figure(figure, found.results, path):
            made[f"{figure.name}"] = path
    return made


def _fullest(results: Iterable[Result]) -> list[Result]:
    """Finished cells of the paper, each in the least reduced form that there is."""
    chosen: dict[tuple[str, str], Result] = {}
    for result in (r for r in results if r.ends and r.preset.paper and not r.is_ablation):
        key = (result.preset.name, result.variant)
        if key not in chosen or result.share > chosen[key].share:
            chosen[key] = result
    return list(chosen.values())


def _forms(
    members: Sequence[Result],
) -> Iterator[tuple[str, dict[str, list[list[dict[str, Any]]]]]]:
    """The curves of each variant and reduction, apart; a reduced one says so in its title."""
    forms: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    for result in members:
        if result.runs:
            curves = [[dict(record) for record in curve] for curve in result.runs.values()]
            label = result.preset.label + (" (reduced)" if result.mark else "")
            forms.setdefault(_title(result), {})[label] = curves
    yield from forms.items()


def beside_paper(results: Sequence[Result], path: Path) -> Path:
    """Accuracies of ours and the paper's, a row for each cell; hollow marks are reduced runs."""
    canvas = Canvas(figsize=(9, 1.2 + 0.38 * len(results)), layout="constrained")
    axes = canvas.subplots()
    for row, result in enumerate(results):
        paper = result.preset.paper
        assert paper is not None
        axes.errorbar(
            paper.accuracy, row - 0.24, xerr=paper.std, fmt="D", ms=4, color=draw.INK,
            label="paper" if row == 0 else None,
        )  # fmt: skip
        for number, (name, words) in enumerate(ACCURACIES.items()):
            colour = draw.LINES[number]
            axes.errorbar(
                result.mean(name), row + 0.16 * number, xerr=result.std(name) or 0.0, fmt="o", ms=5,
                color=colour, mfc="white" if result.mark else colour,
                label=words if row == 0 else None,
            )  # fmt: skip
    names = [
        _with_variant(r.preset.name, r) + (f"\nreduced: {r.mark}" if r.mark else "")
        for r in results
    ]
    axes.set_yticks(range(len(results)), names, fontsize=8)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlabel("test accuracy, %")
    axes.grid(color="#E3E7EB", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    canvas.legend(loc="outside upper center", ncols=4, frameon=False)
    return draw.save(canvas, path)


def draw_figure(figure: Figure, results: Sequence[Result], path: Path) -> Path | None:
    """One of the paper's figures from our runs; None if there are none. Dashed: reduced runs."""
    canvas = Canvas(figsize=(6.4, 4.4), layout="constrained")
    axes = canvas.subplots()
    drawn = 0
    for number, (label, name) in enumerate(figure.lines.items()):
        for result in results:
            if result.preset.name != name or not result.runs:
                continue
            words = _with_variant(label, result)
            words += f" (reduced: {result.mark})" if result.mark else ""
            if _line(axes, figure, result, words, draw.LINES[number % len(draw.LINES)]):
                drawn += 1
    if not drawn:
        return None
    axes.set_title(figure.title, fontsize=11, loc="left")
    axes.set_xlabel("epoch")
    axes.set_ylabel(figure.axis)
    if "accuracy" not in figure.field:
        axes.set_yscale("log")
    axes.grid(color="#E3E7EB", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return draw.save(canvas, path)


def _line(axes: Any, figure: Figure, result: Result, label: str, colour: str) -> bool:
    curves = [[r for r in curve if figure.field in r] for curve in result.runs.values()]
    shortest = min(map(len, curves))
    if not shortest:
        return False
    scale = 100 if "accuracy" in figure.field else 1
    x = [r["epoch"] for r in curves[0][:shortest]]
    y = [[scale * float(r[figure.field]) for r in curve[:shortest]] for curve in curves]
    means = [statistics.fmean(values) for values in zip(*y, strict=True)]
    style = "--" if result.mark else "-"
    axes.plot(x, means, color=colour, label=label, ls=style, lw=1.8)
    if len(y) > 1:
        spread = [statistics.stdev(values) for values in zip(*y, strict=True)]
        low = [m - s for m, s in zip(means, spread, strict=True)]
        high = [m + s for m, s in zip(means, spread, strict=True)]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
    return True


def as_json(found: Found) -> str:
    """The same for programs: one object."""
    rows = []
    for r in found.results:
        row: dict[str, Any] = {"name": r.preset.name, "table": r.preset.table, "variant": r.variant}
        row |= {"reduced": r.mark or None, "seeds": len(r.ends), "unfinished": list(r.unfinished)}
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
        for a in paired.ablations(found.results)
    ]
    return json.dumps({"results": rows, "ablations": ablations, "refused": list(found.refused)})
