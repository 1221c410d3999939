"""One type and one parser of records, for resuming and for reading."""

from pathlib import Path

import pytest

import parley
from parley.errors import ParleyError
from parley.results.read import read_run
from parley.store.folder import RunFolder
from parley.training.record import Record


def test_every_field_that_a_run_writes_is_in_the_type(tmp_path: Path) -> None:
    parley.train(
        agents=3, epochs=1, bias_norms="run", links="delay=1", progress=False, out=tmp_path / "run"
    )
    [record] = RunFolder(tmp_path / "run").records()
    # Only where hosts are absent, or send what they should not.
    optional = {"test_samples_absent", "suspicious_messages"}
    # Only where agents have their own test samples.
    optional |= {"accuracy_personal_agents", "accuracy_personal_mean_model_agents"}
    optional |= {"test_samples_agents"}
    assert set(record) == set(Record.__annotations__) - optional
    assert Record.__required_keys__ == {"epoch"}


def test_fields_of_other_versions_are_kept(tmp_path: Path) -> None:
    line = '{"epoch": 1, "warp": 9, "crew": ["a"]}\n'
    (tmp_path / "records.jsonl").write_text(line)
    assert RunFolder(tmp_path).records() == [{"epoch": 1, "warp": 9, "crew": ["a"]}]
    assert RunFolder(tmp_path).rewind(RunFolder(tmp_path).records(), 1)
    assert (tmp_path / "records.jsonl").read_text() == f'{line[:-2]}, "check": "crc32 abd534c5"}}\n'


@pytest.mark.parametrize("bad", [b"nonsense", b"[1]", b'{"loss": 1}', b'{"epoch": NaN}', b"\xff"])
def test_what_resuming_refuses_reading_skips_with_a_note(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "records.jsonl").write_bytes(b'{"epoch": 1}\n' + bad + b'\n{"epoch": 2}\n{"epo')
    with pytest.raises(ParleyError, match=r"line 2 of .* is damaged"):
        RunFolder(tmp_path).records()
    run = read_run(tmp_path)
    assert run.records == [{"epoch": 1}, {"epoch": 2}]
    assert run.notes == ["records.jsonl: 1 damaged line skipped (2)"]
