"""A flipped bit in any file of a complete run is noticed, wherever the file is read."""

import logging
import random
import shutil
from pathlib import Path

import pytest
import torch

import parley
from parley.errors import ParleyError
from parley.files import Unreadable, is_sealed, parse_json, sealed
from parley.models import weights
from parley.results.read import read_all, read_run
from parley.store.folder import RECORDS, RunFolder
from tests.store.test_journal import SMALL

JSON = ("summary.json", "environment.json", "agents.json", "confusion.json")
FLIPS = 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    parley.train(out=out, epochs=2, **SMALL)
    return out


def flipped(path: Path, source: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[source.randrange(len(content))] ^= 1 << source.randrange(8)
    path.write_bytes(content)


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", ["model.safetensors", "agents/agent-1.safetensors"])
def test_a_flipped_bit_of_a_model_is_refused(name: str, run: Path, tmp_path: Path) -> None:
    source, alone = random.Random(name), tmp_path / "copied-alone.safetensors"
    whole = weights.load(run / name)
    for _ in range(FLIPS):
        shutil.copy(run / name, alone)
        flipped(alone, source)
        try:
            found = weights.load(alone)
        except Exception as error:  # safetensors has its own for a header that it cannot read
            assert type(error).__name__ in ("SafetensorError", "ValueError"), error
        else:
            pytest.fail(f"not noticed: {found.keys() ^ whole.keys() or 'other numbers'}")


def test_a_run_with_a_flipped_bit_in_its_model_predicts_nothing(copied: Path) -> None:
    path = copied / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)
    with pytest.raises(ParleyError, match=r"model.safetensors: .*does not match its checksum"):
        parley.load(copied).model()
    assert parley.load(copied).model(agent=1) is not None
    with pytest.raises(ParleyError, match="does not match its checksum"):
        parley.train(out=copied.with_name("next"), epochs=1, init=str(path), **SMALL)


def test_a_flipped_bit_of_the_records_is_refused_on_resuming_and_named_in_a_report(
    run: Path, copied: Path
) -> None:
    source, path = random.Random(1), copied / RECORDS
    whole = RunFolder(run).records()
    for _ in range(3 * FLIPS):
        shutil.copy(run / RECORDS, path)
        flipped(path, source)
        try:
            assert len(RunFolder(copied).records()) < len(whole)  # the end of the last line is gone
        except ParleyError as error:
            assert RECORDS in str(error)
        shown = read_run(copied)
        assert any(RECORDS in note for note in shown.notes), path.read_bytes()
        assert all(record in whole for record in shown.records)


@pytest.mark.parametrize("name", JSON)
def test_a_flipped_bit_of_a_file_beside_them_is_named(name: str, run: Path, copied: Path) -> None:
    source = random.Random(name)
    for _ in range(FLIPS):
        shutil.copy(run / name, copied / name)
        flipped(copied / name, source)
        assert f"{name} is damaged" in read_run(copied).notes


def test_a_flipped_bit_of_the_card_is_refused(run: Path, copied: Path) -> None:
    source = random.Random(2)
    for _ in range(FLIPS):
        shutil.copy(run / "model.json", copied / "model.json")
        flipped(copied / "model.json", source)
        with pytest.raises(ParleyError, match=r"model\.json"):
            parley.load(copied).model()


def test_what_an_older_version_wrote_is_read_and_said_to_be_unverified_once(
    run: Path, copied: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("parley"), "propagate", True)
    caplog.set_level(logging.INFO)
    records = RunFolder(run).records()
    text = "".join(line.partition(', "check"')[0] + "}\n" for line in _lines(run))
    (copied / RECORDS).write_text(text)
    assert RunFolder(copied).records() == records
    assert caplog.text.count("they cannot be verified") == 1
    caplog.clear()
    assert [r.records for r in read_all([copied, run])] == [records, records]
    assert caplog.text.count("the records of 1 of 2 runs have no checksums") == 1
    caplog.clear()
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, copied / "old.safetensors", {"format": "pt"})
    for _ in range(2):
        assert weights.load(copied / "old.safetensors")["a"].tolist() == [1, 1]
    assert caplog.text.count("cannot be verified") == 1


def _lines(run: Path) -> list[str]:
    return (run / RECORDS).read_text().splitlines()


@pytest.mark.parametrize("indent", [None, 2])
def test_no_single_bit_of_a_sealed_object_can_change(indent: int | None) -> None:
    text = sealed({"epoch": 3, "out": "abcdefgh"}, indent)
    assert is_sealed(text.encode()) and parse_json(text) == {"epoch": 3, "out": "abcdefgh"}
    for at in range(8 * len(text)):
        content = bytearray(text.encode())
        content[at // 8] ^= 1 << at % 8
        with pytest.raises(Unreadable):
            parse_json(bytes(content))
    assert not is_sealed(b'{"epoch": 3, "out": "abcdefgh"}')
