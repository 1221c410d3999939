"""Comparisons and searches from Python."""

from pathlib import Path

import pytest

import parley


@pytest.mark.usefixtures("undrawn")
def test_compare_and_tune_take_algorithms_as_objects(tmp_path: Path) -> None:
    small = {"agents": 3, "epochs": 1, "gossip_rounds": 1, "parallel": 1, "progress": False}
    found = parley.compare(
        ["dpsgd", parley.NGC(alpha=0.5)], seeds=2, momentum=0.9, out=tmp_path / "c", **small
    )
    # An object is what it is: the momentum for all goes to what is named.
    assert [row["label"] for row in found.rows] == ["D-PSGD momentum=0.9", "NGC α=0.5"]
    assert [run.experiment.seed for run in found.runs["NGC α=0.5"]] == [0, 1]
    assert found.runs["D-PSGD momentum=0.9"][0].experiment.algorithm == parley.DPSGD(momentum=0.9)
    assert found.markdown() == (tmp_path / "c" / "table.md").read_text()
    tuned = parley.tune([parley.DPSGD()], trials=2, out=tmp_path / "t", **small)
    assert tuned.experiments["dpsgd"].lr == tuned.settings["dpsgd"]["lr"]
