"""Where agents' own data come from: code only if the host itself has named it."""

import json
import logging
import sys
from pathlib import Path

import pytest

from parley.data import own
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.training import problem as problems

PLANTED = """
from pathlib import Path
Path("ran").touch()

def load(agent):
    Path("called").touch()
    raise ValueError("no number: 'Jane Doe, born 1970'")
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    return tmp_path


def test_a_partition_file_cannot_name_code(planted: Path) -> None:
    path = planted / "partition.json"
    path.write_text(json.dumps(["planted:load", "planted:load"]))
    experiment = Experiment.of(agents=2, partition=f"file:{path}")
    words = r"partition: 'planted:load' .*code comes only from the host itself"
    with pytest.raises(BadValue, match=words):
        problems.problem(experiment)
    assert not (planted / "ran").exists()
    assert not (planted / "called").exists()
    assert "planted" not in sys.modules


def test_what_a_function_says_stays_on_its_host(
    planted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors are passed on to the other hosts, and this one quotes a patient's file."""
    with caplog.at_level(logging.ERROR), pytest.raises(BadValue) as caught:
        own.load({0: "planted:load"})
    assert (planted / "called").exists(), "the host itself has named it"
    assert "agent 0: it raised ValueError" in str(caught.value)
    assert "Jane" not in str(caught.value)
    assert "Jane Doe" in caplog.text


@pytest.mark.parametrize(
    ("field", "spec", "content"),
    [
        ("topology", "file", "root:x:0:0:secret\n"),
        ("topology", "schedule", "round\nsecret secret\n"),
        ("links", "file", "secret = 3\n"),
        ("links", "file", 'delay = "secret"\n'),
        ("links", "file", "secret secret\n"),
        ("links", "file", '[edges."secret"]\ndelay = 1\n'),
        ("links", "file", "edges = 3\n"),
        ("partition", "file", '["secret'),
        ("partition", "file", '{"secret": 1}'),
    ],
)
def test_errors_do_not_quote_files(tmp_path: Path, field: str, spec: str, content: str) -> None:
    import parley

    path = tmp_path / "given"
    path.write_text(content)
    with pytest.raises(BadValue) as caught:
        parley.train(agents=3, epochs=1, progress=False, **{field: f"{spec}:{path}"})  # type: ignore[arg-type]
    assert field in str(caught.value)
    assert "secret" not in str(caught.value)
