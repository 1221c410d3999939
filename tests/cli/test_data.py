"""``parley data``, and data that cannot be had."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from parley.cli.data import _holdings_table
from parley.cli.screen import screen
from parley.data import load
from tests.data.test_sizes import write_folder
from tests.data.test_tables import frame


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
    table = _holdings_table(np.eye(10, dtype=int) * 7, names, [7] * 10)
    assert table.headings == ["agent", "holds", "all"]
    assert table.rows[3] == ["3", "a long name 3: 7", "7"]


def test_a_table_for_each_task(command, tmp_path):
    """Labels are counted one by one; without classes, there are only samples."""
    path = tmp_path / "all.csv"
    frame().assign(well=lambda f: f["visits"] > 1).to_csv(path, index=False)
    common = f"data {path} --agents 2 --validation 0.25 --data-option drop=name,outcome --json"
    told = json.loads(command(f"{common} --data-option target=days --task regression")[1])
    assert told["train"] == np.sum(told["held"]) == 9 and told["classes"] == ["samples"]
    words = f"{common} --data-option target=smoker,well --task multilabel"
    told = json.loads(command(words)[1])
    assert told["train"] == 9 and told["classes"] == ["smoker", "well"]
    assert np.array(told["held"]).shape == (2, 2)


def test_a_dataset_that_cannot_be_had(fails, monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = fails(f"train --data somebody/something --data-root {tmp_path}")
    assert message.startswith("data: 'somebody/something' is not valid (")
    assert "no local copy in" in message and "--data-root" in message


def test_labels_with_a_gap(fails, monkeypatch):
    digits = load("digits")
    kept = digits.train.take(np.flatnonzero(digits.train.targets.numpy() != 4))
    monkeypatch.setattr("parley.data.load", lambda *_, **__: replace(digits, train=kept))
    assert "class 4 has no training sample" in fails("train")
    assert "class 4 has no training sample" in fails("data digits")


def test_images_of_different_sizes_from_looking_at_them_to_a_prediction(
    command, tmp_path, monkeypatch
):
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path / "cache"))
    write_folder(tmp_path / "scans")
    told = command("data scans --agents 2 --data-option resize=8 --json")[1]
    assert json.loads(told)["shape"] == [1, 8, 8]
    chosen = "--data-option resize=10 --data-option crop=8 --agents 2 --model logistic --epochs 1"
    assert command("train --data scans --algorithm dpsgd --out run -q", chosen)[0] == 0
    about = json.loads(Path("run/model.json").read_text())["input"]
    assert (about["resize"], about["crop"], about["shape"]) == (10, 8, [1, 8, 8])
    [answer] = json.loads(command("predict run scans/test/ill/b.png --json")[1])
    assert set(answer["probabilities"]) == {"healthy", "ill"}
    code, out, _ = command("export run --to torch-export --out model.pt2")
    assert code == 0 and "scale the shorter side to 10, then crop the central square of 8" in out


def test_a_table_from_the_command_line_to_a_prediction(command, fails):
    frame(30).to_csv("all.csv", index=False)
    frame(2, shift=4).drop(columns=["outcome"]).to_csv("new.csv", index=False)
    chosen = "--data all.csv --data-option target=outcome --data-option drop=name --agents 3"
    assert "--validation 0.2" in fails("train", chosen)
    told = json.loads(command("data", chosen[7:], "--validation 0.2 --partition iid --json")[1])
    assert (told["train"], told["test"], told["shape"]) == (24, 6, [7])
    more = "--validation 0.2 --partition iid --model mlp --algorithm dpsgd --epochs 2 --out run -q"
    assert command("train", chosen, more)[0] == 0
    found = json.loads(command("predict run new.csv --json")[1])
    assert [answer["input"] for answer in found] == ["new.csv[0]", "new.csv[1]"]
    assert set(found[0]["probabilities"]) == {"healthy", "ill"}
    told = command("export run --to torch-export --out m.pt2")[1]
    assert 'columns: ["age", "visits", "smoker", "ward", "days"]' in told
    assert 'values: {"ward": ["north", "south", "west"]}' in told
    frame(2).drop(columns=["age"]).to_csv("short.csv", index=False)
    assert "it has no column age" in fails("predict run short.csv")
