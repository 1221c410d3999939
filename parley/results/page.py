"""The report as one self-contained HTML file: no network, no server."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from parley.charts.svg import stylesheet
from parley.experiment import Experiment
from parley.measures import Measure
from parley.results.curves import form_of
from parley.results.read import RecordedRun
from parley.results.sections import measures_of, sections
from parley.results.seeds import Group, Take, field_of
from parley.results.table import Table, mean_and_spread
from parley.training.record import sent_megabytes, value
from parley.version import __version__

# Nothing may be loaded from anywhere, whatever the data contain.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def web_file(name: str) -> str:
    """A built file from web/, as shipped in the package."""
    return resources.files("parley").joinpath("web", name).read_text(encoding="utf-8")


class Published(Protocol):
    """What a paper reports for an experiment."""

    @property
    def accuracy(self) -> float:
        """In percent, after gossip, mean over seeds."""

    @property
    def std(self) -> float:
        """Over seeds, in percent."""

    @property
    def remark(self) -> str:
        """How the run differs from the paper's."""


LookUp = Callable[[Experiment], Published | None]
"""Looks up what a paper reports for an experiment, if anything."""


def page(groups: Sequence[Group], when: date | None = None, published: LookUp | None = None) -> str:
    """The whole report; `published` looks up a paper's figures to show next to ours."""
    made = sections(groups)
    title = heading(groups)
    body = [
        f"<header><div><h1>{escape(title)}</h1>"
        f'<p class="faint">{escape(settings(groups))}</p></div>'
        '<button id="theme" type="button" hidden>Dark</button></header>',
        *_notes(groups),
        _results(groups, published or (lambda experiment: None)),
        *(section.html() for section in made),
        _origin(groups, when or date.today()),
    ]
    written = (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="generator" content="parley {__version__}">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{stylesheet()}{web_file('base.css')}{web_file('report.css')}</style>\n"
        "</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + f"\n</main>\n<script>{web_file('charts.js')}</script>\n"
        '<script>parley.refresh(); parley.themeButton(document.getElementById("theme"))</script>\n'
        "</body>\n</html>\n"
    )
    # Names of folders, and what JSON holds, need not be text that can be written.
    return written.encode(errors="replace").decode()


def heading(groups: Sequence[Group]) -> str:
    """What the report is about, in one line."""
    data = _shared(groups, "data")
    what = groups[0].label if len(groups) == 1 else f"{len(groups)} methods"
    return f"{what} on {Path(str(data)).name}" if data else what


SETTINGS = ("agents", "topology", "partition", "model", "epochs", "batch", "lr")


def settings(groups: Sequence[Group]) -> str:
    """What all runs have in common, in one line."""
    said = []
    for name in SETTINGS:
        found = _shared(groups, name)
        if found is None:
            continue
        forms = {"agents": f"{found} agents", "epochs": f"{found} epochs", "lr": f"η = {found}"}
        forms |= {"batch": f"batch {found}", "partition": f"partition {found}"}
        said.append(forms.get(name, str(found)))
    seeds = sorted({len(group.runs) for group in groups})
    if seeds != [1]:
        said.append(f"{' or '.join(map(str, seeds))} seeds")
    return ", ".join(said)


def _shared(groups: Sequence[Group], name: str) -> Any:
    """The value of an option if all runs share it."""
    found = {
        json.dumps(run.options.get(name), default=str) for group in groups for run in group.runs
    }
    return json.loads(found.pop()) if len(found) == 1 else None


def _notes(groups: Sequence[Group]) -> Iterable[str]:
    for group in groups:
        for run in group.runs:
            for note in [*([group.note] if group.note else []), *run.notes]:
                yield f'<p class="note">{escape(f"{run.path}: {note}")}</p>'


Column = tuple[str, Take, str, str]
"""A heading, what it shows of the last record, and the forms of mean and standard deviation."""

LAST: tuple[Column, ...] = (
    ("test loss", field_of("loss"), ".3f", ".3f"),
    ("consensus distance", field_of("consensus_distance"), ".3g", ".1g"),
    ("MB sent per agent", sent_megabytes, ".4g", ""),
    ("seconds", field_of("seconds"), ".1f", ""),
)


def columns_of(measured: Sequence[Measure]) -> list[Column]:
    """The columns of the table of results: all forms of the first metric, the averaged model of
    every other."""
    first, *others = measured
    unit, form = (", %", ".2f") if first.share else ("", ".4g")
    name = f"{first.title}, " * (first.name != "accuracy" or bool(others))
    worst, best = ("own_min", "own_max") if first.higher else ("own_max", "own_min")
    forms = {"averaged model": "mean_model", "own models": "own", "worst agent": worst}
    forms |= {"best agent": best, "after gossip": "after_gossip"}
    made: list[Column] = [
        (f"{name}{title}{unit}", form_of(first, of), form, form) for title, of in forms.items()
    ]
    for measure in others:
        unit, form = (", %", ".2f") if measure.share else ("", ".4g")
        title = f"{measure.title}, averaged model{unit}"
        made.append((title, form_of(measure, "mean_model"), form, form))
    return [*made, *LAST]


