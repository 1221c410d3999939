"""The documentation says what is true: its code runs, its links lead somewhere, its flags exist."""

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import typer
from nbclient import NotebookClient
from torch.distributed.run import get_args_parser

import parley
from benchmarks import page as benchmarks_page
from parley.algorithms import ALGORITHMS, AS_RUN
from parley.cli.main import COMMANDS, app, load
from parley.cluster.host import Host
from parley.data import SOURCES
from parley.experiment import Experiment, read_file
from parley.models import MODELS
from parley.peers.file import Peers
from parley.reproduce import campaign
from parley.reproduce import page as study_page
from parley.reproduce.cells import cells
from parley.reproduce.collect import collect
from parley.reproduce.study import named
from parley.reproduce.study import read as read_study
from parley.results.read import find_runs
from parley.store.folder import RunFolder

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LANGUAGES = {"diff", "json", "math", "python", "sh", "text", "toml"}


def read(page: Path) -> str:
    """A page's text; of a notebook, that of its Markdown cells."""
    if page.suffix == ".ipynb":
        cells = nbformat.read(page, as_version=4).cells
        return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(read(page)) if name == language]


def name_of(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_python_in_pages_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The blocks of a page one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "tasks"))  # an example may use another
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
    """Those in folders by tests/test_examples.py."""
    names = {path.name for path in (ROOT / "examples").iterdir() if path.name != "__pycache__"}
    files = {"own_model_and_data.py", "compare_topologies.py", "experiment.toml"}
    files |= {"cross_features.py"}  # by tests/algorithms/test_cross_features.py
    assert names == {*files, "tasks", "hospitals"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_are(page: Path) -> None:
    """Every block is in a language that a test here runs or checks, or is plain text."""
    fences = re.findall(r"^ *```(.*)$", read(page), re.MULTILINE)
    assert not {*fences[::2]} - LANGUAGES and not any(fences[1::2])


@pytest.mark.filterwarnings("ignore")  # of the notebook's own packages
@pytest.mark.parametrize("page", NOTEBOOKS, ids=name_of)
def test_notebooks_run_and_show_what_they_hold(page: Path, tmp_path: Path) -> None:
    kept = nbformat.read(page, as_version=4)
    made = nbformat.from_dict(kept)
    NotebookClient(made, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    for before, after in zip(kept.cells, made.cells, strict=True):
        kinds = [[output.output_type for output in c.get("outputs", [])] for c in (before, after)]
        assert kinds[0] == kinds[1], before.source
    assert made.cells[-2].outputs[0].data["text/plain"] == "torch.Size([1, 10])"


def with_keys(text: str) -> str:
    """With whole fingerprints where the page shortens them."""
    first, *rest = text.split("sha256:…")
    return first + "".join(f"sha256:{number:064x}{part}" for number, part in enumerate(rest))


@pytest.mark.parametrize("page", pages_with("toml"), ids=name_of)
def test_toml_in_pages_is_an_experiment_a_study_or_a_hosts_part(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        found = tomllib.loads(text)
        if "methods" in found:
            (tmp_path / "study.toml").write_text(text, encoding="utf-8")
            assert all(cell.usual for cell in cells(read_study(tmp_path / "study.toml")).values())
            continue
        if "peer" in found:
            Peers.of(tomllib.loads(with_keys(text)))
        elif isinstance(found.get("agents"), list) or isinstance(found.get("data"), dict):
            Host.model_validate(found)
        else:
            Experiment.from_toml(text)


@pytest.mark.parametrize("page", pages_with("json"), ids=name_of)
def test_json_in_pages_is_json(page: Path) -> None:
    for text in blocks(page, "json"):
        json.loads(text)


@pytest.mark.parametrize("page", pages_with("math"), ids=name_of)
def test_equations_are_complete(page: Path) -> None:
    """Braces and environments close, and columns and rows have an environment to be in."""
    for text in blocks(page, "math"):
        opened = []
        for found in re.finditer(r"\\begin\{(\w+)\}|\\end\{(\w+)\}|(?<!\\)([{}])", text):
            begin, end, brace = found.groups()
            if begin or brace == "{":
                opened.append(begin or brace)
            else:
                assert opened and opened.pop() == (end or "{"), found[0]
        assert not opened
        assert text.count("\\left") - text.count("\\leftarrow") == (
            text.count("\\right") - text.count("\\rightarrow")
        )
        assert not re.search(r"&|\\\\$", text, re.MULTILINE) or re.search(
            r"\\begin\{(aligned|cases)\}", text
        )


def shell_lines() -> Iterator[tuple[Path, list[str]]]:
    """Every line of a shell block, up to a pipe, in words; a continued line is one."""
    for page in PAGES:
        for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield page, words[: words.index("|")] if "|" in words else words


LINES = [
    pytest.param(page, words, id=f"{name_of(page)}-{words}"[:90]) for page, words in shell_lines()
]


@pytest.mark.parametrize("page, words", LINES)
def test_commands_in_pages_are_understood(page: Path, words: list[str]) -> None:
    """Flags, files, make targets and extras exist, and experiments are valid."""
    program, *arguments = words
    if program == "parley":
        understand(arguments)
    elif program == "torchrun":
        understand_torchrun(arguments)
    elif program == "make":
        targets = re.findall(
            r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert {*arguments} <= {*targets}
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
    else:
        assert words[:2] == ["pip", "install"], f"{words} in {page.name} is not checked by any test"
        assert words[2:4] == ["-c", "constraints.txt"] and (ROOT / "constraints.txt").is_file()
        [where] = words[4:]
        folder, _, extras = where.removesuffix("]").partition("[")
        with (ROOT / "pyproject.toml").open("rb") as file:
            known = tomllib.load(file)["project"]["optional-dependencies"]
        assert folder == "." and {*extras.split(",")} <= {"", *known}


def understand_torchrun(arguments: list[str]) -> None:
    """By torchrun's own parser, and Parley's for what is behind it."""
    given = get_args_parser().parse_args(arguments)
    assert given.module and given.training_script == "parley"
    understand(given.training_script_args)


def understand(arguments: list[str]) -> None:
    """By the command's own parser; what `train` is told must be a valid experiment."""
    name, *arguments = arguments
    if name.startswith("-"):
        options = typer.main.get_command(app).params
        assert name in {flag for option in options for flag in option.opts} | {"--help"}
        return
    given = load(name).make_context(name, arguments).params
    given = {option: value for option, value in given.items() if value is not None}
    file = given.pop("file", None)
    if name == "train":
        elsewhere = ("out", "resume", "json_", "log", "model_options", "data_options")
        elsewhere += ("host", "agents_here", "data_here", "allow_code")
        options = {k: v for k, v in given.items() if k not in elsewhere}
        if ":" in options.get("algorithm", ""):  # a class of the page's own
            options["algorithm"] = "dpsgd"
        places = (ROOT, ROOT / "examples" / "hospitals")
        found = [read_file(place / file) for place in places if file and (place / file).exists()]
        assert bool(found) == bool(file), file
        Experiment.of(**(found[0] if found else {}) | options)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", read(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES + NOTEBOOKS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Those to files of the repository and to headings; `make docs` checks them once more."""
    text = BLOCK.sub("", read(page))
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
    for page in [*(ROOT / "docs").rglob("*.md"), *NOTEBOOKS]:
        where = page.relative_to(ROOT / "docs")
        assert str(where) in index or where.parts[0] in ("index.md", "records"), where


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page_with_its_options(name: str) -> None:
    """A row for each option, with its value as run if there is one, and a command to try."""
    page = ROOT / "docs" / "algorithms" / f"{name}.md"
    assert page.exists(), f"{page.relative_to(ROOT)} is missing"
    text = page.read_text(encoding="utf-8")
    assert f"--algorithm {name}" in text and blocks(page, "math")
    rows = {cells[1].strip(): cells for cells in map(split_row, text.splitlines()) if cells[1:]}
    for option, field in ALGORITHMS[name].options().items():
        assert f"`{option}`" in rows, f"{option} has no row in {page.name}"
        _, _, printed, *others = (cell.strip() for cell in rows[f"`{option}`"])
        assert printed == shown(field.default), option
        if "gradient_at" in ALGORITHMS[name].options():
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
    known = {"--help", "--version", "--nproc-per-node", "--nnodes"}
    known |= {"--rdzv-endpoint", "--node-rank", "--max-restarts"}
    commands: list[Any] = [typer.main.get_command(app), *map(load, COMMANDS)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        known |= {
            flag for option in command.params for flag in (*option.opts, *option.secondary_opts)
        }
    for page in PAGES:
        if page.name == "CONTRIBUTING.md":
            known = known | {"--clip"}
        if page.name == "SECURITY.md":
            known = known | {"--minutes"}  # of the fuzzers
        if page.name == "benchmarks.md":
            known = known | {"--avx2"}
        if page.name == "deploy.md":  # flags of docker and kubectl
            known = known | {"--file", "--tag", "--rm", "--volume", "--filename", "--follow"}
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
        assert named <= known, f"{sorted(named - known)} in {page.name}"


def test_the_readmes_table_is_the_recorded_one() -> None:
    recorded = (ROOT / "docs/records/demo/table.md").read_text(encoding="utf-8")
    assert recorded in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_reproduction_is_that_of_the_records() -> None:
    found = collect(named("paper"), ROOT / "results")
    assert found.results and not found.refused
    pages = ("reproduction.md", "reproduction-reduced.md")
    for page, part in zip(pages, found.divided(), strict=True):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        printed = text.partition(study_page.BEGIN)[2].partition(study_page.END)[0]
        made = study_page.markdown(part, {})
        # All but the pictures: figures, what is said of them, and the commands that give them.
        kept = ("| ", "- ", "parley reproduce ")
        rows = [line for line in made.splitlines() if line.startswith(kept)]
        assert rows
        assert [line for line in printed.splitlines() if line.startswith(kept)] == rows


def test_the_table_of_ag_news_is_that_of_the_records() -> None:
    text = (ROOT / "docs" / "reproduction-reduced.md").read_text(encoding="utf-8")
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
    shown = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert benchmarks_page.updated(shown) == shown, "python -m benchmarks.page"
    assert (ROOT / "docs" / "benchmarks-table.md").read_text("utf-8") == benchmarks_page.tables()


def test_no_instruction_uses_a_rendezvous_that_unpickles() -> None:
    """torchrun's c10d backend runs whatever a stranger writes into its store."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").iterdir(), ROOT / "README.md"]
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        assert "rdzv-backend" not in text and "rdzv_backend" not in text, page


def test_the_guide_is_that_of_the_records() -> None:
    page = (ROOT / "docs" / "which-algorithm.md").read_text(encoding="utf-8")
    printed = page.partition(study_page.BEGIN)[2].partition(study_page.END)[0]
    found = collect(named("guide"), ROOT / "results" / "guide")
    assert printed.strip() == study_page.markdown(found, {}).strip()
