"""``parley data``, and data that cannot be had."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from parley.cli.data import _holdings_table
from parley.cli.screen import screen
from parley.data import load


def test_data(command):
    code, out, _ = command("data")
    assert code == 0 and "digits" in out and "cifar10" in out
    assert "digits" in json.loads(command("data --json")[1])
    code, out, err = command("data digits --agents 5 --picture who.png")
    assert code == 0 and "1,437 training and 360 test samples" in out and "note" not in out + err
    assert Path("who.png").exists()
    told = json.loads(command("data digits --agents 12 --topology full --json")[1])
    held = np.array(told["held"])
    assert held.shape == (12, 10) and held.sum() == told["train"] == 1437
    assert (np.count_nonzero(held, axis=1) == 1).all() and told["test"] == 360
    assert "cannot be given to 12 fully connected agents" in told["note"]
    code, out, _ = command("data digits --agents 12 --topology full")
    assert "note: 10 classes cannot be given" in out
    told = json.loads(command("data digits --fraction 0.25 --agents 5 --json")[1])
    assert told["train"] == np.array(told["held"]).sum() == 359 and told["test"] == 360


def test_what_each_agent_holds_is_listed_where_a_table_is_too_wide(monkeypatch):
    monkeypatch.setattr(screen, "_width", 60)
    names = tuple(f"a long name {n}" for n in range(10))
    table = _holdings_table(np.eye(10, dtype=int) * 7, names)
    assert table.headings == ["agent", "holds", "all"]
    assert table.rows[3] == ["3", "a long name 3: 7", "7"]


def test_a_dataset_that_cannot_be_had(fails, monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = fails(f"train --data somebody/something --data-root {tmp_path}")
    assert message.startswith("data: 'somebody/something' is not valid (")
    assert "no local copy in" in message and "--data-root" in message


def test_labels_with_a_gap(fails, monkeypatch):
    digits = load("digits")
    kept = digits.train.take(np.flatnonzero(digits.train.targets.numpy() != 4))
    monkeypatch.setattr("parley.data.load", lambda *_: replace(digits, train=kept))
    assert "class 4 has no training sample" in fails("train")
    assert "class 4 has no training sample" in fails("data digits")
