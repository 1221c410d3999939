"""The documentation says what is true: its code runs, its links lead somewhere, its flags exist."""

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import parley
from benchmarks import profile, table
from parley.algorithms import ALGORITHMS, AS_RUN
from parley.algorithms.base import MomentumSGD
from parley.cli.app import app
from parley.data import SOURCES
from parley.experiment import Experiment, read_file
from parley.models import MODELS
from parley.reproduce import campaign, report
from parley.reproduce.collect import collect
from parley.results.read import find_runs
from parley.store.folder import RunFolder

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for name, text in found if name == language]


def name_of(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_python_in_pages_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The blocks of a page one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for number, text in enumerate(blocks(page, "python"), start=1):
        exec(compile(text, f"{page.name}, block {number}", "exec"), names)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_model_and_data_learns_more_together() -> None:
    found = example("own_model_and_data").main(epochs=3)
    assert found["together"] > found["alone"] + 0.2


def test_compare_topologies_sends_more_on_denser_graphs() -> None:
    found = example("compare_topologies").main(epochs=1)
    sent = [found[graph]["bytes_models"] for graph in ("ring", "torus", "full")]
    assert sent == sorted(sent) and sent[0] < sent[-1]


def test_every_example_is_tested() -> None:
    names = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert names == {"own_model_and_data.py", "compare_topologies.py", "experiment.toml"}


@pytest.mark.parametrize("text", blocks(ROOT / "docs/running.md", "toml"))
def test_toml_in_pages_is_an_experiment(text: str) -> None:
    Experiment.from_toml(text)


def commands() -> Iterator[tuple[Path, list[str]]]:
    """Every parley command in a shell block, and its words."""
    for page in PAGES:
        for line in "".join(blocks(page, "sh")).splitlines():
            words = shlex.split(line, comments=True)
            if "torchrun" in words[:1]:
                yield page, words[words.index("parley") + 1 :]
            elif "parley" in words[:1]:
                until = words.index("|") if "|" in words else len(words)
                yield page, words[1:until]


@pytest.mark.parametrize("page, words", list(commands()), ids=lambda v: name_of(v)[:60])
def test_commands_in_pages_are_understood(page: Path, words: list[str]) -> None:
    """Flags exist, files too, and what they say is a valid experiment."""
    name, *arguments = words
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    given = {k: v for k, v in command.make_context(name, arguments).params.items() if v is not None}
    file = given.pop("file", None)
    if name == "train":
        options = {k: v for k, v in given.items() if k not in ("out", "resume", "json_", "log")}
        elsewhere = ("model_options", "data_options", "host", "agents_here", "data_here")
        options = {k: v for k, v in options.items() if k not in elsewhere}
        Experiment.of(**(read_file(ROOT / file) if file else {}) | options)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for link in links:
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} in {page.name}"
        assert not anchor or anchor in anchors(target), f"{link} in {page.name}"


def test_every_page_can_be_reached() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        where = page.relative_to(ROOT / "docs")
        assert str(where) in index or where.parts[0] in ("index.md", "records"), where


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page_with_its_options(name: str) -> None:
    """A row for each option, with its value as run if there is one, and a command to try."""
    page = ROOT / "docs" / "algorithms" / f"{name}.md"
    assert page.exists(), f"{page.relative_to(ROOT)} is missing"
    text = page.read_text(encoding="utf-8")
    assert f"--algorithm {name}" in text
    rows = {cells[1].strip(): cells for cells in map(split_row, text.splitlines()) if cells[1:]}
    for option, field in ALGORITHMS[name].model_fields.items():
        assert f"`{option}`" in rows, f"{option} has no row in {page.name}"
        _, _, printed, *others = (cell.strip() for cell in rows[f"`{option}`"])
        assert printed == shown(field.default), option
        if issubclass(ALGORITHMS[name], MomentumSGD):
            assert others[0] == (shown(AS_RUN[option]) if option in AS_RUN else ""), option
        else:
            assert "| as run |" not in text and "`--variant as-run` is refused" in text


def split_row(line: str) -> list[str]:
    return line.split("|") if line.startswith("| `") else []


def shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def test_every_dataset_and_model_is_named() -> None:
    text = (ROOT / "docs/data-and-models.md").read_text(encoding="utf-8")
    rows = {
        cells[1].strip(" `").partition(":")[0]
        for cells in map(split_row, text.splitlines())
        if cells
    }
    assert {*SOURCES, *MODELS} <= rows, {*SOURCES, *MODELS} - rows


def test_every_field_of_a_record_is_explained() -> None:
    result = parley.train(agents=3, epochs=1, bias_norms="run", progress=False)
    text = (ROOT / "docs/running.md").read_text(encoding="utf-8")
    unexplained = [f for f in {**result.summary, **result.records[-1]} if f"`{f}`" not in text]
    assert not unexplained


def test_flags_named_in_the_text_exist() -> None:
    known = {"--help", "--version", "--nproc-per-node", "--nnodes", "--rdzv-backend"}
    known |= {"--rdzv-endpoint", "--rdzv-conf", "--node-rank", "--max-restarts"}
    commands: list[Any] = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        known |= {
            flag for option in command.params for flag in (*option.opts, *option.secondary_opts)
        }
    for page in PAGES:
        if page.name == "CONTRIBUTING.md":
            known = known | {"--clip"}
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
        assert named <= known, f"{sorted(named - known)} in {page.name}"


def test_the_readmes_table_is_the_recorded_one() -> None:
    recorded = (ROOT / "docs/records/demo/table.md").read_text(encoding="utf-8")
    assert recorded in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_reproduction_is_that_of_the_records() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    found = collect(ROOT / "results")
    assert found.results and not found.refused
    printed = text.partition(report.BEGIN)[2].partition(report.END)[0]
    made = report.markdown(found, {})
    # All but the pictures: figures, what is said of them, and the commands that give them.
    kept = ("| ", "- ", "parley reproduce ")
    rows = [line for line in made.splitlines() if line.startswith(kept)]
    assert [line for line in printed.splitlines() if line.startswith(kept)] == rows


def test_the_table_of_ag_news_is_that_of_the_records() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    section = text.partition("## AG News")[2].partition("\n## ")[0]
    rows = set()
    for folder in find_runs(ROOT / "results" / "ag_news-minilm"):
        experiment, records = campaign.read_experiment(folder), RunFolder(folder).records()
        method = experiment.algorithm
        options = f"{method.label} | {method.momentum:g} | {method.gamma:g} | {experiment.lr:g}"
        averaged, own = (
            " / ".join(f"{100 * r[f'accuracy_{of}']:.1f}" for r in records)
            for of in ("mean_model", "own")
        )
        gossiped = 100 * records[-1]["accuracy_after_gossip"]
        rows.add(f"| {options} | {averaged} | {gossiped:.1f} | {own} |")
    printed = [line for line in section.splitlines() if re.match(r"\| (D-PSGD|NGC) ", line)]
    assert len(printed) == len(rows) and set(printed) == rows


def test_the_benchmarks_tables_are_those_of_the_records() -> None:
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    profiles = json.loads((ROOT / "benchmarks" / "profile.json").read_text(encoding="utf-8"))
    made = f"{table.render(results)}\n{profile.table(profiles)}\n"
    assert (ROOT / "docs" / "benchmarks-table.md").read_text(encoding="utf-8") == made
