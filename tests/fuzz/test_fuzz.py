"""A few cases of every target, always the same; `python -m tests.fuzz` tries others for longer."""

import random
import sys
from pathlib import Path

import pytest

from parley.errors import ParleyError
from tests import fuzz
from tests.fuzz.__main__ import main

CASES = {"runs": 4, "checkpoints": 12, "folders": 6, "options": 150, "messages": 60}
"""How many, where that is not 30: some take longer than others."""


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damage_is_used_or_refused_in_words(name: str) -> None:
    refused = 0
    for seed in range(CASES.get(name, 30)):
        try:
            refused += bool(fuzz.case(name, seed))
        except Exception as error:
            raise AssertionError(f"try again: {fuzz.command(name, seed)}") from error
    assert refused or name in ("folders", "runs"), "nothing was damaged"


def test_a_seed_is_a_case() -> None:
    assert fuzz.case("options", 7) == fuzz.case("options", 7)
    assert {fuzz.case("options", seed) for seed in range(5)} != {fuzz.case("options", 0)}


def test_what_fails_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: random.Random, folder: Path) -> None:
        if source.random() < 0.5:
            raise KeyError("no words")
        raise ParleyError("in words")

    monkeypatch.setitem(fuzz.TARGETS, "records", fails)
    outcomes = set()
    for seed in range(20):
        try:
            outcomes.add(fuzz.case("records", seed))
        except KeyError:
            outcomes.add("failed")
    assert outcomes == {"in words", "failed"}
    assert fuzz.command("records", 3) == "python -m tests.fuzz --seed 3 records"


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fuzz", *arguments])
        return main(), capsys.readouterr().out

    code, out = run("--minutes", "0.02", "records", "options")
    assert code == 0
    assert "records: " in out and "refused" in out
    assert run("--seed", "3", "options")[1].startswith("options 3: ")

    def fails(source: random.Random, folder: Path) -> None:
        raise KeyError("no words")

    monkeypatch.setitem(fuzz.TARGETS, "records", fails)
    code, out = run("--minutes", "0.005", "records")
    assert code == 1
    assert "KeyError" in out and "python -m tests.fuzz --seed " in out
    with pytest.raises(SystemExit):
        run("nothing")
