"""What is shown while runs are made."""

import pytest
from rich.console import Console

from parley.sweep import jobs as runs
from parley.sweep.compare import jobs
from parley.training.events import EpochDone, StepDone
from parley.watch import progress
from tests.sweep.test_compare import experiments


def test_bars_count_the_epochs_of_all_seeds_also_when_resumed(tmp_path, monkeypatch):
    terminal = Console(force_terminal=True, width=80, file=(tmp_path / "screen").open("w"))
    monkeypatch.setattr(runs, "console", terminal)
    monkeypatch.setattr(progress, "console", terminal)
    todo = jobs(experiments("ngc", epochs=10), 2, tmp_path)
    board = runs._Board(todo)
    record = {"accuracy_mean_model": 0.5, "accuracy_own": 0.25}
    with board.live():
        board.show(todo[0], EpochDone(4, None))  # resumed: three epochs were made before
        board.show(todo[1], EpochDone(10, record))
    (task,) = board._bars.tasks
    assert (task.completed, task.total) == (14, 20)
    assert task.fields["status"] == "50.0% averaged, 25.0% own"
    terminal.file.close()
    line = (tmp_path / "screen").read_text().splitlines()[-2]
    assert "NGC" in line and "14/20" in line and "50.0% averaged, 25.0% own" in line


def test_bars_move_within_an_epoch(tmp_path, monkeypatch):
    terminal = Console(force_terminal=True, width=80, file=(tmp_path / "screen").open("w"))
    monkeypatch.setattr(runs, "console", terminal)
    (job,) = jobs(experiments("ngc", epochs=10), 1, tmp_path)
    board = runs._Board([job])
    board.show(job, StepDone(36, 100, 0.5))
    assert board._bars.tasks[0].completed == pytest.approx(3.6)
    terminal.file.close()


def test_a_log_of_long_runs_has_a_line_a_minute_and_one_for_each_end(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    file = (tmp_path / "log").open("w")
    monkeypatch.setattr(runs, "console", Console(file=file))
    (job,) = jobs(experiments("ngc", epochs=10), 1, tmp_path)
    board = runs._Board([job])
    record = dict.fromkeys(("accuracy_mean_model", "accuracy_own", "accuracy_after_gossip"), 0.5)
    record |= {"consensus_distance": 0.25, "bytes_models": 1e6, "bytes_cross_gradients": 5e5}
    told = "accuracy 50.0% averaged, 50.0% own, 50.0% gossiped, distance 0.25, 1.50 MB sent"
    for at, event in [
        (0, StepDone(10, 100, 0.5)),
        (30, EpochDone(3, record)),  # too soon for a line
        (61, StepDone(40, 100, 0.5)),
        (100, EpochDone(6, record)),
        (122, EpochDone(7, record)),
        (123, EpochDone(10, record, last=True)),
    ]:
        now[0] = float(at)
        board.show(job, event)
    file.close()
    assert (tmp_path / "log").read_text().splitlines() == [
        "NGC, seed 0: epoch 4 of 10, 0:02:02 left",
        f"NGC, seed 0: epoch 7 of 10, {told}, 0:01:01 left",
        f"NGC, seed 0: {told}",
    ]


def test_a_run_that_stops_early_is_at_its_end(tmp_path, monkeypatch):
    terminal = Console(force_terminal=True, width=80, file=(tmp_path / "screen").open("w"))
    monkeypatch.setattr(runs, "console", terminal)
    (job,) = jobs(experiments("ngc", epochs=10), 1, tmp_path)
    record = dict.fromkeys(("accuracy_mean_model", "accuracy_own", "accuracy_after_gossip"), 0.5)
    record |= {"consensus_distance": 0.25, "bytes_models": 1e6, "bytes_cross_gradients": 5e5}
    board = runs._Board([job])
    board.show(job, EpochDone(4, record, last=True))
    assert board._bars.tasks[0].completed == 10
    terminal.file.close()
    file = (tmp_path / "log").open("w")
    monkeypatch.setattr(runs, "console", Console(file=file))
    runs._Board([job]).show(job, EpochDone(4, record, last=True))
    file.close()
    assert (tmp_path / "log").read_text().startswith("NGC, seed 0: epoch 4 of 10, accuracy 50.0%")


def test_runs_tell_of_every_epoch_and_of_few_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    heard = []
    watch = runs._seldom(heard.append)
    for step in range(1, 101):
        now[0] = step / 100
        watch(StepDone(step, 100, 0.5))
        if step % 10 == 0:
            watch(EpochDone(step // 10, None))
    assert [e.epoch for e in heard if isinstance(e, EpochDone)] == list(range(1, 11))
    assert [e.step for e in heard if isinstance(e, StepDone)] == [50, 100]
