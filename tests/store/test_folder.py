"""One run, one folder: what is refused stays as it was, what was interrupted resumes."""

import json
from pathlib import Path

import pytest
import torch

import parley
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.store.folder import RunFolder, fresh_name, write_atomically

EXPERIMENT = Experiment.of(algorithm="ngc", epochs=3)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_new_run_says_what_it_is(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "deep" / "run")
    run.open(EXPERIMENT, resume=False)
    assert set(contents(run.path)) == {"experiment.toml", "environment.json"}
    assert Experiment.from_toml((run.path / "experiment.toml").read_text()) == EXPERIMENT
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["parley"] == parley.__version__


@pytest.mark.parametrize("resume", [False, True])
def test_another_experiment_is_refused_and_untouched(tmp_path: Path, resume: bool) -> None:
    run = RunFolder(tmp_path)
    run.open(EXPERIMENT, resume=False)
    before = contents(tmp_path)
    other = EXPERIMENT.replace(lr=0.3, seed=4)
    with pytest.raises(
        ParleyError, match=r"holds a different experiment \(they differ in lr, seed\)"
    ):
        run.open(other, resume)
    assert contents(tmp_path) == before


def test_the_same_experiment_needs_the_word_resume(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.open(EXPERIMENT, resume=False)
    with pytest.raises(ParleyError, match="add --resume to continue it"):
        run.open(EXPERIMENT, resume=False)
    run.open(EXPERIMENT.replace(workers=2, threads=3), resume=True)  # how, not what


def test_foreign_files_are_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadValue, match="valid: a new or empty folder"):
        RunFolder(tmp_path).open(EXPERIMENT, resume=False)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}
    with pytest.raises(BadValue, match="it is a file"):
        RunFolder(tmp_path / "thesis.tex").open(EXPERIMENT, resume=False)


def test_killed_before_the_experiment_was_written(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml.123.partial").write_text('data = "dig')
    RunFolder(tmp_path).open(EXPERIMENT, resume=False)
    assert Experiment.from_toml((tmp_path / "experiment.toml").read_text()) == EXPERIMENT


def test_a_file_that_is_no_experiment(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text("data = ")
    with pytest.raises(ParleyError, match="TOML"):
        RunFolder(tmp_path).open(EXPERIMENT, resume=True)


class TestRecords:
    def test_half_written_last_line(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        for epoch in (1, 2):
            run.append({"epoch": epoch})
        whole = (tmp_path / "records.jsonl").read_bytes()
        for cut in range(1, len(b'{"epoch": 2}\n') + 1):
            (tmp_path / "records.jsonl").write_bytes(whole[:-cut])
            assert run.records() == [{"epoch": 1}]
            assert run.rewind(run.records(), 5) == [{"epoch": 1}]
            run.append({"epoch": 2})
            assert (tmp_path / "records.jsonl").read_bytes() == whole

    def test_newer_than_the_checkpoint(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        for epoch in range(1, 6):
            run.append({"epoch": epoch})
        assert [r["epoch"] for r in run.rewind(run.records(), 3)] == [1, 2, 3]
        assert [r["epoch"] for r in run.records()] == [1, 2, 3]

    def test_none_yet(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        assert run.records() == []
        assert run.rewind([], 0) == []
        assert contents(tmp_path) == {}

    def test_damage_in_the_middle_loses_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "records.jsonl"
        path.write_text('{"epoch": 1}\n{"epo\xff\n{"epoch": 3}\n')
        before = path.read_bytes()
        with pytest.raises(ParleyError, match=r"records: line 2 of .*records.jsonl is damaged"):
            RunFolder(tmp_path).records()
        assert path.read_bytes() == before


def test_summary_marks_a_complete_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.summary() is None
    run.finish({"loss": 0.5})
    assert run.summary() == {"loss": 0.5}
    (tmp_path / "summary.json").write_text("{")
    assert run.summary() is None


@pytest.mark.parametrize(
    "name", ["environment.json", "confusion.json", "model.json", "model.safetensors",
             "summary.json", "agents/agent-1.safetensors"],
)  # fmt: skip
def test_a_folder_in_the_place_of_a_file_is_found_before_anything_changes(
    tmp_path: Path, name: str
) -> None:
    run = RunFolder(tmp_path)
    run.open(EXPERIMENT, resume=False)
    run.finish({"epochs": 3})
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir(parents=True)
    before = contents(tmp_path)
    for experiment in (EXPERIMENT, EXPERIMENT.replace(epochs=5)):
        with pytest.raises(ParleyError, match=rf"out: .*{name} is a folder; remove it"):
            run.check(experiment, resume=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["checkpoint", "agents"])
def test_a_file_in_the_place_of_a_folder_costs_no_records(tmp_path: Path, name: str) -> None:
    """Without checkpoints a run begins again, which must not happen by such an accident."""
    run = RunFolder(tmp_path)
    run.open(EXPERIMENT, resume=False)
    (tmp_path / name).write_text("not a folder")
    before = contents(tmp_path)
    with pytest.raises(ParleyError, match=rf"out: .*{name} is not a folder; put the folder back"):
        run.check(EXPERIMENT, resume=True)
    assert contents(tmp_path) == before


def test_stale_partial_files_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "summary.json.123.partial").write_text("{ half")
    assert RunFolder(tmp_path).summary() is None
    write_atomically(tmp_path / "summary.json", "{}")
    assert RunFolder(tmp_path).summary() == {}
    assert contents(tmp_path).keys() == {"summary.json", "summary.json.123.partial"}


def test_fresh_names_do_not_repeat(tmp_path: Path) -> None:
    first = fresh_name(tmp_path, "ngc")
    first.mkdir()
    assert (first.name, fresh_name(tmp_path, "ngc").name) == ("ngc-001", "ngc-002")
