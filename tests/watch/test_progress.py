"""What is shown during a run: in a terminal, in a log, in a notebook."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from parley.experiment import Experiment
from parley.training.events import EpochDone, Started, StepDone
from parley.watch import progress
from parley.watch.progress import TrainingProgress

EXPERIMENT = Experiment.of(algorithm="ngc", epochs=4)
RECORD = {
    "accuracy_mean_model": 0.941, "accuracy_own": 0.762, "accuracy_after_gossip": 0.94,
    "consensus_distance": 0.1234, "bytes_models": 5e6, "bytes_cross_gradients": 2.5e6,
}  # fmt: skip


class Clock:
    """One second more at every glance."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_logs_get_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "console", Console(stderr=True, force_terminal=False))
    monkeypatch.setattr(progress, "time", Clock())
    with TrainingProgress(EXPERIMENT) as show:
        show(Started(10, ""))
        for step in range(100, 111):  # resumed: the rate is that of the steps made since
            show(StepDone(step, 400, 0.5))
        show(EpochDone(1, None))
        show(EpochDone(2, RECORD))
    err = capsys.readouterr().err
    assert re.fullmatch(
        r"NGC: epoch 2 of 4: accuracy 94\.1% averaged, 76\.2% own, 94\.0% gossiped, "
        r"distance 0\.123, 7\.50 MB sent, [\d.]+ steps/s, 0:\d\d:\d\d left\n",
        err,
    ), err
    assert "\x1b" not in err and "\r" not in err


def test_the_rate_counts_from_where_a_run_was_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    shown = progress._Clock()
    shown.tick(StepDone(1001, 2000, 0.5))
    began = clock.now
    shown.tick(StepDone(1011, 2000, 0.5))
    clock.now = began + 4  # and one second more when asked
    assert shown.rate == pytest.approx(2.0)
    assert re.fullmatch(r"0:\d\d:\d\d", shown.left)
    shown.tick(StepDone(2000, 2000, 0.5))
    assert shown.left == ""


def test_a_terminal_gets_a_bar_with_rate_time_and_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=screen, force_terminal=True, width=80))
    with TrainingProgress(EXPERIMENT) as show:
        for step in range(1, 31):
            show(StepDone(step, 400, 0.5))
        show(EpochDone(2, RECORD))
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).splitlines()[-2:]
    assert re.match(r"NGC +[━╸╺ ]+ 30/400 +[\d.]*(/s)? *[-\d:]+", last[0]), last
    assert last[1].startswith("epoch 2: accuracy 94.1% averaged, 76.2% own, 94.0% gossiped")
    assert all(len(line) <= 80 for line in last)


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(EXPERIMENT, shown=False) as show:
        show(Started(10, "a note"))
        show(StepDone(1, 4, 0.5))
        show(EpochDone(1, RECORD))
    assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore")  # of the notebook's own packages
def test_a_notebook_gets_one_display_without_widgets_and_shows_the_plot(tmp_path: Path) -> None:
    """In a real kernel, as a notebook runs it."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    train = "import parley\nresult = parley.train(agents=3, epochs=3)"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in (train, "result.plot()")],
        metadata={"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
    )
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": tmp_path}}
    ).execute()
    first, second = (cell["outputs"] for cell in notebook.cells)
    [shown] = [output for output in first if output["output_type"] == "display_data"]
    html, plain = shown["data"]["text/html"], shown["data"]["text/plain"]
    assert "<progress" in html and "<script" not in html and "widget" not in str(first)
    assert "epoch 3 of 3: accuracy" in html and "epoch 3 of 3: accuracy" in plain
    assert "image/svg+xml" in second[0]["data"]
