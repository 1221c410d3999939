"""Numbers and names are as they were recorded, and folders of old are still read.

A row that fails here has changed for users. Where that is meant, ``python -m tests.digests
--record`` rewrites it, and the commit says why; tests/digests/README.md has more.
"""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from parley.files import parse_json
from tests import digests
from tests.digests import FOLDERS, ROWS, TRAJECTORIES, Said, changes, command, differences, read

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("file", "name"), [(f, n) for f, rows in ROWS.items() for n in rows])
def test_nothing_has_changed(file: str, name: str) -> None:
    assert name in read(file), "has no digest yet: python -m tests.digests --record"
    assert changes(file, name, ROWS[file][name]()) == []


def test_what_is_recorded_is_measured() -> None:
    assert {file: set(read(file)) for file in ROWS} == {f: set(rows) for f, rows in ROWS.items()}


def test_every_algorithm_has_a_trajectory() -> None:
    """A new one gets a row of `TRAJECTORIES`, with options that matter."""
    known = set(digests.json_of("algorithms"))
    assert known <= {options["algorithm"] for options in TRAJECTORIES.values()}


def test_differences_are_seen() -> None:
    """A tolerance that lets everything pass would make all of this worthless."""
    row = read("trajectories")["ngc"]
    other = json.loads(json.dumps(row))
    assert differences(row, other) == []
    other["records"][1]["loss"] *= 1 + 1e-8
    other["records"][2]["bytes_models"] += 1
    other["models"]["along"][3] += 1e-8
    del other["records"][0]["lr"]
    seen = [line.partition(": ")[0] for line in differences(row, other)]
    assert seen == [
        "records[0].lr", "records[1].loss", "records[2].bytes_models", "models.along[3]",
    ]  # fmt: skip


def test_another_hyper_parameter_is_another_trajectory() -> None:
    """Each row's options matter: without them its numbers are others."""
    options = TRAJECTORIES["qgm"]
    for name in ("mu", "weight_decay"):
        less = {key: value for key, value in options.items() if key != name}
        assert changes("trajectories", "qgm", digests.trajectory(less))


# --- other ways to carry it out ---------------------------------------------------------------


