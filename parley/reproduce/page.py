"""Our results next to the published ones: tables, what may be claimed, and the page of a study."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parley.errors import BadValue
from parley.files import write_atomically
from parley.reproduce import claims
from parley.reproduce.cells import cells
from parley.reproduce.collect import Found, Result, figure
from parley.reproduce.study import Study
from parley.reproduce.tuned import TRIAL_EPOCHS_BEFORE
from parley.results.paired import FEWEST, half_width
from parley.results.table import Table, mean_and_spread

BEGIN, END = "<!-- parley reproduce report: begin -->", "<!-- parley reproduce report: end -->"
DEVIATION = "Δ/std"
"""Heading of the columns that reduced runs leave empty."""
PAPER = "paper"
TUNED = ("seeds", "better\nthan", "rate", "γ", "momentum")
"""The last columns of studies that tune."""
ORDER = ("group", "lower in the paper", "higher", "paper", "ours", "seeds", "")
ORDER_TEXT = (
    "Accuracy after gossip: for two methods that are adjacent in the paper's order, how far the "
    "higher is above the lower, in percentage points: the paper's means, and ours with a 95 % "
    "interval (paired t over seeds). An order is claimed only if the interval excludes 0."
)
ABLATION = ("run", "as printed", "without", "with", "difference", "averaged", "seeds", "")
ABLATION_TEXT = (
    "The effect of the choices in which the printed paper and its authors' code differ: accuracy "
    "after gossip without and with them, the difference in percentage points with a 95 % interval "
    "(paired t: the same seeds on both sides), and the same difference for the averaged model. One "
    "interval in twenty excludes 0 by chance."
)
TESTED = "paired t-tests over at least three common seeds"


def cell_text(result: Result, name: str) -> str:
    """A figure of a result: its mean, with its spread unless it is a cost."""
    mean, table, kind = result.mean(name), result.cell.study.table, figure(name)
    if mean is None or (name == "milliseconds" and result.is_reference):
        return "" if kind.cost else "-"
    if kind.cost:
        return f"{mean:,.0f}"
    values = list(result.by_seed(name).values())
    spread = result.std(name) if table.spread == "std" else half_width(values)
    return mean_and_spread(mean, spread, f".{table.digits}f")


def _printed(result: Result) -> str:
    """The published figure; empty if there is none."""
    if not result.cell.published:
        return ""
    mean, *std = result.cell.published
    return mean_and_spread(mean, std[0] if std else None)


def _deviation(result: Result, name: str) -> str:
    """Signed; empty where there is no published figure, or one for a longer run."""
    value = result.deviation(name)
    return "" if value is None or result.mark else f"{round(value, 1) + 0.0:+.1f}"


def table_of(study: Study, settings: Sequence[tuple[str, list[Result]]], named: bool) -> Table:
    """The results of some settings, which the first column names if there are several."""
    if study.table.across:
        return _across(study, settings, named)
    headings = ["preset"] * named + ["" if study.tune else "method", PAPER]
    for name, heading in study.table.columns.items():
        headings += [heading, DEVIATION] if name in study.table.published else [heading]
    headings += TUNED if study.tune else ("seeds", "")
    rows = [
        [setting if number == 0 else ""] * named + cells
        for setting, members in settings
        for number, cells in enumerate(_rows(study, members))
    ]
    optional = {n for n, heading in enumerate(headings) if heading in (PAPER, DEVIATION)}
    kept = [n for n in range(len(headings)) if n not in optional or any(row[n] for row in rows)]
    words = {0} if study.tune else {*range(1 + named), len(kept) - 1}
    shown = [[row[n] for n in kept] for row in rows]
    extra = 3 if study.tune else 0
    return Table([headings[n] for n in kept], shown, frozenset(words), extra=extra)


def _rows(study: Study, members: Sequence[Result]) -> Iterator[list[str]]:
    winners = [pair.winner for pair in claims.better(members)] if study.tune else []
    for result in members:
        cells = [result.label, _printed(result)]
        for name in study.table.columns:
            cells.append(cell_text(result, name))
            if name in study.table.published:
                cells.append(_deviation(result, name))
        if not study.tune:
            yield [*cells, str(len(result.runs)), "; ".join(result.remarks)]
            continue
        gamma, shown = result.about["gamma"], len(result.runs)
        seeds = f"{shown} of {shown + result.lost}" if result.lost else str(shown)
        yield [
            *cells, seeds, str(winners.count(result.label)), f"{result.about['lr']:g}",
            "" if gamma in (None, 1) else f"{gamma:g}", result.about["momentum"],
        ]  # fmt: skip


def _across(study: Study, settings: Sequence[tuple[str, list[Result]]], named: bool) -> Table:
    """A row for each method, a column for each value of what is varied, and the worst of them."""
    axis, name = list(study.vary).index(study.table.across), next(iter(study.table.columns))
    higher, values = figure(name).higher, list(study.vary[study.table.across])
    headings = ["preset"] * named + ["method", *values] + ["worst"] * study.table.worst
    rows = []
    for setting, members in settings:
        lines: dict[tuple[str, ...], dict[str, Result]] = {}
        for r in (r for r in members if r.runs):
            rest = (r.cell.values[:axis] + r.cell.values[axis + 1 :], r.title)
            key = (r.cell.label, *rest[0], r.title.removeprefix(", "))
            lines.setdefault(key, {})[r.cell.values[axis]] = r
        made = []
        for words, of in lines.items():
            cells = [_beside(of[v], name) if v in of else "" for v in values]
            means = [mean for r in of.values() if (mean := r.mean(name)) is not None]
            worst = (min if higher else max)(means) if len(of) == len(values) else None
            end = ["" if worst is None else f"{worst:.{study.table.digits}f}"] * study.table.worst
            rank = (worst is None, (-1 if higher else 1) * (worst or 0.0))
            made.append((rank, [", ".join(filter(None, words)), *cells, *end]))
        if study.table.worst and study.table.best_first:
            made.sort(key=lambda line: line[0])
        rows += [[setting if n == 0 else ""] * named + cells for n, (_, cells) in enumerate(made)]
    return Table(headings, rows, frozenset(range(1 + named)))


def _beside(result: Result, name: str) -> str:
    """A figure, with the published one in parentheses."""
    published = _printed(result)
    return cell_text(result, name) + (f" ({published})" if published else "")


def order_table(results: Sequence[Result]) -> Table:
    """Adjacent methods in the published order, and whether ours can be told apart."""
    rows = []
    for setting, pairs in claims.orders(results).items():
        for pair in (pair for pair in pairs if pair.neighbours):
            labels = (pair.lower.cell.label, pair.higher.cell.label)
            ours = (str(pair.ours), str(pair.ours.seeds))
            rows.append([setting, *labels, f"{pair.paper:+.2f}", *ours, pair.verdict])
    return Table(ORDER, rows, frozenset({0, len(ORDER) - 1}))


def order_claims(results: Sequence[Result]) -> list[str]:
    """How many of all pairs of methods can be told apart."""
    lines = []
    for setting, pairs in claims.orders(results).items():
        signs = [pair.ours.sign for pair in pairs]
        of_paper, reversed_ = claims.corrected(pairs)
        lines.append(
            f"- {setting}: of {len(pairs)} pairs of methods, {signs.count(1)} are in the paper's "
            f"order, {signs.count(-1)} the other way round, {signs.count(0)} inconclusive; "
            f"with at least {FEWEST} seeds and corrected for the number of pairs (Holm), "
            f"{of_paper} and {reversed_} remain"
        )
    return lines


def ablation_table(results: Sequence[Result]) -> Table:
    """The effect of choices: runs with them as printed next to runs with them as run."""
    rows = []
    for found in claims.ablations(results):
        first, *others = found.differences
        note = ", ".join(part for part in (first.verdict, found.after.mark) if part)
        means = (f"{mean:.2f}" for mean in found.means)
        told = (str(first), str(others[0]) if others else "", str(first.seeds))
        rows.append([found.after.cell.name, found.words, *means, *told, note])
    return Table(ABLATION, rows, frozenset({0, len(ABLATION) - 1}))


def ablation_claims(results: Sequence[Result]) -> list[str]:
    """The table above in sentences, claiming no more than it shows."""
    lines, undecided = [], []
    for found in claims.ablations(results):
        told, cell = found.differences[0], found.after.cell
        name = f"{cell.label}, {found.sentence}"
        if told.half is None:
            continue
        if not told.sign:
            undecided.append(name)
            continue
        ends = sorted((abs(told.mean - told.half), abs(told.mean + told.half)))
        way = "higher" if told.sign > 0 else "lower"
        how = f"{abs(told.mean):.1f} points {way}, {ends[0]:.1f} to {ends[1]:.1f}"
        lines.append(f"- {name}: {how} ({cell.setting})")
    if undecided:
        lines.append(f"- Inconclusive: {'; '.join(undecided)}")
    return lines


def pair_claims(results: Sequence[Result]) -> str:
    """What may be said about the differences between the methods of a setting."""
    losers: dict[str, list[str]] = {}
    for pair in claims.better(results):
        losers.setdefault(pair.winner, []).append(pair.loser)
    if not losers:
        return f"No difference between two methods is significant ({TESTED}, Holm's correction)."
    head = f"Significant differences ({TESTED}, p below 0.05 after Holm's correction):"
    lines = [f"- {winner}: better than {', '.join(worse)}" for winner, worse in losers.items()]
    return "\n".join([head, "", *lines])


def remarks(found: Found, setting: str, members: Sequence[Result]) -> list[str]:
    """What to know beside a table."""
    if found.study.table.published:
        return []
    whole = [result for result in members if not result.mark and result.runs]
    return [*found.remarks.get(setting, ()), pair_claims(whole)]


def about(found: Found, setting: str, members: Sequence[Result]) -> str:
    """What was run in a setting, in a sentence."""
    said = found.study.settings[setting].about
    if not found.study.tune or not said:
        return said
    one = members[0].about
    share = "" if one["fraction"] == 1 else f"{100 * one['fraction']:g} % of "
    seeds = max(len(of.runs) + of.lost for of in members)
    trials = one.get("trial_epochs", TRIAL_EPOCHS_BEFORE)
    return (
        f"{share}{said}: {_count(one['epochs'], 'epoch')}, {_count(seeds, 'seed')}; trials of "
        f"{_count(trials, 'epoch')}."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def parts(found: Found, pictures: Mapping[str, str]) -> Iterator[str | Table]:
    """Paragraphs and tables, in order; `pictures` maps names to paths."""
    study, sections = found.study, list(found.sections())
    yield _introduction(found, pictures)
    inside = {section for section, _, _ in sections}
    yield from (f"![{n}]({p})" for n, p in pictures.items() if n.partition("/")[0] not in inside)
    for section, whole_title, settings in sections:
        title = (study.table.published and _datasets(settings)) or whole_title
        yield f"### {title}"
        yield from filter(None, (about(found, name, members) for name, members in settings))
        yield table_of(study, settings, named=section not in study.settings)
        for name, members in settings:
            beside = f"{name}: " if len(settings) > 1 else ""
            yield from (beside + remark for remark in remarks(found, name, members))
        yield from _commands(study, [r for _, members in settings for r in members])
        for name, path in pictures.items():
            of, _, what = name.partition("/")
            if of == section:
                yield f"![{title}: {what}]({path})"
    if (order := order_table(found.results)).rows:
        yield from ("### Order of the methods", ORDER_TEXT, order)
        yield "\n".join(order_claims(found.results))
    if (choices := ablation_table(found.results)).rows:
        yield from ("### Some choices as printed, the rest as run", ABLATION_TEXT, choices)
        words = ablation_claims(found.results)
        yield from ("In words:", "\n".join(words)) if words else ()
        yield from _commands(study, [r for r in found.results if r.form.choices])
    if found.refused:
        yield from ("Left out:", "\n".join(f"- {reason}" for reason in found.refused))


def markdown(found: Found, pictures: Mapping[str, str]) -> str:
    """For a document; the paths of pictures are relative to it."""
    made = (p if isinstance(p, str) else p.markdown().rstrip() for p in parts(found, pictures))
    return "\n\n".join(filter(None, made)) + "\n"


def _introduction(found: Found, pictures: Mapping[str, str]) -> str:
    """What the columns and curves are, as far as there are any."""
    parts = [found.study.about.strip()] if found.study.about else []
    if any(r.cell.published and not r.mark for r in found.results if found.study.table.published):
        parts.append("Δ/std: ours minus the paper's, in units of the paper's standard deviation.")
    if any(result.mark for result in found.results):
        parts.append("A run marked *reduced* is shorter or uses less data than the paper's.")
    if pictures and not found.study.tune:
        parts.append("In curves, a band is one standard deviation either side of the mean.")
    return " ".join(parts)


def _datasets(settings: Sequence[tuple[str, list[Result]]]) -> str:
    """The datasets of some settings, by name; of a published table there may be only some."""
    facts = (r.cell.facts for _, members in settings for r in members)
    return ", ".join(dict.fromkeys(fact.title for fact in facts if fact))


def _commands(study: Study, results: Iterable[Result]) -> Iterator[str]:
    """Commands that repeat these runs: one for all methods that were run in the same way."""
    forms: dict[tuple[str, str], list[str]] = {}
    for result in (r for r in results if r.runs and not study.tune):
        variant, epochs, fraction = result.form
        flags = f" --seeds {max(result.runs) + 1}"
        flags += f" --variant {variant}" if variant != study.forms[0] else ""
        flags += f" --epochs {epochs}" if epochs is not None else ""
        flags += f" --fraction {fraction:g}" if fraction is not None else ""
        forms.setdefault((result.cell.setting, flags), []).append(result.cell.method)
    lines = []
    for (setting, flags), methods in forms.items():
        every = {cell.method for cell in cells(study).values() if cell.setting == setting}
        some = "" if set(methods) >= every else f" --methods {','.join(dict.fromkeys(methods))}"
        name = setting if study.presets else f"{study.file} {setting}"
        lines.append(f"parley reproduce {name}{some}{flags}")
    if lines:
        yield "\n".join(["```sh", *lines, "```"])


def write_markdown(path: Path, found: Found, pictures: Mapping[str, str]) -> None:
    """Writes a new file, or between the two marks of an existing one; otherwise refuses. A picture
    that is shown outside of the marks is not shown again."""
    before, after = "", "\n"
    if path.exists():
        before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            valid = f"a new file, or one with the lines {BEGIN} and {END}"
            raise BadValue("markdown", str(path), valid)
    new = {n: place for n, place in pictures.items() if f"({place})" not in before + after}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = markdown(found, new).strip()
    write_atomically(path, f"{before}{BEGIN}\n{text}\n{END}{after}")


def as_json(found: Found) -> str:
    """The same as one JSON object."""
    rows = []
    for r in found.results:
        row: dict[str, Any] = {"name": r.cell.name, "table": r.cell.section}
        row |= {"variant": r.form.variant, "reduced": r.mark or None, "seeds": len(r.runs)}
        row |= {"unfinished": list(r.unfinished), "at_chance": list(r.at_chance)}
        if r.cell.published:
            row |= {PAPER: r.cell.published[0], f"{PAPER}_std": r.cell.published[-1]}
        for name in found.study.table.columns if r.runs else ():
            row |= {name: r.mean(name), f"{name}_std": r.std(name)}
            row[f"{name}_deviation"] = r.deviation(name)
        rows.append(row)
    choices = []
    for a in claims.ablations(found.results):
        row = {"name": a.after.cell.name, "reduced": a.after.mark or None}
        row |= {"as_printed": list(a.choices), "also_as_printed": list(a.others)}
        for suffix, told in zip(("", "_averaged"), a.differences, strict=False):
            row |= {f"difference{suffix}": told.mean, f"interval{suffix}": told.half}
        choices.append(row | {"seeds": a.differences[0].seeds})
    return json.dumps({"results": rows, "ablations": choices, "refused": list(found.refused)})
