"""A run reports where it is, and whether it is active, was stopped, failed or died."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import parley
from parley.errors import ParleyError
from parley.store import status
from parley.training.events import Event, StepDone
from tests.processes import Command

SMALL = {"agents": 3, "epochs": 2, "progress": False}
LONG = ("train", "--agents=3", "--epochs=100000", "--evaluate-every=50")


def said(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "status.json").read_text())
    return found


def test_a_run_says_where_it_is_and_holds_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "EVERY", 0.0)
    out = tmp_path / "run"
    seen = []

    def watch(event: Event) -> None:
        if isinstance(event, StepDone):
            seen.append((event, said(out), status.is_held(out)))

    parley.train(out=out, watch=watch, **SMALL)
    assert len(seen) > 2
    for event, words, held in seen:
        assert held
        assert words["state"] == "running" and words["locked"] and words["pid"] == os.getpid()
        assert (words["step"], words["steps"]) == (event.step, event.steps)
        assert words["loss"] == event.loss and words["began_step"] == 1
    assert not (out / "status.json").exists(), "the summary takes its place"
    assert not status.is_held(out)


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_run_whose_folder_is_removed_ends_and_makes_no_part_of_it_again(
    epoch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "EVERY", 0.0)
    out = tmp_path / "run"

    def watch(event: Event) -> None:
        if isinstance(event, StepDone) and event.step * 2 > (epoch - 1) * event.steps:
            shutil.rmtree(out, ignore_errors=True)

    with pytest.raises(ParleyError, match=r"^out: .*experiment.toml was removed during the run"):
        parley.train(out=out, watch=watch, **SMALL)
    assert not out.exists()


def test_a_stop_counts_even_if_another_was_stopped_first(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "failed", "why": "lost north"}')
    status.mark_stopped(tmp_path)
    assert said(tmp_path)["state"] == "failed"
    status.mark_stopped(tmp_path, ("running", "failed"))
    assert said(tmp_path) == {"state": "stopped", "why": ""}


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    refused = []

    def watch(event: Event) -> None:
        if isinstance(event, StepDone) and not refused:
            with pytest.raises(ParleyError, match="another process is using") as error:
                parley.train(out=out, resume=True, **SMALL)
            refused.append(str(error.value))

    result = parley.train(out=out, watch=watch, **SMALL)
    assert str(out) in refused[0]
    assert [record["epoch"] for record in result.records] == [1, 2], "the first goes on unharmed"


def test_it_is_not_written_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "EVERY", 3600.0)
    steps = []

    def watch(event: Event) -> None:
        if isinstance(event, StepDone):
            steps.append(said(tmp_path / "run")["step"])

    parley.train(out=tmp_path / "run", watch=watch, **SMALL)
    assert set(steps) == {1}


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    options = {**SMALL, "epochs": 40, "lr": 1000, "weight_decay": 1, "batch": 2000}
    with pytest.raises(ParleyError, match="diverged"):
        parley.train(algorithm="dpsgd", out=tmp_path / "run", **options)
    words = said(tmp_path / "run")
    assert words["state"] == "failed" and "training has diverged" in str(words["why"])
    assert not status.is_held(tmp_path / "run")


def test_stopped_is_told_from_killed(tmp_path: Path) -> None:
    stopped = Command(tmp_path, *LONG, "--out", tmp_path / "stopped")
    killed = Command(tmp_path, *LONG, "--out", tmp_path / "killed")
    ended = Command(tmp_path, *LONG, "--workers=2", "--out", tmp_path / "ended")
    for command, name in ((stopped, "stopped"), (killed, "killed")):
        assert command.until((tmp_path / name / "status.json").exists)
    assert status.is_held(tmp_path / "stopped") and status.is_held(tmp_path / "killed")
    stopped.send(signal.SIGINT)
    killed.send(signal.SIGKILL)
    assert ended.until((tmp_path / "ended" / "status.json").exists)
    ended.send(signal.SIGTERM)
    assert (stopped.wait(), killed.wait()) == (130, -signal.SIGKILL)
    assert ended.wait() == 143, "as a shell tells it"
    assert ended.nothing_left() and "Traceback" not in ended.err
    assert f"the same command with --out {tmp_path / 'ended'} --resume" in ended.err
    assert said(tmp_path / "ended")["state"] == "stopped"
    assert said(tmp_path / "stopped")["state"] == "stopped"
    assert said(tmp_path / "killed")["state"] == "running"  # the last thing that it could say
    assert not status.is_held(tmp_path / "stopped") and not status.is_held(tmp_path / "killed")


def test_whoever_looks_does_not_keep_a_run_from_its_lock(tmp_path: Path) -> None:
    with status.held(tmp_path) as first:
        assert first
        with status.held(tmp_path) as second:
            assert not second
        assert status.is_held(tmp_path)
    assert not status.is_held(tmp_path)
    assert not status.is_held(tmp_path / "missing")
