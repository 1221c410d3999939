"""Partitions as they occur: by writer, speaker or site, of unequal amounts, by other cameras."""

from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import parley
from parley.data import Samples, features, load, partition
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.graphs import ring
from parley.training.problem import problem

WRITERS = ["f0001_41", "f0002_02", "f0003_17", "f0004_99"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path / "cache"))


def write(folder: Path, rows: dict[str, list[Any]], kinds: dict[str, Any]) -> None:
    """A dataset as on the hub, with a train split only."""
    (folder / "data").mkdir(parents=True)
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    made.to_parquet(folder / "data" / "train-00000-of-00001.parquet")


def femnist(root: Path, per_writer: int = 12) -> None:
    """Handwritten characters with their writers; the grey value of an image tells the writer."""
    rows: dict[str, list[Any]] = {"image": [], "writer_id": [], "hsf_id": [], "character": []}
    for n in range(per_writer * len(WRITERS)):
        writer = n % len(WRITERS)
        rows["image"].append(np.full((8, 8), 40 * writer + n // len(WRITERS) % 3, dtype=np.uint8))
        rows["writer_id"].append(WRITERS[writer])
        rows["hsf_id"].append(writer)
        rows["character"].append(n // len(WRITERS) % 3)
    kinds = {"image": datasets.Image(), "writer_id": datasets.Value("string")}
    kinds |= {
        "hsf_id": datasets.Value("int64"),
        "character": datasets.ClassLabel(names=["0", "1", "A"]),
    }
    write(root / "flwrlabs" / "femnist", rows, kinds)


def shakespeare(root: Path) -> None:
    """Lines of plays and the letter that comes next, with who speaks."""
    speakers = ["ROMEO", "JULIET", "NURSE"]
    lines = [
        "what light through yonder window",
        "wherefore art thou",
        "well sir my mistress is the",
    ]
    rows: dict[str, list[Any]] = {"character_id": [], "x": [], "y": []}
    for n in range(30):
        rows["character_id"].append(f"PLAY_{speakers[n % 3]}")
        rows["x"].append(lines[n % 3][: 8 + n // 3])
        rows["y"].append("abc d"[n % 5])
    write(root / "flwrlabs" / "shakespeare", rows, dict.fromkeys(rows, datasets.Value("string")))


def test_as_many_writers_as_agents_have_one_each(tmp_path: Path) -> None:
    femnist(tmp_path)
    experiment = Experiment.of(
        data="flwrlabs/femnist", data_root=str(tmp_path), agents=4, partition="column:writer_id",
        validation=0.25, data_options={"label": "character"},
    )  # fmt: skip
    found = problem(experiment)
    assert found.class_names == ("0", "1", "A") and len(found.test) == 12
    for writer, samples in enumerate(found.samples):
        assert set((samples.inputs.flatten() // 40).tolist()) == {writer}
    assert sum(map(len, found.samples)) == 36


def test_more_writers_than_agents_and_fewer(tmp_path: Path) -> None:
    femnist(tmp_path)
    options: dict[str, Any] = {"data": "flwrlabs/femnist", "data_root": str(tmp_path)}
    options |= {"partition": "column:hsf_id", "validation": 0.25, "topology": "ring"}
    seen = []
    for samples in problem(Experiment.of(**options, agents=3)).samples:
        seen.append(set((samples.inputs.flatten() // 40).tolist()))
    assert sorted(map(len, seen)) == [1, 1, 2] and set.union(*seen) == {0, 1, 2, 3}
    with pytest.raises(BadValue, match=r"the column has 4 values for 5 agents.*at least 5 values"):
        problem(Experiment.of(**options, agents=5))
    with pytest.raises(
        BadValue, match=r"column:writer' is not valid; valid: columns of .*writer_id"
    ):
        problem(Experiment.of(**options | {"partition": "column:writer"}, agents=3))
    with pytest.raises(BadValue, match="these data have no columns"):
        problem(Experiment.of(partition="column:writer"))
    with pytest.raises(BadValue, match=r"column:NAME with the name of a column"):
        Experiment.of(partition="column:")


class Letters(nn.Module):
    """The mean of the tokens' vectors, and a linear layer."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(words, 6), nn.Linear(6, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.out(self.table(tokens).mean(1))
        return found


def test_text_with_a_letter_to_predict(tmp_path: Path) -> None:
    shakespeare(tmp_path)
    options: dict[str, Any] = {"input": "x", "label": "y", "length": 12}
    data = load("flwrlabs/shakespeare", tmp_path, options, needs_test=False, group="character_id")
    assert data.class_names == (" ", "a", "b", "c", "d") and data.train.inputs.shape == (30, 12)
    assert data.groups is not None and Counter(data.groups.tolist()) == {0: 10, 1: 10, 2: 10}
    again = load("flwrlabs/shakespeare", tmp_path, options, needs_test=False)
    assert torch.equal(again.train.inputs, data.train.inputs) and again.groups is None
    speakers = load(
        "flwrlabs/shakespeare", tmp_path, {**options, "label": "character_id"}, needs_test=False
    )
    assert speakers.class_names == ("PLAY_JULIET", "PLAY_NURSE", "PLAY_ROMEO")
    words = int(data.train.inputs.max()) + 1
    result = parley.train(
        lambda: Letters(words, 5), data="flwrlabs/shakespeare", data_root=str(tmp_path), agents=3,
        partition="column:character_id", validation=0.2, data_options=options, epochs=2,
        algorithm="dpsgd", progress=False,
    )  # fmt: skip
    assert result.records[-1]["test_samples"] == 5 and result.records[-1]["loss"] > 0


def test_the_column_of_a_table_is_no_input(tmp_path: Path) -> None:
    made = pandas.DataFrame({"site": ["b", "a", "c"] * 4, "x": range(12), "y": [0, 1, 1] * 4})
    made.to_csv(tmp_path / "all.csv", index=False)
    experiment = Experiment.of(
        data=str(tmp_path / "all.csv"), data_options={"target": "y"}, partition="column:site",
        agents=3, validation=0.25,
    )  # fmt: skip
    found = problem(experiment)
    assert found.samples[0].inputs.shape[1:] == (1,)
    mean, std = np.mean(range(12)), np.std(range(12))
    rows = (found.samples[0].inputs[:, 0].numpy() * std + mean).round().astype(int)
    assert set(rows % 3) == {1}  # agent 0 has site a, whose rows are 1, 4, 7 and 10


def test_quantities_differ_and_classes_do_not() -> None:
    labels = np.tile(np.arange(4), 250)
    for seed in range(3):
        dealt = partition.partition("quantity:0.5", labels, ring(6), seed).indices
        np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(1000))
        sizes = sorted(map(len, dealt))
        assert sizes[0] >= 1 and sizes[-1] > 3 * sizes[1]
        largest = max(dealt, key=len)
        shares = np.bincount(labels[largest], minlength=4) / len(largest)
        np.testing.assert_allclose(shares, 0.25, atol=0.1)
    even = partition.partition("quantity:100000", labels, ring(6), 0).indices
    assert max(map(len, even)) - min(map(len, even)) < 10
    for bad in ("quantity", "quantity:0", "quantity:x"):
        with pytest.raises(BadValue, match="quantity:b with a number b above 0"):
            partition.parse(bad)


def images(side: int = 6) -> Samples:
    draws = torch.Generator().manual_seed(0)
    pixels = torch.randint(60, 180, (40, 1, side, side), generator=draws, dtype=torch.uint8)
    return Samples(pixels, torch.arange(40) % 4)


def test_feature_skew() -> None:
    clean = images()
    for agent in range(4):
        noisy = features.changed("feature:noise=0.06", clean, agent, 4, seed=1)
        difference = noisy.inputs.double() - clean.inputs.double()
        assert float(difference.std()) == pytest.approx(0.06 * agent / 3 * 255, abs=0.5)
        again = features.changed("feature:noise=0.06", clean, agent, 4, seed=1)
        assert torch.equal(again.inputs, noisy.inputs) and noisy.inputs.dtype == torch.uint8
        flat = features.changed("feature:contrast=0.9", clean, agent, 4, seed=1)
        spread = [float(s.inputs.double().std((1, 2, 3)).mean()) for s in (flat, clean)]
        assert spread[0] / spread[1] == pytest.approx(1 - 0.3 * agent, abs=0.03)
        turned = features.changed("feature:rotation", clean, agent, 4, seed=1)
        assert torch.equal(turned.inputs.rot90(-agent, (2, 3)), clean.inputs)
        assert torch.equal(turned.targets, clean.targets)
    numbers = Samples(torch.zeros(500, 3), torch.zeros(500, dtype=torch.int64))
    assert float(features.changed("feature:noise=2", numbers, 1, 2, 0).inputs.std()) > 1.8
    with pytest.raises(BadValue, match="square images"):
        features.changed("feature:rotation", numbers, 1, 2, 0)
    tokens = Samples(torch.zeros(5, 3, dtype=torch.int64), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(BadValue, match="token IDs are names"):
        features.changed("feature:noise=1", tokens, 1, 2, 0)
    for bad in (
        "feature",
        "feature:noise",
        "feature:contrast=2",
        "feature:turn",
        "feature:noise=nan",
    ):
        with pytest.raises(
            BadValue, match="feature:noise=s, feature:contrast=s or feature:rotation"
        ):
            partition.parse(bad)


def test_agents_see_different_digits_and_are_tested_on_the_same() -> None:
    options: dict[str, Any] = {"agents": 3, "fraction": 0.1}
    plain = problem(Experiment.of(partition="iid", **options))
    skewed = problem(Experiment.of(partition="feature:rotation", **options), agents=[2])
    expected = plain.samples[2].inputs.rot90(2, (2, 3))
    assert torch.equal(skewed.samples[0].inputs, expected)  # wherever the agent is
    assert torch.equal(skewed.test.inputs, plain.test.inputs)
    text = Experiment.of(partition="feature:noise=0.5").to_toml()
    assert Experiment.from_toml(text).partition == "feature:noise=0.5"