@pytest.fixture(scope="module")
def on_two_workers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every trajectory once more, by two processes that torchrun has started."""
    out = tmp_path_factory.mktemp("two") / "trajectories.json"
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [sys.executable, "-m", *launcher, "-m", "tests.digests", "--workers", str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return measured


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_two_workers_give_the_same(on_two_workers: dict[str, Any], name: str) -> None:
    assert changes("trajectories", name, on_two_workers[name]) == []


def test_workers_that_the_run_starts_itself_give_the_same() -> None:
    measured = digests.trajectory(TRAJECTORIES["compngc+choco"], workers=2)
    assert changes("trajectories", "compngc+choco", measured) == []


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_dense_layers_of_all_agents_at_once_give_the_same(name: str) -> None:
    measured = digests.trajectory(TRAJECTORIES[name], engine="stacked")
    assert changes("trajectories", name, measured) == []


def test_vmap_gives_the_same() -> None:
    measured = digests.trajectory(TRAJECTORIES["compngc, as run"], engine="vmap")
    assert changes("trajectories", "compngc, as run", measured) == []


# --- what today's code has written ------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Copies that may be changed."""
    return Path(shutil.copytree(FOLDERS, tmp_path / "folders"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(said: Said) -> bool:
    """Whether it was, in the way that a user can read: one line that names the checkpoint."""
    if said.code == 0:
        return False
    assert said.code == 2 and said.out == ""
    errors = [line for line in said.err.splitlines() if line and not line.startswith("note: ")]
    assert len(errors) == 1 and errors[0].startswith("error: ") and "checkpoint" in errors[0]
    return True


def test_folders_are_small() -> None:
    assert sum(map(len, contents(FOLDERS).values())) < 60_000


def test_an_unfinished_run_continues_or_is_refused(folders: Path) -> None:
    run = folders / "unfinished"
    before = contents(run)
    said = command(
        "train unfinished/experiment.toml --workers 1 --out unfinished --resume", folders
    )
    if refused(said):
        assert {**contents(run), ".lock": b""} == {**before, ".lock": b""}, "nothing but the lock"
        return
    whole = read("runs")["unfinished"]["records"]
    assert len(before["records.jsonl"].splitlines()) == 2 and len(whole) == 4
    assert differences(whole, digests.records_in(run), digests.TOLERANCES["runs"]) == []
    assert (run / "summary.json").is_file()


def test_a_finished_run_is_left_as_it_is(folders: Path) -> None:
    run = folders / "finished"
    before = contents(run)
    said = command(
        "train finished/experiment.toml --engine loop --out finished --resume --json", folders
    )
    if not refused(said):
        assert said.json == parse_json(before["summary.json"])
    assert {name: before[name] for name in before} == {
        name: data for name, data in contents(run).items() if name in before
    }


@pytest.mark.parametrize("name", ["finished", "unfinished"])
def test_an_experiment_file_says_what_it_said(folders: Path, name: str) -> None:
    """Written again, every key is there with the same value."""
    file = folders / name / "experiment.toml"
    said = command(f"train {file} --workers 1 --engine loop --epochs 1 --out again", folders)
    assert said.code == 0, said.err
    old, new = (
        tomllib.loads(path.read_text(encoding="utf-8"))
        for path in (file, folders / "again/experiment.toml")
    )
    assert differences(old | {"workers": 1, "engine": "loop", "epochs": 1}, new) == []


def test_an_experiment_may_be_written_by_hand(tmp_path: Path) -> None:
    """Hyper-parameters among the rest or in a table of their own, and flags that win."""
    common = "agents = 4\nmodel = 'logistic'\nfraction = 0.05\nepochs = 1\ngossip_rounds = 0\n"
    flat = f"{common}algorithm = 'ngc+qgm'\nalpha = 0.5\nmu = 0.8\n"
    table = f"{common}lr = 9.0\n[algorithm]\nname = 'ngc+qgm'\nalpha = 0.5\nmu = 0.8\n"
    (tmp_path / "flat.toml").write_text(flat)
    (tmp_path / "table.toml").write_text(table)
    for name in ("flat", "table"):
        said = command(f"train {name}.toml --lr 0.1 --engine loop --out {name}", tmp_path)
        assert said.code == 0, said.err
    flat, table = ((tmp_path / name / "experiment.toml").read_text() for name in ("flat", "table"))
    assert flat == table
    assert tomllib.loads(flat)["algorithm"].items() >= {"alpha": 0.5, "mu": 0.8}.items()


def test_tuned_settings_are_read(folders: Path) -> None:
    said = command(
        "compare --algorithms dpsgd,ngc --tuned tuned.toml --agents 4 --model logistic "
        "--fraction 0.05 --epochs 1 --gossip-rounds 0 --seeds 1 --parallel 1 --engine loop "
        "--out all --json",
        folders,
    )
    assert said.code == 0, said.err
    written = [tomllib.loads(p.read_text()) for p in (folders / "all").rglob("experiment.toml")]
    assert [run["lr"] for run in written] == [0.399, 0.399]


def test_the_report_reads_both(folders: Path) -> None:
    before = contents(folders)
    said = command("report finished unfinished --out page.html --json", folders)
    assert said.code == 0, said.err
    page = (folders / "page.html").read_text(encoding="utf-8")
    assert "NGC α=0.5" in page and "CompNGC" in page
    after = contents(folders)
    after.pop("page.html")
    assert after == before


def test_results_of_this_repository_are_read(tmp_path: Path) -> None:
    """Every run that documents rest on."""
    results = ROOT / "results"
    runs = sorted(path.parent for path in results.rglob("experiment.toml"))
    assert len(runs) >= 51
    said = command(f"report {results} --out {tmp_path / 'page.html'}", tmp_path)
    assert said.code == 0, said.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    labels = {json.loads((run / "summary.json").read_text())["label"] for run in runs}
    assert len(labels) > 5 and all(label in page for label in labels)