def _results(groups: Sequence[Group], published: LookUp) -> str:
    """The table of the last records, with a paper's figures if there are any."""
    cells = [published(g.experiment) if g.experiment else None for g in groups]
    columns = columns_of(measures_of(groups))
    headings = ["", "seeds", *(name for name, *_ in columns)]
    if any(cells):
        headings += ["paper, %", "ours − paper", ""]
    rows = []
    for group, cell in zip(groups, cells, strict=True):
        row = [group.label, str(len(group.runs)), *(_figure(group, *c[1:]) for c in columns)]
        if any(cells):
            row += _beside(group, cell)
        rows.append(row)
    text = "At the last record of each run; mean ± standard deviation over seeds."
    if any(cells):
        text += " The paper's figures (three seeds) are accuracies after gossip."
    unfinished = sum(run.summary is None for group in groups for run in group.runs)
    if unfinished:
        text += f" {unfinished} run{' is' if unfinished == 1 else 's are'} not complete."
    partial = [
        f"{run.path} ({some} of {some + absent})"
        for group in groups
        for run in group.runs
        if (absent := run.last.get("test_samples_absent")) and (some := run.last["test_samples"])
    ]
    if partial:
        text += (
            " Not comparable with the others because hosts, and their test samples, were absent: "
            f"{', '.join(partial)}."
        )
    table = Table(headings, rows)
    momenta = [g.experiment.algorithm.momentum_label if g.experiment else "–" for g in groups]
    if len(set(momenta)) > 1:
        table = table.beside("momentum", momenta)
    return (
        f'<section id="results"><h2>Results</h2><p class="faint">{escape(text)}</p>'
        f"{table.html('Results')}</section>"
    )


def _figure(group: Group, take: Take, form: str, of_std: str) -> str:
    found = [v for seed in group.seeds if seed and (v := take(seed[-1])) is not None]
    if not found:
        return "–"
    std = statistics.stdev(found) if of_std and len(found) > 1 else None
    return mean_and_spread(statistics.fmean(found), std, form, of_std)


def _beside(group: Group, cell: Published | None) -> list[str]:
    if cell is None:
        return ["", "", ""]
    ours = [v for run in group.runs if (v := value(run.last, "accuracy_after_gossip")) is not None]
    difference = f"{100 * statistics.fmean(ours) - cell.accuracy:+.2f}" if ours else "–"
    return [mean_and_spread(cell.accuracy, cell.std), difference, cell.remark]


def _origin(groups: Sequence[Group], when: date) -> str:
    """Commands, versions, machine and the full experiments."""
    runs = [run for group in groups for run in group.runs]
    parts = ['<section id="origin"><h2>How it was made</h2>']
    commands = dict.fromkeys(
        str(run.environment["command"]) for run in runs if run.environment.get("command")
    )
    if commands:
        parts.append(f'<pre tabindex="0"><code>{escape(chr(10).join(commands))}</code></pre>')
    else:
        parts.append(
            '<p class="faint">The command was not recorded because the runs were made by an older '
            "version. Each folder's experiment.toml repeats its run.</p>"
        )
    machines: list[tuple[dict[str, Any], list[RecordedRun]]] = []
    for run in runs:
        about = {k: v for k, v in run.environment.items() if k not in ("command", "label")}
        same = next((members for facts, members in machines if facts == about), None)
        if same is None:
            machines.append((about, [run]))
        else:
            same.append(run)
    for facts, members in machines:
        if len(machines) > 1:
            parts.append(f"<p>{escape(', '.join(str(run.path) for run in members))}</p>")
        if not facts:
            parts.append('<p class="faint">Versions and machine were not recorded.</p>')
            continue
        listed = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(str(v))}</dd></div>"
            for name, v in facts.items()
            if v is not None
        )
        parts.append(f'<dl class="facts">{listed}</dl>')
    table = Table(
        ["folder", "seed", "status"], [[str(run.path), str(run.seed), _status(run)] for run in runs]
    )
    parts.append(
        f"<details><summary>{len(runs)} run{'s' * (len(runs) > 1)}</summary>"
        f"{table.html('Runs')}</details>"
    )
    for group in groups:
        experiment = group.experiment
        if experiment is not None:
            parts.append(
                f"<details><summary>{escape(group.label)}: experiment.toml</summary>"
                f'<pre tabindex="0"><code>{escape(experiment.to_toml())}</code></pre></details>'
            )
    made = f"parley {__version__}, {when.isoformat()}"
    parts.append(f'<p class="faint">Report made by {escape(made)}.</p></section>')
    return "".join(parts)


def _status(run: RecordedRun) -> str:
    if run.summary is not None:
        return "complete"
    epochs = run.options.get("epochs", "?")
    return f"epoch {run.last.get('epoch', 0)} of {epochs}"
