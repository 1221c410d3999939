"""Studies as files: what is refused, and the example of the docs from end to end."""

import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parley.cli import reproduce as cli
from parley.errors import BadValue, ParleyError
from parley.reproduce import campaign, collect, page
from parley.reproduce.campaign import Order, Shard
from parley.reproduce.cells import Form, cells, select, with_methods
from parley.reproduce.study import find, named, read, shipped
from parley.reproduce.tuned import Task, rates
from parley.store.folder import RunFolder
from parley.sweep.compare import parse_algorithms
from parley.sweep.field import PARTITIONS
from parley.sweep.tune import RATES

DOCS = Path(__file__).parents[2] / "docs" / "studies.md"
TEXT = DOCS.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
SMALLER = TEXT.replace("seeds = 3", "seeds = 2").replace("epochs = 3", "epochs = 1")
"""The same in seconds."""


def command(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments), catch_exceptions=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study of the docs, smaller, made in two shards and collected."""
    folder = tmp_path_factory.mktemp("studies")
    file = folder / "neighbours.toml"
    file.write_text(SMALLER)
    out = folder / "out"
    for share, runs in (("1/2", 12), ("2/2", 24)):
        shown = command(str(file), "--out", str(out), "--shard", share, "--parallel", "1")
        assert shown.exit_code == 0, shown.exception
        assert f"12 of 12 runs done, in {out}" in " ".join(shown.stdout.split())
        assert len(list(out.rglob("summary.json"))) == runs and not list(out.glob("*.md"))
    times = {path: path.stat().st_mtime_ns for path in out.rglob("records.jsonl")}
    shown = command(str(file), "--out", str(out))
    assert shown.exit_code == 0, shown.exception
    assert "all done" in shown.stderr and "24 of 24 runs done" in shown.stdout
    assert {path: path.stat().st_mtime_ns for path in out.rglob("records.jsonl")} == times
    return file


def test_the_page_of_the_example_is_made_from_its_runs(done: Path) -> None:
    out = done.parent / "out"
    text = (out / "neighbours.md").read_text()
    rows = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1:]
        for line in text.partition("### All agents")[0].splitlines()
        if line.startswith("| ")
    }
    assert rows["method"] == ["chain", "ring", "full", "worst |"]
    ends = {}
    for graph in ("chain", "ring", "full"):
        runs = sorted((out / "skewed" / "ngc" / graph / "run").iterdir())
        assert [run.name for run in runs] == ["seed-0", "seed-1"]
        ends[graph] = [100 * RunFolder(run).records()[-1]["accuracy_own"] for run in runs]
    means = {graph: statistics.fmean(of) for graph, of in ends.items()}
    assert rows["NGC"] == [
        *(f"{means[g]:.1f} ± {statistics.stdev(of):.1f}" for g, of in ends.items()),
        f"{min(means.values()):.1f} |",
    ]
    worst = [float(rows[method][-1].strip("| ")) for method in list(rows)[2:]]
    assert worst == sorted(worst, reverse=True), "the best first"
    places = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert "pictures/distance.png" in places
    assert all((out / place).stat().st_size > 5_000 for place in places)


def test_two_shards_train_what_one_command_trains(done: Path, tmp_path: Path) -> None:
    study = read(done)
    [cell] = select(study, "skewed/ngc/ring")
    [job, _] = campaign.jobs([cell], Order(seeds=2), tmp_path)
    campaign.run([job], 1, tmp_path)
    there = done.parent / "out" / job.out.relative_to(tmp_path)
    ours, theirs = (RunFolder(path).records() for path in (job.out, there))
    assert [r["loss"] for r in ours] == [r["loss"] for r in theirs]


def test_more_seeds_of_some_runs_leave_the_others_alone(done: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(done.parent / "out", out)
    named_ = (str(done), "alike", "--methods", "dpsgd", "--seeds", "3", "--out", str(out))
    listed = json.loads(command(*named_, "--list", "--json").stdout)
    assert [(row["done"], row["left"], row["hours"]) for row in listed] == [(2, 1, None)] * 3
    assert command(*named_).exit_code == 0
    found = collect.collect(read(done), out)
    seeds = {r.cell.name: len(r.runs) for r in found.results}
    assert {len_ for name, len_ in seeds.items() if name.startswith("alike/dpsgd")} == {3}
    assert {len_ for name, len_ in seeds.items() if name.startswith("skewed")} == {2}
    shown = command(str(done), "--report", "--out", str(out), "--markdown", str(tmp_path / "a.md"))
    assert shown.exit_code == 0 and "| method | chain |" in (tmp_path / "a.md").read_text()


def test_another_algorithm_takes_part_where_all_settings_have_the_same(done: Path) -> None:
    study, names = with_methods(read(done), "qgm,ngc:alpha=0")
    assert names == ["qgm", "ngc:alpha=0"]
    assert [cell.label for cell in select(study, "alike", None, names)][::3] == ["QGM", "NGC α=0"]
    assert [cell.label for cell in select(study, "alike")][::3] == [
        "D-PSGD",
        "NGC",
        "QGM",
        "NGC α=0",
    ]
    with pytest.raises(BadValue, match="did you mean 'dpsgd'"):
        select(named("paper"), "cifar10", methods=with_methods(named("paper"), "dpsg")[1])


def test_published_figures_may_differ_by_what_is_varied(tmp_path: Path) -> None:
    file = tmp_path / "published.toml"
    published = "ngc.published = { chain = [61.0, 0.6], ring = [79.4] }"
    runs = f"[settings.skewed.runs]\ndpsgd = {{}}\n{published}\n"
    file.write_text(TEXT.replace("[settings.alike]", f"{runs}\n[settings.alike]"))
    study = read(file)
    made = cells(study)
    assert made["skewed/ngc/chain"].published == (61.0, 0.6)
    assert made["skewed/ngc/ring"].published == (79.4,) and not made["skewed/ngc/full"].published
    assert "skewed/qgm/ring" not in made and "alike/dpsgd/ring" in made
    records = [{"epoch": 3, "step": 3, "accuracy_own": 0.5}]
    results = [
        collect.Result(made[f"skewed/ngc/{graph}"], Form("run"), {0: records})  # type: ignore[dict-item]
        for graph in ("chain", "ring", "full")
    ]
    text = page.markdown(collect.Found(study, results), {})
    assert "| NGC | 50.0 (61.00 ± 0.60) | 50.0 (79.40) | 50.0 | 50.0 |" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("options = { partition", "optoins = { partition", r"settings.skewed.optoins: .*'options'"),
        ("digits = 1", "digits = 9", "table.digits: 9 .*less than or equal to 6"),
        ("seeds = 3", "seeds = true", "seeds: True is not valid"),
        ('across = "graph"', 'across = "grph"', "table.across: 'grph' .*did you mean 'graph'"),
        ("skewed/dpsgd/chain", "skewed/dpsg/chain", "pictures.distance.lines: 'skewed/dpsg/chain'"),
        ('"ngc"]', '"ncg"]', "algorithm: 'ncg' .*did you mean 'ngc'"),
        ('"ngc"]', "]\n[settings.skewed.runs]\nqgm = {}", "settings.skewed.runs: 'qgm'"),
        ("epochs = 3", 'epochs = "x"', "skewed/dpsgd/chain: epochs: 'x' .*whole number"),
        ("lr = 0.1", "lrr = 0.1", "skewed/dpsgd/chain: option: 'lrr' .*did you mean 'lr'"),
        ("[vary.graph]", "[tune]\nrates = {}\n[vary.graph]", "tune: 'given' .*without vary"),
        ("[vary.graph]", "[choices.a]\noptions = {}\n[vary.graph]", "choices: .*variants"),
        ("methods = ", "method = ", "method: .*did you mean 'methods'|methods: missing"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    assert old in TEXT
    file.write_text(TEXT.replace(old, new, 1))
    error = command(str(file), "--out", str(tmp_path / "out")).exception
    assert isinstance(error, ParleyError), error
    assert re.search(said, str(error)) and "\n" not in str(error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("guide --variant as-printed", "variant: .*only studies with variants have it"),
        ("cifar10 --test-fraction 0.5", "test_fraction: 0.5 .*only studies that tune"),
        ("cifar10 --trials 3", "trials: 3 .*only studies that tune have it"),
        ("follow-up --trial-epochs 3", "trial_epochs: 3 .*only studies that tune have it"),
        ("cifar10 --picture all.png", "picture: .*paper has 11 of its own.*--pictures FOLDER"),
        ("cifar10 --shard 4/3", "shard: '4/3'"),
        ("cifar10/cnn5 ring", "setting: 'ring' .*NAME is a preset"),
        ("no-such-study.toml", "study: 'no-such-study.toml'"),
    ],
)
def test_what_a_study_does_not_heed_is_refused(arguments: str, said: str) -> None:
    error = command(*arguments.split(), "--list").exception
    assert isinstance(error, ParleyError) and re.search(said, str(error)), error


def test_the_field_is_what_parley_compare_runs() -> None:
    options = {"data": "digits", "epochs": 20, "evaluate_every": 2, "gossip_rounds": 0}
    study = named("field")
    methods = parse_algorithms("all")
    assert [method.name for method in methods] == list(study.methods)
    for setting, partition in zip(study.settings, PARTITIONS, strict=True):
        for cell, method in zip(select(study, setting), methods, strict=True):
            asked = Task(cell, Order(), Path()).asked
            assert not asked.same_as(method.experiment(options | {"partition": partition}))
            assert study.tune and rates(study.tune, asked) == RATES
    assert len({cell.label for cell in cells(study).values()}) == len(methods)


@pytest.mark.parametrize("share", ["0/2", "3/2", "1", "a/b", "1/2/3"])
def test_a_share_is_one_of_some(share: str) -> None:
    with pytest.raises(BadValue, match="for example 3/8"):
        Shard.parse(share)


def test_shards_are_disjoint_and_complete() -> None:
    plan = list(range(23))
    shares = [Shard(number, 5).share(plan) for number in range(1, 6)]
    assert sorted(number for share in shares for number in share) == plan


def test_the_studies_that_come_with_parley_are_found_by_name() -> None:
    assert shipped() == ["field", "follow-up", "guide", "paper"]
    assert find("guide", "ring") == (named("guide"), "ring")
    assert find("cifar10/cnn5") == (named("paper"), "cifar10/cnn5")
    assert find("follow-up/vgg11") == (named("follow-up"), "follow-up/vgg11")
    with pytest.raises(BadValue, match="NAME is a preset"):
        find("cifar10/cnn5", "ring")
